import dataclasses
import math

import numpy as np
import pytest

from prednet_jax import records
from prednet_jax.statistics import redraws, scatter
from tests.processes import ROOT

STUDY = ROOT / "results" / "study"
FIXED = redraws.Group(
    "fixed_orders", ("float32", "convolution_im2col", "reduction_order_run")
)


def groups(treatment, control):
    """`Redraws` of log losses, one row per seed."""
    return redraws.Redraws(
        seeds=tuple(str(seed) for seed in range(len(treatment))),
        treatment=tuple(np.exp(np.asarray(row, float)) for row in treatment),
        control=tuple(np.exp(np.asarray(row, float)) for row in control),
    )


def drawn(seed, n=12, runs=(4, 4), effect=0.0, size=0.01):
    """Normal log losses with an effect; seeds differ far more than runs."""
    rng = np.random.default_rng(seed)
    level = rng.normal(-6, 0.3, (n, 1))
    made = [level + size * rng.normal(size=(n, count)) for count in runs]
    return groups(made[0] + effect, made[1])


def test_part_c_of_the_study():
    losses = records.read_json(STUDY / "verdict.json")["losses"]["prednet"]
    found = redraws.collect_redraws(losses, "reduction_order", FIXED)
    sizes = len(found.seeds), len(found.treatment[0]), len(found.control[0])
    assert sizes == (40, 2, 4)
    effect = redraws.effect(found)
    shown = [effect.estimate, effect.low, effect.high]
    # A computation of its own, with NumPy alone, gave the same.
    assert [round(100 * value, 2) for value in shown] == [0.17, -0.37, 0.72]
    assert round(100 * found.scatter, 2) == 2.23
    assert redraws.answer(effect, 0.39) == redraws.NO_EFFECT
    assert effect.contrast.tost_p < 1e-6


def test_the_control_group_is_every_fixed_order_and_each_run_counts_alike():
    arms = {
        "float32": {"2": [1.0], "10": [2.0]},
        "reduction_order": {"10": [6.0], "2": [3.0], "7": [1.0]},
        "reduction_order_run": {"2": [1.0, math.e**3], "10": [2.0, 2.0]},
        "convolution_im2col": {"2": [1.0]},
        "stale_targets": {"2": [9.0], "10": [9.0]},
        "float64": {"2": [9.0]},
    }
    found = redraws.collect_redraws(arms, "reduction_order", FIXED)
    assert found.seeds == ("2", "10")
    assert [len(runs) for runs in found.control] == [4, 3]
    np.testing.assert_allclose(found.logs[1], [0.75, math.log(2)])
    alone = redraws.collect_redraws(arms, "reduction_order_run", "float32")
    assert [len(runs) for runs in alone.control] == [1, 1]
    # A treatment that is a fixed order itself is no part of its control.
    assert len(redraws.collect_redraws(arms, "float32", FIXED).control[0]) == 3


def test_a_planted_effect_is_found_exactly():
    runs = drawn(0)
    logs = [np.log(row) for row in runs.control]
    planted = groups([row + math.log(1.03) for row in logs], logs)
    effect = redraws.effect(planted)
    ends = (effect.estimate, effect.low, effect.high)
    assert ends == pytest.approx([0.03] * 3)
    assert redraws.answer(effect, 0.5) == redraws.RAISES
    assert redraws.word(redraws.RAISES) == "refuted"
    swapped = {"treatment": runs.control, "control": planted.treatment}
    down = redraws.effect(dataclasses.replace(planted, **swapped))
    assert redraws.answer(down, 0.5) == redraws.LOWERS
    assert redraws.word(redraws.LOWERS) == "supported"


def test_no_effect_needs_an_interval_inside_the_margin():
    small, large = (redraws.effect(drawn(1, size=size)) for size in (0.005, 0.08))
    assert redraws.answer(small, 0.5) == redraws.NO_EFFECT
    # Runs that did not separate answer nothing.
    for separation in (None, 0.099, math.nan):
        assert redraws.answer(small, separation) == redraws.CANNOT_TELL
    assert redraws.word(redraws.NO_EFFECT) == "refuted"
    assert redraws.answer(large, 0.5) == redraws.CANNOT_TELL
    assert redraws.word(redraws.CANNOT_TELL) == "inconclusive"
    # Clear of 0, but not beyond the margin.
    above = redraws.effect(drawn(1, n=20, effect=0.022, size=0.01))
    assert above.low > 0
    assert redraws.answer(above, 0.5) == redraws.CANNOT_TELL


def test_runs_that_do_not_scatter_answer_nothing():
    same = groups(np.ones((8, 2)), np.ones((8, 2)))
    effect = redraws.effect(same)
    assert (same.scatter, effect.estimate, effect.low, effect.high) == (0, 0, 0, 0)
    assert redraws.answer(effect, 0.5) == redraws.CANNOT_TELL

    # One seed has an estimate and no interval.
    effect = redraws.effect(groups([[0.1, 0.3]], [[0.0, 0.1]]))
    assert effect.estimate == pytest.approx(math.expm1(0.15))
    assert (effect.measured.low, effect.measured.high) == (None, None)
    one = groups([[0.1]], [[0.0]])
    assert math.isnan(one.scatter)
    assert redraws.answer(redraws.effect(one), 0.5) == redraws.CANNOT_TELL
    assert scatter.predicted(one, seeds=3, treatment=1, control=1) == (-1, math.inf)


def test_a_diverged_run_leaves_its_seed_out_and_is_counted():
    arms = {
        "float32": {"1": [1.0], "2": [1.0], "3": [1.0]},
        "reduction_order": {"1": [2.0, 2.0], "2": [2.0, None], "3": [math.nan, 1.0]},
    }
    found = redraws.collect_redraws(arms, "reduction_order", FIXED)
    assert (found.seeds, found.excluded) == (("1",), ("2", "3"))


def test_a_small_repetition_falls_where_it_is_predicted():
    study = drawn(11, n=40, effect=0.03)
    low, high = scatter.predicted(study, seeds=3, treatment=2, control=2)
    first, second = study.logs
    assert low < math.expm1((first - second).mean()) < high
    # The standard error of three seeds with two runs in each group, over 40 seeds'.
    width = 2 * 1.96 * 0.01 / math.sqrt(3)
    assert math.log1p(high) - math.log1p(low) == pytest.approx(width, rel=0.15)
    wider = scatter.predicted(study, seeds=3, treatment=1, control=1)
    assert wider[1] - wider[0] > 1.2 * (high - low)
    few = [drawn(seed, n=3, runs=(2, 2), effect=0.03) for seed in range(100, 200)]
    again = [redraws.effect(runs).estimate for runs in few]
    assert np.mean([low <= value <= high for value in again]) > 0.88
    # More runs than the study has are drawn with replacement.
    assert scatter.predicted(study, seeds=1, treatment=9, control=1)[0] < high


def test_the_simulated_studies_keep_what_the_rule_promises():
    """The wrong answer at most in 5 % of the studies, up to their binomial error."""
    path = ROOT / "results" / "statistics/simulated_studies.csv"
    for row in records.read_csv(path):
        answers = (redraws.LOWERS, redraws.NO_EFFECT, redraws.RAISES)
        assert max(float(row[a]) for a in answers if a != row["right"]) < 0.0605
        assert float(row["effect"]) or float(row[redraws.NO_EFFECT]) >= 0.9
        assert float(row["coverage"]) > 0.935
