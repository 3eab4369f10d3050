"""Power and numbers of seeds, compared with a table and with simulation."""

import numpy as np
import pytest

from prednet_jax.statistics import (
    sign_flip,
    sign_flip_floor,
    tost_power,
    tost_seeds,
)


@pytest.mark.parametrize(
    ("margin", "seeds"), [(0.3, 122), (0.5, 45), (0.8, 19), (1.0, 13)]
)
def test_table_of_seeds(margin, seeds):
    assert tost_seeds(margin=margin, sd=1.0) == seeds
    assert tost_seeds(margin=margin * 3e-4, sd=3e-4) == seeds


def test_floor_of_the_sign_flip_test():
    assert sign_flip_floor() == 6
    assert sign_flip_floor(contrasts=4) == 8


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
        (lambda: tost_power(8, margin=1.0, sd=1.0, alpha=2.0), "alpha=2.0"),
        (lambda: sign_flip_floor(contrasts=0), "contrasts=0"),
        (lambda: tost_seeds(margin=1.0, sd=1.0, power=1.0), "power=1.0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
