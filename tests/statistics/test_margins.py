"""The margin comes from the pilot and stays as recorded."""

import numpy as np
import pytest

from prednet_jax.statistics import Margin, margin


def test_smaller_of_the_two_limits():
    control = np.array([1.0, 2.0, 3.0])  # sd 1
    tight = margin(control, control + 1.0)
    assert tight.value == pytest.approx(0.2)
    assert "fifth of the stale-target gap" in tight.origin
    loose = margin(control, control + 100.0)
    assert loose.value == pytest.approx(0.5)
    assert "half the between-seed" in loose.origin
    assert (loose.n_control, loose.n_stale) == (3, 3)


def test_replicates_do_not_count_as_seeds():
    control = np.array([[0.0, 2.0], [1.0, 3.0], [2.0, 4.0]])
    assert margin(control, [52.0]).half_seed_sd == pytest.approx(0.5)


def test_the_spread_alone_where_stale_targets_cannot_move_the_network():
    found = margin([1.0, 2.0, 3.0], None)
    assert found.value == found.half_seed_sd == 0.5
    assert found.fifth_stale_gap is None
    assert found.n_stale == 0
    assert "stale targets do not move this network" in found.origin


@pytest.mark.parametrize("value", [0.0, -1.0, np.inf, np.nan])
def test_a_margin_is_finite_and_above_zero(value):
    with pytest.raises(ValueError, match=f"margin={value}; a finite number above 0"):
        Margin(
            value=value,
            half_seed_sd=1.0,
            fifth_stale_gap=1.0,
            n_control=2,
            n_stale=2,
            origin="",
        )


@pytest.mark.parametrize(
    ("control", "stale", "message"),
    [
        ([1.0], [2.0], "at least 2"),
        ([1.0, 1.0], [2.0], "sd of 0.0"),
        ([1.0, 3.0], [2.0], "gap of 0.0"),
        ([1.0, 1.0], None, "sd of 0.0"),
        ([1.0, np.inf], None, "finite values are needed"),
    ],
)
def test_a_pilot_that_cannot_fix_a_margin(control, stale, message):
    with pytest.raises(ValueError, match=message):
        margin(control, stale)
