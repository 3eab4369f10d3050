"""learning_curve.py as a user runs it, on a run's records."""

import csv
import json

SCRIPT = "learning_curve.py"


def run_of(folder, updates):
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"seed": 7}))
    rows = [
        {"update": n, "loss": n / 3, "copy_last_frame_loss": 2.0, "seconds": 0.5}
        for n in range(1, updates + 1)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(lines)
    return f"--runs={folder}"


def test_a_row_per_run_and_so_many_updates(tmp_path, forked):
    output = tmp_path / "new" / "curve.csv"
    words = run_of(tmp_path / "run", 5), "--every=2", f"--output={output}"
    done = forked(SCRIPT, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "seed 7, update 2: 0.25 of copying",
        "seed 7, update 4: 0.58 of copying",
    ]
    with open(output, newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows[0] == {
        "seed": "7",
        "update": "2",
        "loss": "0.5",
        "copy_last_frame_loss": "2",
        "seconds": "1",
    }
    assert rows[1]["loss"] == "1.16667"


def test_what_has_no_row_is_refused(tmp_path, refused):
    run = run_of(tmp_path / "run", 5)
    refused("every=6: expected at most 5", SCRIPT, run, "--every=6")
    refused("--runs=: expected directories", SCRIPT, "--runs=")
    refused("every=0", SCRIPT, run, "--every=0")
    words = (SCRIPT, run, "--every=1")
    refused("null is no directory that", *words, "--output=/dev/null/curve.csv")
