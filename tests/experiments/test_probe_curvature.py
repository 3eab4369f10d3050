"""probe_curvature.py as a user runs it: in a process of its own, tiny."""

import json
import math

import pytest

SCRIPT = "probe_curvature.py"
TINY = ("--steps=6", "--max_steps=6", "--starts=1", "--windows=2", "--images=4")


def rows_of(folder):
    return json.loads((folder / "probe_curvature.json").read_text())["rows"]


def test_both_networks_are_trained_and_probed(forked, tmp_path):
    done = forked(
        SCRIPT,
        "--channels=3",
        "--height=4",
        "--width=4",
        "--window=2",
        "--hidden=4",
        "--updates=3,1",
        f"--workdir={tmp_path}",
        *TINY,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_of(tmp_path)
    assert [(row["model"], row["update"]) for row in rows] == [
        ("prednet", 1),
        ("prednet", 3),
        ("autoencoder", 1),
        ("autoencoder", 3),
    ]
    for row in rows:
        for form in ("raw", "preconditioned"):
            found = row[form]
            assert found["lowest"] <= found["highest"]
            proved = found["negative_curvature_proved"]
            assert proved == (found["lowest"] + found["rounding"] < 0)
            assert found["statement"].startswith(
                "negative curvature proved" if proved else "not found (proves nothing)"
            )
        # Congruent matrices: a proof in one form is true of the other.
        assert row["grad_norm"] > 0
        assert row["sampling_noise"] > 0
        state = row["escape"]
        assert (state is not None) == row["preconditioned"]["negative_curvature_proved"]
        if state:
            assert state["growth_per_update"] > 1
            assert -1 <= state["step_cosine"] <= 1
            # The two answers are one formula: noise as asked, and noise for an update.
            ratio = (state["noise"] / state["noise_for_one_update"]) ** 2
            r = state["growth_per_update"]
            saved = 0.5 * math.log1p(ratio * (r * r - 1)) / math.log(r)
            assert state["updates_saved"] == pytest.approx(saved, rel=1e-6)
    # The untrained autoencoder stands at a saddle (measured here and in the notes).
    assert rows[2]["preconditioned"]["negative_curvature_proved"]
    table = done.stdout.splitlines()
    assert "proves nothing" in done.stdout
    assert len([line for line in table if line.lstrip().startswith("auto")]) == 2


def test_checkpoints_of_a_run_are_probed(forked, tmp_path):
    run_folder, workdir = tmp_path / "run", tmp_path / "probe"
    arguments = ("--model=autoencoder", "--hidden=4", "--updates=4")
    saving = ("--checkpoint_every=2", "--noprogress", f"--workdir={run_folder}")
    trained = forked("train.py", *arguments, *saving)
    assert trained.returncode == 0, trained.stderr
    # predict.py takes the weights of a PredNet alone.
    assert f"its weights are {run_folder / 'weights.npz'}" in trained.stdout
    assert "predict.py" not in trained.stdout
    done = forked(SCRIPT, f"--run={run_folder}", f"--workdir={workdir}", *TINY)
    assert done.returncode == 0, done.stdout + done.stderr
    from_run = rows_of(workdir)
    assert [row["update"] for row in from_run] == [2, 4]

    # The same training made by the probe itself: the same weights, the same curvature.
    fresh = forked(
        SCRIPT,
        "--models=autoencoder",
        "--hidden=4",
        "--updates=2,4",
        f"--workdir={tmp_path / 'fresh'}",
        *TINY,
    )
    assert fresh.returncode == 0, fresh.stderr
    for mine, other in zip(rows_of(tmp_path / "fresh"), from_run, strict=True):
        assert mine["loss"] == other["loss"]
        assert mine["raw"]["lowest"] == other["raw"]["lowest"]

    refused = forked(
        SCRIPT, f"--run={run_folder}", "--updates=3", f"--workdir={workdir}"
    )
    assert refused.returncode == 2
    assert "3 was not saved" in refused.stderr
    assert "expected some of 2, 4" in refused.stderr


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--updates=0,5", "--updates=0,5: expected numbers from 1"),
        ("--models=prednet,gan", "model='gan': expected prednet, autoencoder"),
        ("--run=/nowhere", "/nowhere/manifest.json"),
    ],
)
def test_bad_flags_end_in_one_line(refused, tmp_path, flag, message):
    refused(message, SCRIPT, flag, f"--workdir={tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()
