"""experiments/report.py as a user calls it."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "report.py"


def call(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_report_is_written_anew(verdict, tmp_path):
    verdict["contrasts"] = verdict["contrasts"][:2]
    (tmp_path / "verdict.json").write_text(json.dumps(verdict))
    done = call(f"--directory={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "prednet: REFUTED" in done.stdout
    assert done.stdout.splitlines()[-1] == str(tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_no_results_end_in_one_line(tmp_path):
    done = call(f"--directory={tmp_path}")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert str(tmp_path) in done.stderr
    assert "make compare" in done.stderr
    assert not list(tmp_path.iterdir())
