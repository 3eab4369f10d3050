"""What the stale-target study measures and how it is judged."""

import json
import math

import jax
import numpy as np
import pandas as pd
import pytest

from chainer_reproduction import __main__ as command
from chainer_reproduction import in_jax as study
from chainer_reproduction import judgement, tables
from prednet_jax import init_params, records, weights
from prednet_jax.errors import UserError


def run_row(seed, targets, loss, window="10", speed="1", rate="0.001", final="x"):
    return {
        **{"seed": seed, "targets": targets, "window": window, "speed": speed},
        **{"rate": rate, "loss": str(loss), "final_sha256": final},
    }


def test_by_position_takes_the_last_half_of_whole_windows():
    # Window 3: a first window of two losses, then four windows.
    losses = np.array([9, 9, *[9] * 6, 1, 2, 3, 3, 4, 5], float)
    assert study.by_position(losses, 3).tolist() == [2, 3, 4]
    assert study.transitions(3, 5) == len(losses)
    assert study.transitions(1, 5) == 5


def test_speed_steps_through_the_walk():
    one, two, still = (study.video(6990, speed, 5) for speed in (1, 2, 0))
    np.testing.assert_array_equal(two[:3], one[::2])
    np.testing.assert_array_equal(still, np.repeat(one[:1], 5, axis=0))


def test_horizons_compare_one_prediction_with_several_frames(monkeypatch):
    """A predictor that is right two frames late has its smallest error there."""

    def two_behind(params, config, frames):
        made = np.zeros_like(frames)
        made[2:] = frames[:-2]
        return made

    monkeypatch.setattr(study, "predicted", two_behind)
    found = study.horizon_errors({}, study.CONFIG, 6990, 60)
    errors = dict(zip(study.HORIZONS, found, strict=True))
    # Horizon 1 is the predicted frame itself, so two frames behind it is horizon -1.
    assert errors[-1] == 0
    assert min(v for k, v in errors.items() if k != -1) > 1e-4


def test_interval_is_the_t_interval():
    low, middle, high = judgement.interval([1.0, 2.0, 3.0])
    # t(.975, 2) = 4.30265, standard error 1/sqrt(3).
    assert middle == 2
    assert high - 2 == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)
    assert low == pytest.approx(4 - high)
    assert judgement.interval([1.0])[0] == -math.inf


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1.0, 1.1, 0.9], "came true"),
        ([-1.0, -1.1, -0.9], "false"),
        ([1.0, -1.0], "undecided"),
        ([1.0], "undecided"),
    ],
)
def test_the_rule(values, verdict):
    assert judgement.above(values)[-1] == verdict


def test_exact_predictions_need_every_seed():
    rows = [
        run_row(s, t, 1, window="1", final=s) for s in "ab" for t in ("true", "stale")
    ]
    found = judgement.exact(pd.DataFrame(rows), ("1", "1", "0.001"))
    assert found == ("equal on 2 of 2", 2, "came true")
    rows[-1]["final_sha256"] = "other"
    found = judgement.exact(pd.DataFrame(rows), ("1", "1", "0.001"))
    assert found == ("equal on 1 of 2", 2, "false")


def test_gaps_are_paired_within_seeds():
    rows = [
        run_row("7", "true", 1.0),
        run_row("7", "stale", 2.0),
        run_row("8", "true", 1.0),
    ]
    found = judgement.gaps(pd.DataFrame(rows)).to_dict()
    assert found == {("10", "1", "0.001", "7"): pytest.approx(math.log(2))}


def test_position_contrast_is_first_half_minus_second():
    rows = [
        {"seed": "7", "targets": t, "window": "10", "position": str(i), "loss": str(v)}
        for i in range(1, 11)
        for t, v in (("true", 1.0), ("stale", math.e if i <= 5 else 1.0))
    ]
    found = judgement.position_contrast(pd.DataFrame(rows))
    assert found.to_dict() == {"7": pytest.approx(1.0)}


def references():
    """A slope for each model; one with another window is no reference."""
    return [
        {
            **{"seed": seed, "targets": targets, "window": window, "rate": "0.001"},
            **{"horizon": str(k), "mse": str(math.exp(slope) if k == 5 else 1.0)},
        }
        for seed, true, stale in (("1", 1.0, 0.0), ("2", 1.1, 0.1), ("3", 0.2, -0.1))
        for targets, window, slope in (
            ("true", "20", true),
            ("stale", "20", stale),
            ("true", "1", -9.0),
        )
        for k in study.HORIZONS
    ]


def test_false_alarms_are_counted_by_the_limit_of_the_other_seeds():
    known = judgement.errors_by_model(pd.DataFrame(references()))
    calls = judgement.called_stale(judgement.slope(known))
    # Seed 3's true model (0.2) lies below the others' limit (0.55); seed 1's above
    # (0.65 + 0) / 2, seed 2's above (0.6 - 0.05) / 2.
    alarms = calls.xs(("true", "20"), level=("targets", "window"))
    assert alarms.tolist() == [False, False, True]
    alike = judgement.verdict({"5": math.exp(-0.2), "1": 1.0}, known)
    assert alike["looks_like"] == "stale"
    assert alike["false_alarms"] == "1 of 3"
    other = judgement.verdict({"5": math.e, "1": 1.0}, known)
    assert other["looks_like"] == "true"


def test_the_fingerprint_reads_a_file(tmp_path, monkeypatch, capsys):
    path, table = tmp_path / "x.model", tmp_path / "reference.csv"
    params = init_params(study.CONFIG, jax.random.key(0))
    weights.save_chainer(path, study.CONFIG, params)
    records.write_csv(table, references())
    monkeypatch.setattr(study, "horizon_errors", lambda *_: np.ones(9))
    assert command.main(["fingerprint", str(path), f"--reference={table}"]) == 0
    assert json.loads(capsys.readouterr().out)["slope"] == 0
    records.write_csv(table, [{"seed": "1", "targets": "true", "window": "20"}])
    assert command.main(["fingerprint", str(path), f"--reference={table}"]) == 2
    assert "no column rate, horizon, mse; expected" in capsys.readouterr().err


def test_references_are_made_of_models(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "horizon_errors", lambda *_: np.ones(9))
    with pytest.raises(UserError, match="expected files SEED_TARGETS_WINDOW_RATE"):
        study.references(tmp_path)
    params = init_params(study.CONFIG, jax.random.key(0))
    for targets in ("true", "stale"):
        name = f"7_{targets}_20_0.001.model"
        weights.save_chainer(tmp_path / name, study.CONFIG, params)
    rows = study.references(tmp_path)
    assert rows[0] == {
        **{"seed": "7", "targets": "stale", "window": "20", "rate": "0.001"},
        **{"horizon": "-3", "mse": "1"},
    }
    assert len(rows) == 18


def test_runs_are_kept_and_not_repeated(tmp_path, monkeypatch):
    """The rows of a second call are read from the records."""

    def untrained(params, config, frames, *, window, targets, **options):
        assert targets in ("true", "stale")
        assert len(frames) == 2 * window
        return params, np.ones(len(frames) - 1)

    chosen = (study.Condition(), study.Condition(speed=0))
    monkeypatch.setattr(study, "CONDITIONS", chosen)
    monkeypatch.setattr(study, "train_windows", untrained)
    monkeypatch.setattr(study, "horizon_errors", lambda *_: np.ones(9))
    made = study.stale(tmp_path, [7], 2)
    assert [row["speed"] for row in made["runs"]] == [1, 1, 0, 0]
    assert len(made["positions"]) == 2 * 10
    assert len(made["horizons"]) == 2 * len(study.HORIZONS)
    names = {"7_true_10_0.001.model", "7_stale_10_0.001.model"}
    assert {path.name for path in tmp_path.glob("*.model")} == names
    for table, rows in made.items():
        assert list(rows[0]) == list(tables.read(f"stale_{table}").columns)
    monkeypatch.setattr(study, "train", None)
    assert study.stale(tmp_path, [7], 2) == made


def test_every_prediction_is_judged():
    text = records.read_json(tables.RESULTS / "predictions.json")["predictions"]
    judged = judgement.judge(
        *(tables.read(f"stale_{name}") for name in ("runs", "positions", "horizons"))
    )
    assert {p["id"] for p in text} == set(judged)
