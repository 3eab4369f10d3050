"""An interrupted comparison: its children end with it, and it can be continued."""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prednet_jax import records

SCRIPT = Path(__file__).parents[2] / "experiments" / "compare_backends.py"
FLAGS = (
    "--models=prednet",
    "--arms=stale_targets",
    "--channels=3,4",
    "--height=16",
    "--width=16",
    "--window=3",
    "--updates=10",
    "--seeds=2",
)


def started(folder):
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *FLAGS, f"--workdir={folder}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def runs_of(folder):
    """Processes whose command line names a directory."""
    with contextlib.suppress(OSError):
        return [
            path
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if f"--workdir={folder}/runs" in path.read_text()
        ]


def ended(folder):
    """When each run that has a receipt ended."""
    return {
        path: (path.parent / records.MANIFEST).stat().st_mtime_ns
        for path in folder.glob("runs/**/receipt.json")
    }


@pytest.mark.fault(
    "`compare_backends.py` is interrupted", "SIGTERM in mid-run; the same command again"
)
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_an_interrupted_comparison_leaves_no_children_and_goes_on(tmp_path):
    """No child is left; finished runs are kept; the end is a verdict."""
    folder = tmp_path / "cut"
    with started(folder) as cut:
        lines = [cut.stdout.readline()]
        while "[1/4]" not in lines[-1]:
            assert lines[-1], lines
            lines.append(cut.stdout.readline())
        assert runs_of(folder)
        cut.send_signal(signal.SIGTERM)
    end = time.monotonic() + 20
    while runs_of(folder) and time.monotonic() < end:
        time.sleep(0.1)
    assert runs_of(folder) == []
    assert not (folder / "verdict.json").exists()
    before = ended(folder)
    assert before
    again = started(folder)
    output, _ = again.communicate()
    assert again.returncode == 0, output
    assert f"{len(before)} of 8 runs kept" in output
    after = ended(folder)
    assert len(after) == 8
    assert {path: after[path] for path in before} == before
    verdict = records.read_json(folder / "verdict.json")
    assert [row["n"] for row in verdict["contrasts"]] == [2, 2, 2]


def seeds_of(done):
    """The seeds in the first command of a dry run."""
    assert done.returncode == 0, done.stderr
    command = next(line for line in done.stdout.splitlines() if "--seeds=" in line)
    return command.partition("--seeds=")[2].partition(" ")[0].split(",")


def test_seeds_are_fresh_unless_given_and_stay_those_of_an_interrupted_one(
    forked, tmp_path
):
    def dry(*arguments):
        flags = ("--dry_run", f"--workdir={tmp_path}", *arguments)
        return seeds_of(forked("compare_backends.py", *flags))

    first, other = dry(), dry()
    assert len(first) == len(other) == 3
    assert first != other
    assert dry("--seeds=2") == ["3000", "3001"]
    assert dry("--first_seed=7") == ["7", "8", "9"]
    records.write_json(tmp_path / "seeds.json", [5, 3])
    assert dry() == ["5", "6", "7"]
