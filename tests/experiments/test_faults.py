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
    kept = {"training": {"tests/test_locks.py::gone": {"cases": {}}}, "sweeps": {}}
    record.write_text(json.dumps(kept))
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(record.read_text())
    assert found["sweeps"] == {}
    *others, row = found["training"].values()
    assert others == [{"cases": {}}]
    assert row["fault"] == "the process that holds a directory ends"
    assert row["done"] == "killed by SIGKILL"
    assert row["holds"].startswith("A second one is refused while it lives")
    (case,) = row["cases"].values()
    assert case["outcome"] == "passed"
