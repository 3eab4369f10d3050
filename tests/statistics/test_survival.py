"""Censored escape times: the log-rank test and survival curves, by hand."""

import numpy as np
import pytest

from prednet_jax.statistics import logrank, survival_curve


def test_logrank_by_hand():
    # Escapes at 1 and 3 against 2 and a run censored at 4; at t = 1, 2, 3 the expected
    # escapes of the first group are 2/4, 1/3, 1/2, the variances 1/4, 2/9, 1/4.
    found = logrank(
        [1, 3], [2, 4], first_escaped=[True, True], second_escaped=[True, False]
    )
    observed_minus_expected = 2 - (1 / 2 + 1 / 3 + 1 / 2)
    z = observed_minus_expected / np.sqrt(1 / 4 + 2 / 9 + 1 / 4)
    assert abs(found.statistic) == pytest.approx(z, rel=1e-12)


def test_determinism_that_stays_differs_from_noise_that_leaves():
    found = logrank(
        np.full(8, 300),
        np.arange(50, 58),
        first_escaped=np.zeros(8, bool),
        second_escaped=np.ones(8, bool),
    )
    assert found.p_value < 1e-3


def test_groups_that_cannot_differ():
    stays = np.zeros(3, bool)
    leaves = np.ones(3, bool)
    nobody = logrank([9] * 3, [9] * 3, first_escaped=stays, second_escaped=stays)
    assert nobody.p_value == 1.0
    assert "no escape" in nobody.method
    together = logrank([9] * 3, [9] * 3, first_escaped=leaves, second_escaped=leaves)
    assert together.p_value == 1.0
    assert "same step" in together.method


def test_survival_curve_keeps_the_censored():
    times, surviving = survival_curve([5, 6, 7, 7], [True, True, False, False])
    np.testing.assert_array_equal(times, [5, 6, 7])
    np.testing.assert_allclose(surviving, [0.75, 0.5, 0.5])


@pytest.mark.parametrize(
    ("times", "escaped"), [([], []), ([1, 2], [True]), ([0, 1], [True, True])]
)
def test_bad_times_are_named(times, escaped):
    with pytest.raises(ValueError, match="times"):
        survival_curve(times, escaped)
