"""benchmark.py refuses what it cannot measure, before it measures anything."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "benchmark.py"


@pytest.mark.parametrize(
    "flags",
    [
        ("--suite=backends", "--batches=0"),
        ("--suite=cases", "--batches=4,-1"),
        ("--suite=backends", "--replica_counts=0"),
    ],
)
def test_counts_below_one_are_named(tmp_path, flags):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *flags, f"--workdir={tmp_path}/never"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stdout
    assert f"{flags[1]}: expected whole numbers of at least 1" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert not (tmp_path / "never").exists()
