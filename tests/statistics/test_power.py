"""Power and seed counts against a published-style table and simulation."""

import numpy as np
import pytest
from statsmodels.stats.power import TTestPower

from prednet_jax.statistics import (
    sign_flip,
    sign_flip_floor,
    sign_flip_power,
    sign_flip_seeds,
    tost_power,
    tost_seeds,
)


@pytest.mark.parametrize(
    ("effect", "eighty", "ninety", "equivalence"),
    [(0.3, 90, 119, 122), (0.5, 34, 44, 45), (0.8, 15, 19, 19), (1.0, 10, 13, 13)],
)
def test_table_of_seeds(effect, eighty, ninety, equivalence):
    assert sign_flip_seeds(effect, power=0.8) == eighty
    assert sign_flip_seeds(-effect, power=0.9) == ninety
    assert tost_seeds(margin=effect, sd=1.0) == equivalence
    assert tost_seeds(margin=effect * 3e-4, sd=3e-4) == equivalence


def test_floor_of_the_sign_flip_test():
    assert sign_flip_floor() == 6
    assert sign_flip_floor(contrasts=4) == 8
    assert sign_flip_power(5, 100.0) == 0.0
    assert sign_flip_seeds(100.0) == 6


@pytest.mark.parametrize(("n", "effect"), [(6, 2.0), (7, 1.5), (8, 1.2), (10, 1.0)])
def test_sign_flip_power_by_simulation(n, effect):
    rng = np.random.default_rng(0)
    d = rng.normal(effect, 1, (2000, n))
    rejected = np.mean([sign_flip.two_sided(row) < 0.05 for row in d])
    # Three binomial standard deviations (0.026) and 0.01 for the t approximation.
    assert rejected == pytest.approx(sign_flip_power(n, effect), abs=0.036)


def test_six_seeds_are_weaker_than_the_formula():
    assert sign_flip_power(6, 2.0) == pytest.approx(0.87, abs=0.01)
    assert TTestPower().power(2.0, 6, 0.05) > 0.96


@pytest.mark.parametrize(
    ("n", "margin", "true_difference"),
    [(5, 2.0, 0.0), (7, 1.5, 0.0), (8, 1.3, 0.3), (12, 1.0, 0.0), (12, 1.0, 0.4)],
)
def test_tost_power_by_simulation(n, margin, true_difference):
    rng = np.random.default_rng(1)
    d = rng.normal(true_difference, 1.0, (2000, n))
    passed = np.mean([sign_flip.equivalence(row, margin) < 0.05 for row in d])
    expected = tost_power(n, margin=margin, sd=1.0, true_difference=true_difference)
    assert passed == pytest.approx(expected, abs=0.036)


def test_tost_power_limits():
    assert tost_power(4, margin=1.0, sd=0.01) == 0.0  # 1 / 2^4 is above .05
    assert tost_power(5, margin=1.0, sd=0.01) == 1.0
    assert tost_power(8, margin=1.0, sd=0.0) == 1.0
    assert tost_power(8, margin=1.0, sd=0.0, true_difference=2.0) == 0.0
    assert tost_power(30, margin=0.01, sd=1.0) < 0.01
    # Beyond the search, the normal limit takes over without a step.
    assert tost_seeds(margin=1e-9, sd=1.0) == pytest.approx(1.0822e19, rel=1e-3)
    # At the edge of the margin the power is the level.
    edge = tost_power(400, margin=1.0, sd=1.0, true_difference=1.0)
    assert edge == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tost_power(0, margin=1.0, sd=1.0), "n=0"),
        (lambda: tost_power(5, margin=0.0, sd=1.0), "margin=0.0"),
        (lambda: tost_power(5, margin=1.0, sd=-1.0), "sd=-1.0"),
        (lambda: sign_flip_seeds(0.0), "effect.=0.0"),
        (lambda: sign_flip_power(8, 1.0, alpha=2.0), "alpha=2.0"),
        (lambda: sign_flip_floor(contrasts=0), "contrasts=0"),
        (lambda: sign_flip_seeds(1.0, power=1.0), "power=1.0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
