"""The script that tries faults: a row for each, with what must hold."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "faults.py"


@pytest.mark.slow
def test_a_fault_is_a_row(tmp_path):
    record = tmp_path / "record.json"
    words = ("--tests=tests/test_locks.py", f"--output={record}")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(record.read_text())["training"]["rows"]
    assert row["fault"] == "the process that holds a directory ends"
    assert row["done"] == "killed by SIGKILL"
    assert row["holds"].startswith("A second one is refused while it lives")
    assert (row["passed"], row["failed"], row["skipped"]) == (1, 0, 0)
