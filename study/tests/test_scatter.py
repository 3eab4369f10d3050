import dataclasses
import itertools
import math

import numpy as np
import pytest

from prednet_jax.errors import UserError
from prednet_jax.statistics import redraws
from study import scatter
from tests.statistics.test_redraws import drawn, groups


def test_runs_that_do_not_scatter_and_single_runs():
    same = groups(np.ones((8, 2)), np.ones((8, 2)))
    assert math.isnan(scatter.scatter_ratio(same)["ratio"])
    assert scatter.seed_spread(same) == {"sd": 0, "upper": 0}
    assert scatter.permutation_p(same) == 1
    assert scatter.redraw_interval(scatter.together(same)).observed == 0
    one = groups([[0.1]], [[0.0]])
    assert scatter.seed_spread(one)["upper"] == math.inf


def test_the_record_of_an_effect_has_two_more_intervals():
    record = scatter.effect_record(redraws.effect(drawn(1, size=0.005)))
    assert -0.02 < record["low_90"] < record["high_90"] < 0.02
    planted = drawn(0)
    treated = tuple(1.03 * losses for losses in planted.control)
    planted = dataclasses.replace(planted, treatment=treated)
    record = scatter.effect_record(redraws.effect(planted))
    assert record["raw"] == pytest.approx(0.03)
    # One seed has an estimate and no interval.
    record = scatter.effect_record(redraws.effect(groups([[0.1, 0.3]], [[0.0, 0.1]])))
    ends = [record[k] for k in ("low", "high", "low_90", "high_90", "raw_low")]
    assert ends == [None] * 5


def test_the_limit_for_two_runs_of_a_new_seed():
    logs = np.zeros((20, 2))
    logs[:, 1] = np.arange(1, 21) / 100
    limit = scatter.redraw_interval(np.exp(logs))
    # 95 % of 21 seeds is 19.95, so the widest seed is needed.
    assert limit.limit == pytest.approx(math.expm1(0.2))
    assert limit.observed == pytest.approx(math.expm1(0.19))
    assert scatter.redraw_interval(np.exp(logs[:18])).limit == math.inf
    # A seed with many runs counts as much as one with two.
    ragged = [np.exp(np.linspace(0, 1, 40)), *np.exp(logs)]
    assert scatter.redraw_interval(ragged, 0.5).limit < 0.2
    with pytest.raises(UserError, match="no seed has two runs"):
        scatter.redraw_interval([[1.0]])
    with pytest.raises(UserError, match="expected finite ones, above 0"):
        scatter.redraw_interval([[1.0, math.nan]])


def test_the_permutation_test_counts_every_relabelling():
    runs = drawn(3, n=3, runs=(2, 3), effect=0.01)
    logs = [np.log(row) for row in scatter.together(runs)]
    means = []
    for chosen in itertools.product(itertools.combinations(range(5), 2), repeat=3):
        d = [
            row[list(c)].mean() - np.delete(row, list(c)).mean()
            for row, c in zip(logs, chosen, strict=True)
        ]
        means.append(abs(np.mean(d)))
    first, second = runs.logs
    brute = np.mean(np.asarray(means) >= abs((first - second).mean()) - 1e-12)
    assert scatter.permutation_p(runs) == pytest.approx(brute)
    # Too many relabellings to count: as many are drawn, to the same end.
    many = drawn(3, n=8, effect=0.002)
    exact = redraws.effect(many).contrast.p_value
    assert scatter.permutation_p(many) == pytest.approx(exact, abs=0.15)
    assert scatter.permutation_p(many) == scatter.permutation_p(many)


def test_the_spread_over_seeds_leaves_out_what_redraws_explain():
    quiet = [scatter.seed_spread(drawn(seed, n=40)) for seed in range(40)]
    assert np.mean([found["sd"] for found in quiet]) < 0.003
    rng = np.random.default_rng(5)
    held, sds = [], []
    for seed in range(40):
        runs = drawn(seed, n=40)
        effects = np.exp(rng.normal(0, 0.02, 40))
        treated = tuple(r * e for r, e in zip(runs.treatment, effects, strict=True))
        found = scatter.seed_spread(dataclasses.replace(runs, treatment=treated))
        held.append(found["upper"] >= 0.02)
        sds.append(found["sd"])
    assert np.mean(sds) == pytest.approx(0.02, rel=0.05)
    assert np.mean(held) > 0.85


def test_the_ratio_of_the_scatters():
    runs = drawn(7, n=60)
    logs = [np.log(row) for row in runs.treatment]
    # Twice as far from the mean of the seed.
    wide = tuple(np.exp(2 * row - row.mean()) for row in logs)
    plain = scatter.scatter_ratio(runs)
    wider = scatter.scatter_ratio(dataclasses.replace(runs, treatment=wide))
    assert wider["ratio"] == pytest.approx(2 * plain["ratio"])
    assert plain["low"] < 1 < plain["high"]
    assert plain["p_value"] > 0.05
    assert wider["low"] > 1.4
    assert wider["p_value"] < 0.001
