"""The exact sign-flip test against enumeration, scipy, and its own inversion."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from prednet_jax.statistics import sign_flip


def brute(d):
    patterns = list(itertools.product([-1, 1], repeat=len(d)))
    extreme = sum(
        abs(sum(s * x for s, x in zip(signs, d, strict=True))) >= abs(sum(d))
        for signs in patterns
    )
    return extreme / len(patterns)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.integers(-20, 20).map(lambda k: k / 8), min_size=1, max_size=9
    )  # eighths add exactly, so brute force needs no tolerance and ties are frequent
)
def test_equals_brute_enumeration(d):
    assert sign_flip.two_sided(np.asarray(d)) == brute(d)


def test_equals_scipy_and_survives_rounding_of_ties():
    d = np.random.default_rng(0).normal(0.4, 1, size=11)
    reference = stats.permutation_test(
        (d,), np.mean, permutation_type="samples", n_resamples=2**11
    )
    assert sign_flip.two_sided(d) == pytest.approx(reference.pvalue, abs=1e-12)
    # Tenths do not add exactly: patterns that tie in arithmetic must still tie.
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
