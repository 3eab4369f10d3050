"""The update at which the plateau is left, by hand."""

import numpy as np
import pytest

from prednet_jax.statistics import plateau_exit


def test_by_hand():
    # Trailing means of two: 3, 2, 1.5, .5; the reference's are 2 throughout.
    losses = [4.0, 2.0, 2.0, 1.0, 0.0]
    assert plateau_exit(losses, 2.0, width=2) == (4, True)
    assert plateau_exit(losses, np.full(5, 2.0), width=2) == (4, True)
    assert plateau_exit(losses, 2.0, width=2, factor=0.5) == (5, True)
    assert plateau_exit(losses, 2.0, width=5) == (5, True)


def test_a_run_that_stays_is_censored():
    assert plateau_exit([2.0] * 7, 2.0, width=3) == (7, False)


def test_one_easy_window_does_not_count():
    losses = np.full(50, 2.0)
    losses[10] = 0.5
    reference = np.full(50, 1.9)
    assert plateau_exit(losses, reference, width=20) == (50, False)
    reference[10] = 40.0  # the reference says when a window is hard
    assert plateau_exit(losses, reference, width=20) == (20, True)


def test_a_loss_that_is_not_finite_never_counts():
    losses = np.asarray([3.0, np.nan, 1.0, 1.0])
    assert plateau_exit(losses, 2.0, width=2) == (4, True)
    assert plateau_exit(losses, 2.0, width=3) == (4, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 1.0, 1, 1.0), r"shape \(0,\)"),
        (([1.0, 2.0], [1.0], 1, 1.0), r"reference has shape \(1,\)"),
        (([1.0, 2.0], 1.0, 3, 1.0), "width=3"),
        (([1.0, 2.0], 1.0, 1, 0.0), "factor=0.0"),
    ],
)
def test_bad_input_is_named(arguments, message):
    losses, reference, width, factor = arguments
    with pytest.raises(ValueError, match=message):
        plateau_exit(losses, reference, width=width, factor=factor)
