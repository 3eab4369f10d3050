"""benchmark.py: what it refuses, and its last line."""

import json

import pytest


@pytest.mark.parametrize(
    "flag", ["--batches=0", "--batches=4,-1", "--replica_counts=0"]
)
def test_counts_below_one_are_named(tmp_path, refused, flag):
    words = ("--suite=backends", flag, f"--workdir={tmp_path}/never")
    message = f"{flag}: expected whole numbers of at least 1"
    assert refused(message, "benchmark.py", *words).stdout == ""
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("python", ["", "/nowhere/python"])
def test_a_python_that_is_not_there_is_named(refused, python):
    words = ("--suite=pytorch", f"--torch_python={python}")
    refused(f"--torch_python={python}: expected a Python", "benchmark.py", *words)


def test_the_last_line_is_an_object(forked):
    sizes = ("--channels=2", "--height=4", "--width=4", "--window=2", "--repeats=1")
    done = forked("benchmark.py", "--suite=step", *sizes)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    named = {"seconds_per_window", "frames_per_second", "compile_seconds", "parameters"}
    assert named <= set(found)
