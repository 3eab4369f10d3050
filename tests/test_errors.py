import numpy as np
import pytest

from prednet_jax import errors

NAN, INFINITY = float("nan"), float("inf")
# By check: what it accepts, what it refuses, and words of the refusal.
CHECKS = {
    errors.positive: ([1, 1e-30, np.float32(2)], [0, -1.0, NAN, INFINITY, True], "0"),
    errors.not_negative: ([0, 2.5], [-1.0, NAN, INFINITY, "1"], "0 or more"),
    errors.open_unit: ([0.05], [0, 1, -0.1, NAN, "0.5"], "between 0 and 1"),
    errors.decay: ([0.0], [1, -0.1, NAN, "0.5"], r"\[0, 1\)"),
}


@pytest.mark.parametrize("check", CHECKS)
def test_a_number_is_accepted_or_named(check):
    accepted, refused, words = CHECKS[check]
    for value in accepted:
        check("x", value)
    for value in refused:
        with pytest.raises(errors.UserError, match=rf"^x={value!r}: expected.*{words}"):
            check("x", value)


def test_whole_accepts_integers_and_refuses_everything_else():
    for value in (2, np.int32(7), 10):
        assert type(errors.whole("n", value, 2, 10)) is int
    assert errors.whole("n", 10**12, 2) == 10**12
    for value in (1, 11, 2.0, True, "3", None, np.float32(3)):
        with pytest.raises(ValueError, match=r"^n=.*from 2 to 10$"):
            errors.whole("n", value, 2, 10)


def test_one_of_lists_what_is_accepted():
    errors.one_of("mode", "map", ("auto", "map"))
    with pytest.raises(errors.UserError, match="mode='lap': expected one of auto, map"):
        errors.one_of("mode", "lap", ("auto", "map"))
