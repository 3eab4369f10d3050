"""Faults during a training: mistakes, full disks, divergence.

The mark of a test says what happened and what was done, its docstring what must hold.
"""

import json
import shutil
from pathlib import Path

import pytest
from runs_on_disk import TINY, manifest, metrics, saved, snapshot


@pytest.mark.fault(
    "a command with a mistake, over an earlier run",
    "bad values, files and sizes, with `--overwrite`",
)
def test_a_refused_command_leaves_the_records_there_were(refused, tmp_path):
    """One line and status 2; not a byte or a time stamp of what was there changes."""
    folder = tmp_path / "r"
    (folder / "seed_0").mkdir(parents=True)
    for name in ("manifest.json", "metrics.jsonl"):
        (folder / name).write_text("mine")
        (folder / "seed_0" / name).write_text("mine")
    before = snapshot(tmp_path)
    words = ("train.py", *TINY, f"--workdir={folder}", "--overwrite")
    refused("expected", *words, "--layer_weights=10.0", "--objective=errors")
    refused("expected", *words, "--replicas=1000000")
    assert snapshot(tmp_path) == before


@pytest.mark.fault(
    "a run is in the directory",
    "the same command again: over a finished run, and over an unfinished one",
)
def test_a_run_is_replaced_only_when_asked_to(train, refused, whole, tmp_path):
    """Refused in one line; `--overwrite` removes all of the run and nothing else."""
    folder = tmp_path / "r"
    shutil.copytree(whole, folder)
    (folder / "examples.npz").write_bytes(b"of that run")
    (folder / "mine.txt").write_text("not of the run")
    before = snapshot(folder)
    words = ("train.py", *TINY, f"--workdir={folder}")
    refused("holds a finished run; expected --resume to go on, --over", *words)
    assert snapshot(folder) == before
    train(*TINY, f"--workdir={folder}", "--overwrite")
    assert saved(folder) == [6]
    assert len(metrics(folder)) == 6
    found = {path.name for path in folder.iterdir() if "tfevents" not in path.name}
    parts = {"manifest.json", "metrics.jsonl", "weights.npz", "checkpoints"}
    assert found == parts | {"mine.txt"}
    (folder / "manifest.json").write_text('{"updates": 3}')
    refused("holds a run that is not finished", *words)


@pytest.mark.fault("a loss that is not finite", "`--learning_rate=1e38`")
def test_a_loss_that_is_no_number_ends_the_run(refused, tmp_path):
    """Status 1 and one line: the update, the first such tensor, the checkpoint kept."""
    words = ("train.py", "--noprogress", *TINY, f"--workdir={tmp_path}/bad")
    words += ("--learning_rate=1e38", "--checkpoint_every=1")
    done = refused("the first tensor that is not finite is ", *words, status=1)
    assert "try a lower --learning_rate, --clip_gradient=1" in done.stderr
    failed = manifest(tmp_path / "bad")
    assert "norm of the gradient" in failed["failure"]
    assert "final_params_sha256" not in failed
    last = saved(tmp_path / "bad")[-1]
    assert f"checkpoint {last} is kept" in done.stderr


@pytest.mark.fault(
    "flags contradict `--init_weights`", "another width; a damaged file of weights"
)
def test_a_run_starts_from_another_runs_weights(train, refused, whole, tmp_path):
    """Model, variant and sizes come from there; a flag that contradicts is refused."""
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(whole, first)
    start = f"--init_weights={first}"
    agreeing = ("--channels=3,4", "--window=4", "--updates=3")
    train(start, *agreeing, f"--workdir={second}")
    assert manifest(second)["network"] == manifest(first)["network"]
    wanted = manifest(first)["final_params_sha256"]
    assert manifest(second)["initial_params_sha256"] == wanted
    never = ("train.py", start, f"--workdir={tmp_path}/never")
    refused("--width=16: expected 8, as in", *never, "--width=16")
    # And such a run goes on without being told again, from its own copy.
    end = dict(manifest(second))
    shutil.rmtree(second / "checkpoints")
    begun = {k: v for k, v in end.items() if k != "final_params_sha256"}
    (second / "manifest.json").write_text(json.dumps(begun))
    first.rename(tmp_path / "moved")
    train(f"--workdir={second}", "--resume")
    assert manifest(second)["final_params_sha256"] == end["final_params_sha256"]
    (tmp_path / "moved").rename(first)
    (first / "weights.npz").write_bytes(b"PK")
    refused("weights.npz", *never)
    assert not (tmp_path / "never").exists()


EXHAUSTED = """
import jax.numpy as jnp
from tiny_task import Tiny

class Hungry(Tiny):
    def init_params(self, key):
        return {'w': jnp.zeros(2**46)}

TASK = Hungry()
"""


@pytest.mark.fault("memory is used up", "an array of 256 TiB that XLA is asked for")
def test_out_of_memory_is_one_line(refused, tmp_path):
    """Status 1, one line that says what to make smaller, no directory."""
    (tmp_path / "hungry.py").write_text(EXHAUSTED)
    shutil.copy(Path(__file__).with_name("tiny_task.py"), tmp_path)
    words = ("train.py", "--model=hungry:TASK", f"--workdir={tmp_path}/r")
    refused("out of memory", *words, folder=tmp_path, status=1)
    assert not (tmp_path / "r").exists()
