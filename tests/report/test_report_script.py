"""experiments/report.py as a user calls it."""

import json


def test_the_report_is_written_anew(forked, verdict, tmp_path):
    verdict["contrasts"] = verdict["contrasts"][:2]
    (tmp_path / "verdict.json").write_text(json.dumps(verdict))
    done = forked("report.py", f"--directory={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "prednet: REFUTED" in done.stdout
    assert done.stdout.splitlines()[-1] == str(tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_no_results_end_in_one_line(refused, tmp_path):
    done = refused(str(tmp_path), "report.py", f"--directory={tmp_path}")
    assert "make compare" in done.stderr
    assert not list(tmp_path.iterdir())
