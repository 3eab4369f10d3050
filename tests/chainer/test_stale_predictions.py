"""What the stale-target study measures and how it is judged."""

import json
import math

import chainer_judgement as judgement
import chainer_tables
import fingerprint
import jax
import numpy as np
import pytest
import stale_predictions as study

from prednet_jax import init_params, weights


def run_row(seed, targets, loss, window="10", speed="1", rate="0.001", final="x"):
    return {
        **{"seed": seed, "targets": targets, "window": window, "speed": speed},
        **{"rate": rate, "loss": str(loss), "final_sha256": final},
    }


def test_by_position_takes_the_last_half_of_whole_windows():
    # Window 3: a first window of two losses, then four windows.
    losses = np.array([9, 9, *[9] * 6, 1, 2, 3, 3, 4, 5], float)
    rows = study.by_position(losses, 3)
    assert [float(row["loss"]) for row in rows] == [2, 3, 4]
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
    errors = dict(
        zip(
            study.HORIZONS,
            study.horizon_errors({}, study.CONFIG, 6990, 60),
            strict=True,
        )
    )
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
        ([], "open"),
    ],
)
def test_the_rule(values, verdict):
    assert judgement.above(values)[-1] == verdict


def test_exact_predictions_need_every_seed():
    rows = [run_row(s, t, 1, window="1", final=s) for s in "ab" for t in study.TARGETS]
    assert judgement.exact(rows, ("1", "1", "0.001")) == (
        "equal on 2 of 2",
        2,
        "came true",
    )
    rows[-1]["final_sha256"] = "other"
    assert judgement.exact(rows, ("1", "1", "0.001"))[-1] == "false"


def test_gaps_are_paired_within_seeds():
    rows = [
        run_row("7", "true", 1.0),
        run_row("7", "stale", 2.0),
        run_row("8", "true", 1.0),
    ]
    assert judgement.gaps(rows) == {judgement.BASE: {"7": pytest.approx(math.log(2))}}


def test_position_contrast_is_first_half_minus_second():
    rows = [
        {"seed": "7", "targets": t, "window": "10", "position": str(i), "loss": str(v)}
        for i in range(1, 11)
        for t, v in (("true", 1.0), ("stale", math.e if i <= 5 else 1.0))
    ]
    assert judgement.position_contrast(rows) == [pytest.approx(1.0)]


def horizon_rows(seed, targets, slope, window="20"):
    return [
        {
            **{"seed": seed, "targets": targets, "window": window, "rate": "0.001"},
            **{"horizon": str(k), "mse": str(math.exp(slope) if k == 5 else 1.0)},
        }
        for k in study.HORIZONS
    ]


def references():
    return [
        row
        for seed, true, stale in (("1", 1.0, 0.0), ("2", 1.1, 0.1), ("3", 0.2, -0.1))
        for row in (
            *horizon_rows(seed, "true", true),
            *horizon_rows(seed, "stale", stale),
        )
    ]


def test_false_alarms_are_counted_by_the_limit_of_the_other_seeds():
    # Seed 3's true model (0.2) lies below the others' limit (0.55); seed 1's above
    # (0.65 + 0) / 2, seed 2's above (0.6 - 0.05) / 2.
    assert judgement.false_alarms(references()) == [False, False, True]
    alike = fingerprint.judge({5: math.exp(-0.2), 1: 1.0}, references())
    assert alike["looks_like"] == "stale"
    assert alike["false_alarms"] == "1 of 3"
    assert fingerprint.judge({5: math.e, 1: 1.0}, references())["looks_like"] == "true"


def test_the_fingerprint_reads_a_file(tmp_path, monkeypatch, capsys):
    config = study.CONFIG
    path = tmp_path / "x.model"
    weights.save_chainer(path, config, init_params(config, jax.random.key(0)))
    table = tmp_path / "reference.csv"
    rows = references()
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    table.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(fingerprint, "horizon_errors", lambda *_: np.ones(9))
    arguments = ["fingerprint.py", str(path), f"--reference={table}"]
    monkeypatch.setattr("sys.argv", arguments)
    assert fingerprint.main() == 0
    assert json.loads(capsys.readouterr().out)["slope"] == 0
    monkeypatch.setattr("sys.argv", [*arguments[:1], str(tmp_path / "none")])
    with pytest.raises(SystemExit):
        fingerprint.main()
    assert "no such file" in capsys.readouterr().err


def test_every_prediction_is_judged():
    text = json.loads((chainer_tables.RESULTS / "predictions.json").read_text())
    assert {p["id"] for p in text["predictions"]} == set(judgement.judge([], [], []))
