"""The checks that refuse a user's values."""

import numpy as np
import pytest

from prednet_jax import errors


def test_a_user_error_is_a_value_error():
    assert issubclass(errors.UserError, ValueError)


@pytest.mark.parametrize("value", [2, np.int32(7), 10])
def test_whole_accepts_integers(value):
    assert errors.whole("n", value, 2, 10) == int(value)
    assert type(errors.whole("n", value, 2, 10)) is int


@pytest.mark.parametrize("value", [1, 11, 2.0, True, "3", None, np.float32(3)])
def test_whole_refuses_everything_else(value):
    with pytest.raises(errors.UserError, match=r"^n=.*from 2 to 10$"):
        errors.whole("n", value, 2, 10)


def test_whole_without_an_upper_bound():
    assert errors.whole("n", 10**12, 2) == 10**12
    with pytest.raises(errors.UserError, match=r"n=-1: .* at least 2"):
        errors.whole("n", -1, 2)


@pytest.mark.parametrize("value", [1, 1e-30, np.float32(2)])
def test_positive_accepts(value):
    errors.positive("x", value)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), True, "1"])
def test_positive_refuses(value):
    with pytest.raises(errors.UserError, match=r"^x="):
        errors.positive("x", value)


@pytest.mark.parametrize("value", [0, 1, -0.1, float("nan"), "0.5"])
def test_open_unit_refuses(value):
    errors.open_unit("level", 0.05)
    with pytest.raises(errors.UserError, match=r"^level="):
        errors.open_unit("level", value)


@pytest.mark.parametrize("value", [1, -0.1, float("nan"), "0.5"])
def test_decay_refuses(value):
    errors.decay("b1", 0.0)
    with pytest.raises(errors.UserError, match=r"^b1=.*\[0, 1\)"):
        errors.decay("b1", value)


def test_one_of_lists_what_is_accepted():
    errors.one_of("mode", "map", ("auto", "map"))
    with pytest.raises(errors.UserError, match="mode='lap': expected one of auto, map"):
        errors.one_of("mode", "lap", ("auto", "map"))
