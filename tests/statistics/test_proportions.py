"""Bounds on shares against scipy, published figures and simulation."""

import numpy as np
import pytest
from scipy import stats

from prednet_jax.statistics import (
    excess_seeds,
    excess_upper,
    share_lower,
    share_upper,
)


@pytest.mark.parametrize(("count", "n"), [(0, 10), (3, 17), (10, 10), (1, 40)])
def test_equals_scipy(count, n):
    upper = stats.binomtest(count, n, alternative="less").proportion_ci(0.95)
    lower = stats.binomtest(count, n, alternative="greater").proportion_ci(0.95)
    assert share_upper(count, n) == pytest.approx(upper.high, rel=1e-9)
    assert share_lower(count, n) == pytest.approx(lower.low, rel=1e-9, abs=1e-12)


def test_seeds_for_a_bound():
    assert share_upper(0, 10) == pytest.approx(1 - 0.05**0.1)
    assert [excess_seeds(0.1, gained=k) for k in range(3)] == [29, 46, 61]
    assert excess_seeds(0.05) == 59
    assert excess_seeds(0.11) == 26


def test_the_excess_without_losers_is_the_share():
    for gained in range(5):
        expected = share_upper(gained, 40)
        assert excess_upper(gained, 0, 40) == pytest.approx(expected)


def test_losers_lower_the_excess_and_widen_it():
    assert excess_upper(4, 4, 40) < excess_upper(4, 0, 40)
    assert excess_upper(4, 4, 40) > excess_upper(0, 0, 40)


@pytest.mark.parametrize(
    ("gain", "lose"), [(0.1, 0.1), (0.3, 0.3), (0.1, 0.0), (0.05, 0.2), (0.02, 0.02)]
)
def test_the_bound_holds_as_often_as_it_says(gain, lose):
    rng = np.random.default_rng(0)
    counts = rng.multinomial(40, [gain, lose, 1 - gain - lose], 2000)
    bounds = [excess_upper(int(g), int(b), 40) for g, b, _ in counts]
    assert np.mean(np.asarray(bounds) >= gain - lose) >= 0.94


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: share_upper(3, 2), "count=3"),
        (lambda: share_upper(0, 0), "n=0"),
        (lambda: share_lower(0, 2, alpha=1.0), "alpha=1.0"),
        (lambda: excess_seeds(0.0), "bound=0.0"),
        (lambda: excess_upper(2, 2, 3), "count=4"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
