import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from prednet_jax import records
from prednet_jax.statistics import margin_from_losses, pair_by_seed, paired, sign_flip
from prednet_jax.statistics.contrasts import holm


def test_fields_by_hand():
    control = np.full(6, 10.0)
    d = np.asarray([-3.0, -0.5, 0.0, 0.25, 1.0, 2.0])
    result = paired(control + d, control, margin=0.75)
    assert result.mean_difference == pytest.approx(d.mean())
    assert result.max_abs_difference == 3.0
    assert (result.treatment_mean, result.control_mean) == (control[0] + d.mean(), 10)
    # Six seeds: all of them but one pattern in 64 on either side, the extreme seeds.
    assert (result.ci_low, result.ci_high) == pytest.approx((-3, 2), abs=1e-7)
    assert result.p_value == sign_flip.two_sided(d)
    assert result.tost_p == sign_flip.equivalence(d, -0.75, 0.75)
    wider = paired(control + d, control, margin=0.75, below=2)
    assert wider.tost_p == sign_flip.equivalence(d, -2, 0.75)
    # Draws are averaged inside the seed.
    draws = (control + d)[:, None] + np.array([-1.0, 1.0])
    assert paired(draws, control, margin=0.75) == result
    assert (result.n, result.p_holm) == (6, None)


def test_differences_that_are_nearly_constant():
    """The search for the end of the interval began above it."""
    control = np.linspace(1, 1.5, 6)
    found = paired(control + 0.1 + 1e-8 * np.arange(6), control, margin=0.02)
    assert found.ci_low <= 0.1 + 1e-12
    assert found.ci_high >= 0.1 + 5e-8 - 1e-12
    assert sign_flip.interval(1 + 1e-9 * np.arange(5), 0.9)[0] == pytest.approx(1)


def test_equal_arms():
    result = paired(np.arange(8.0), np.arange(8.0), margin=0.1)
    assert (result.mean_difference, result.ci_low, result.ci_high) == (0, 0, 0)
    assert (result.p_value, result.tost_p) == (1, 1 / 2**8)
    assert (result.verdict, result.max_abs_difference) == ("equivalent", 0)
    assert paired([1.0 + 1e-15], [1.0], margin=0.1).max_abs_difference > 0


def test_constant_differences_up_to_rounding_are_one_value():
    control = np.array([0.1, 0.7, 1.3, 2.9, 3.1, 4.7, 5.9, 6.1])
    result = paired(control + 0.3, control, margin=0.1)
    assert result.ci_low == result.ci_high == result.mean_difference
    assert (result.p_value, result.tost_p) == (2 / 2**8, 1)
    assert result.verdict == "higher loss"

    # One seed claims nothing.
    result = paired([1.0], [2.0], margin=0.1)
    assert (result.p_value, result.verdict) == (1, "inconclusive")
    record = json.loads(records.json_bytes(result.to_json()))
    assert record["ci_low"] is None


def test_holm_equals_statsmodels_and_decides_the_word():
    rng = np.random.default_rng(3)
    control = rng.normal(size=(4, 8))
    effects = np.array([2.0, 0.0, 1.0, 3.0])
    treatment = control + effects[:, None] + 0.5 * rng.normal(size=(4, 8))
    pairs = zip(treatment, control, strict=True)
    results = [paired(t, c, margin=0.01) for t, c in pairs]
    library = multipletests([r.p_value for r in results], method="holm")[1]
    assert [r.p_holm for r in holm(results)] == pytest.approx(library, rel=1e-12)
    assert results[0].p_holm is None
    assert holm([]) == []
    # p = 2/64 is above .05 after correction over two.
    alone = paired(-np.linspace(1, 2, 6), np.zeros(6), margin=0.1)
    assert alone.verdict == "lower loss"
    assert [r.verdict for r in holm([alone, alone])] == ["inconclusive"] * 2


def test_seeds_are_matched_in_numerical_order_and_diverged_ones_left_out():
    arms = {
        "a": {"10": [1.0], "9": [2.0], "3": [None, 1.0], "1": [0.0]},
        "b": {"9": [4.0], "10": [5.0], "3": [1.0], "1": [float("nan")]},
    }
    found = pair_by_seed(arms, "a", "b")
    assert found.seeds == ("9", "10")
    assert found.excluded == ("1", "3")
    np.testing.assert_array_equal(found.treatment - found.control, [-2.0, -4.0])


def test_the_margin_is_a_fraction_of_the_mean_over_the_seeds():
    losses = {"a": {"1": [1.0, 3.0], "2": [3.0, 5.0]}}
    assert margin_from_losses(losses, "a").value == pytest.approx(0.06)
    found = margin_from_losses(losses, "a", 0.1)
    assert found.value == pytest.approx(0.3)
    assert (found.control_mean, found.n_control) == (3, 2)
    assert "10 % of the control's mean loss" in found.origin


def brute(d):
    sums = np.array(list(itertools.product([-1, 1], repeat=len(d)))) @ np.array(d)
    return np.mean(np.abs(sums) >= abs(sum(d)))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.integers(-20, 20).map(lambda k: k / 8), min_size=1, max_size=9
    )  # eighths add exactly, so brute force needs no tolerance and ties are frequent
)
def test_equals_brute_enumeration(d):
    assert sign_flip.two_sided(np.asarray(d)) == brute(d)


def test_ties_survive_rounding():
    """Tenths do not add exactly: patterns that tie in arithmetic must still tie."""
    tenths = np.asarray([1, 2, 3, -1, -2, 4, 5, -3]) / 10
    assert sign_flip.two_sided(tenths) == brute((10 * tenths).round().tolist())


def test_forty_seeds_are_exact():
    # Two values: the number of patterns with a sum as large is a binomial tail.
    d = np.asarray([1.0] * 28 + [-1.0] * 12)
    expected = 2 * stats.binom.sf(27, 40, 0.5)
    assert sign_flip.two_sided(d) == pytest.approx(expected, rel=1e-12)
    assert sign_flip.two_sided(np.linspace(1, 2, 40)) == 2 / 2**40


def test_the_grid_agrees_and_is_never_too_small():
    rng = np.random.default_rng(2)
    for shift in (0.0, 0.4, 1.0):
        d = rng.normal(shift, 1, 24)
        exact = sign_flip.upper_tail(d, 0.0)
        grid = sign_flip._on_grid(d)
        assert exact <= grid <= exact * 1.005
    d = np.asarray([1.0] * 40 + [-1.0] * 20)
    expected = 2 * stats.binom.sf(39, 60, 0.5)
    assert sign_flip.two_sided(d) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("n", [6, 9, 14])
def test_interval_ends_are_order_statistics_of_subset_means(n):
    d = np.random.default_rng(n).standard_t(2, n)
    codes = (np.arange(1, 2**n)[:, None] >> np.arange(n)) & 1
    means = np.sort(codes @ d / codes.sum(axis=1))
    rank = math.ceil(0.025 * 2**n) - 1
    found = sign_flip.interval(d, 0.95)
    assert found == pytest.approx((means[rank - 1], means[-rank]), abs=1e-7)


def test_interval_and_tests_agree():
    d = np.random.default_rng(3).normal(0.5, 1, 13)
    low, high = sign_flip.interval(d, 0.95)
    for end, outside in ((low, -1e-6), (high, 1e-6)):
        assert sign_flip.two_sided(d - end - outside) < 0.05
        assert sign_flip.two_sided(d - end + outside) >= 0.05
    # Equivalence at level .05 is the 90 % interval inside the margin.
    reach = max(np.abs(sign_flip.interval(d, 0.9)))
    assert sign_flip.equivalence(d, -reach - 1e-6, reach + 1e-6) < 0.05
    assert sign_flip.equivalence(d, -reach + 1e-6, reach - 1e-6) >= 0.05


def test_too_few_seeds_have_no_interval_and_an_end_at_zero_is_zero():
    assert sign_flip.interval(np.arange(5.0), 0.95) == (-math.inf, math.inf)
    assert np.isfinite(sign_flip.interval(np.arange(5.0), 0.9)).all()
    assert sign_flip.interval(np.zeros(8), 0.95) == (0.0, 0.0)
    d = np.zeros(20)
    d[:3] = -2.0  # whole numbers, most of them 0: the upper end is exactly 0
    low, high = sign_flip.interval(d, 0.95)
    assert low < 0
    assert high == 0.0
