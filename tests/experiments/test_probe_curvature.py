"""probe_curvature.py as a user runs it: in a process of its own, tiny."""

import json
import math

import pytest

SCRIPT = "probe_curvature.py"
TINY = ("--steps=6", "--starts=1", "--windows=2", "--images=4", "--hidden=4")
TINY += ("--channels=3", "--height=4", "--width=4", "--window=2", "--updates=3,1")


def test_both_networks_are_trained_and_probed(forked, tmp_path):
    done = forked(SCRIPT, f"--workdir={tmp_path}", *TINY)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "probe_curvature.json").read_text())["rows"]
    assert [(row["model"], row["update"]) for row in rows] == [
        ("prednet", 1),
        ("prednet", 3),
        ("autoencoder", 1),
        ("autoencoder", 3),
    ]
    for row in rows:
        for found in (row["raw"], row["preconditioned"]):
            proved = found["negative_curvature_proved"]
            assert proved == (found["lowest"] + found["rounding"] < 0)
        state = row["escape"]
        assert (state is not None) == row["preconditioned"]["negative_curvature_proved"]
        if state:
            assert state["growth_per_update"] > 1
            # The two answers are one formula: noise as asked, and noise for an update.
            ratio = (state["noise"] / state["noise_for_one_update"]) ** 2
            r = state["growth_per_update"]
            saved = 0.5 * math.log1p(ratio * (r * r - 1)) / math.log(r)
            assert state["updates_saved"] == pytest.approx(saved, rel=1e-6)
    # The untrained autoencoder stands at a saddle (measured here and in the notes).
    assert rows[2]["preconditioned"]["negative_curvature_proved"]
    assert "proves nothing" in done.stdout
    shown = [line.split()[:2] for line in done.stdout.splitlines()]
    assert ["autoencoder", "3"] in shown


def test_bad_flags_end_in_one_line(refused, tmp_path):
    for flag, message in (
        ("--updates=0,5", "--updates=0,5: expected numbers from 1"),
        ("--models=prednet,gan", "model='gan': expected prednet, autoencoder"),
    ):
        refused(message, SCRIPT, flag, f"--workdir={tmp_path / 'out'}")
        assert not (tmp_path / "out").exists()
