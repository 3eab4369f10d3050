"""The margin is a fraction, fixed beforehand, of the control's loss."""

import numpy as np
import pytest

from prednet_jax.statistics import MARGIN_FRACTION, margin


def test_a_fraction_of_the_mean_over_seeds():
    found = margin([[1.0, 3.0], [3.0, 5.0]], 0.1)
    assert found.value == pytest.approx(0.3)
    assert (found.control_mean, found.n_control) == (3.0, 2)
    assert "10 % of the control's mean loss" in found.as_dict()["origin"]
    assert margin([2.0]).value == pytest.approx(2 * MARGIN_FRACTION)


@pytest.mark.parametrize(
    ("control", "fraction", "message"),
    [
        ([1.0], 0.0, "fraction=0.0: expected"),
        ([0.0, 0.0], 0.02, "mean loss of the control=0.0"),
        ([1.0, np.inf], 0.02, "expected finite values"),
    ],
)
def test_bad_input_is_named(control, fraction, message):
    with pytest.raises(ValueError, match=message):
        margin(control, fraction)
