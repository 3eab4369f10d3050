"""The limits that speed on a GPU is held against, and the script for a GPU in small."""

import dataclasses
import json
import os

import pytest

from benchmarks import gpu_steps
from tests.processes import SCRIPTS, python


def test_operations_are_those_of_every_convolution_three_times():
    """At 24x32 with channels 3,6,12; a product and an addition each count."""
    maps = {0: 24 * 32, 1: 12 * 16, 2: 6 * 8}
    kernels = {
        0: (9 * (3 + 6) * 12) + (9 * 6 * 12) + (9 * 3 * 3) + (9 * 6 * 6),
        1: (9 * (6 + 12) * 24) + (9 * 12 * 24) + (9 * 6 * 6) + (9 * 12 * 12),
        2: (9 * (12 + 24) * 48) + (9 * 12 * 12),
    }
    expected = 2 * 3 * sum(maps[layer] * kernels[layer] for layer in maps)
    assert gpu_steps.operations("24x32") == expected


def test_the_article_s_size_takes_39_billion_operations_a_frame():
    """As counted before, by direct convolution (study/pages/performance.md)."""
    assert gpu_steps.operations("160x120") == pytest.approx(39e9, rel=0.02)


def test_a_limit_is_the_longer_of_arithmetic_and_memory():
    step = gpu_steps.Step(size="160x120", batch=8, precision="float32")
    seconds = gpu_steps.limit_seconds(step, "NVIDIA H200")
    assert seconds == pytest.approx(80 * gpu_steps.operations("160x120") / 67e12)
    narrow = dataclasses.replace(step, precision="bfloat16")
    assert gpu_steps.limit_seconds(narrow, "NVIDIA H200") < seconds / 5
    assert gpu_steps.limit_seconds(step, "an unknown card") is None


@pytest.mark.parametrize("torch", [False, True])
def test_the_same_command_repeated_times_every_step(torch):
    """It began with the same steps each time, and never reached the last ones."""
    steps = gpu_steps.settings(torch=torch)
    done = gpu_steps.due(steps, [], 240)
    assert done == steps[:48]
    done += gpu_steps.due(steps, done, 240)
    assert done == steps
    assert gpu_steps.due(steps, done, 240) == []


def test_a_step_that_fails_is_named_and_costs_no_other(tmp_path):
    steps = [
        gpu_steps.Step(size="24x32", window=2, convolution="none"),
        gpu_steps.Step(size="24x32", window=2, batch=0),
    ]
    records = list(gpu_steps.run(steps, cache=tmp_path, workers=2, seconds=300))
    errors = {record["convolution"]: record["error"] for record in records}
    assert "none" in errors["none"]
    assert len(records) == 2


@pytest.mark.slow
@pytest.mark.fault
def test_the_script_for_a_gpu_is_killed_and_does_what_is_missing(
    tmp_path, started, forked
):
    """In small on a CPU; the same command continues, and repeats nothing."""
    command = "on_gpu.py", "--minutes=10", f"--workdir={tmp_path}"
    with started(*command, "--parts=tools,bfloat16", "--minutes=4") as process:
        process.wait_for_update(tmp_path / "bfloat16" / "bfloat16", 3)
        process.kill()
    before = (tmp_path / "tools.jsonl").read_text()
    # Else the trainings would take their share of ten minutes.
    (tmp_path / "updates.json").write_text("[2, 3]")
    first = forked(*command)
    for part in ("tools", "compare", "bfloat16", "training"):
        assert f"{part}: done" in first.stdout
    assert (tmp_path / "tools.jsonl").read_text().startswith(before)
    record = json.loads((tmp_path / "speed.jsonl").read_text())
    assert record["seconds_per_window"] > 0
    assert "ms a window" not in forked(*command).stdout
    scores = json.loads((tmp_path / "unseen.json").read_text())
    assert scores["observed"]["mse"] > 0


@pytest.mark.fault
def test_a_gpu_that_disappears_ends_in_one_sentence(tmp_path):
    """The driver answers at the start and never again; what is there is kept."""
    driver = tmp_path / "nvidia-smi"
    driver.write_text(f"#!/bin/sh\nmv {driver} {driver}.gone\necho NVIDIA H200\n")
    driver.chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "JAX_PLATFORMS": "cuda"}
    script, folder = SCRIPTS / "on_gpu.py", tmp_path / "results"
    command = script, "--parts=speed", f"--workdir={folder}"
    (line,) = python(*command, status=1, **variables).stderr.splitlines()
    assert line.startswith("on_gpu.py: NVIDIA H200 does not answer any more")
    assert str(folder) in line


def test_a_part_that_there_is_not_is_refused(tmp_path, refused):
    folder = tmp_path / "new"
    refused("sound", "on_gpu.py", "--parts=speed,sound", f"--workdir={folder}")
    assert not folder.exists()
