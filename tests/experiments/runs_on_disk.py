"""Tiny trainings as processes, and what they leave on disk."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

TRAIN = Path(__file__).parents[2] / "experiments" / "train.py"
# In the background of a shell SIGINT is ignored, and stays so in children.
_DEFAULT_SIGNALS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
TINY = (
    "--channels=3,4",
    "--height=8",
    "--width=8",
    "--window=4",
    "--updates=6",
    "--convolution=shifted",
)


@contextlib.contextmanager
def started(*arguments):
    """A training in a process of its own, going on; killed at the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-c", _DEFAULT_SIGNALS, str(TRAIN), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_update(process, folder, update, seconds=600):
    """Waits until a run's metrics tell of an update."""
    path = folder / "metrics.jsonl"
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if path.exists() and path.read_bytes().count(b"\n") >= update:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError(f"{folder}: no update {update} within {seconds} s")


def snapshot(folder):
    """Every path below a directory, its bytes, and when it was last written."""
    return {
        str(path.relative_to(folder)): (
            os.stat(path).st_mtime_ns,
            path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(folder.rglob("*"))
    }


def metrics(folder):
    """The metrics without the wall time, which is no result."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def saved(folder):
    """Numbers of the checkpoints."""
    return sorted(int(path.name) for path in (folder / "checkpoints").glob("[0-9]*"))


def assert_equal_runs(one, other):
    """Every number of two runs, and their last weights, bit for bit."""
    assert metrics(one) == metrics(other)
    for field in ("initial_params_sha256", "data_order_sha256", "final_params_sha256"):
        assert manifest(one)[field] == manifest(other)[field], field


def assert_one_line(done, status, message):
    """A process that ended with a status and one line that says why."""
    assert done.returncode == status, done.stdout + done.stderr
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
