"""How numbers are written."""

import math

import pytest

from prednet_jax.report import numbers


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.030582, 3, "0.0306"),
        (0.9996, 3, "1.00"),
        (9.996e-5, 3, "1.00e-04"),
        (-1.234e-5, 2, "-1.2e-05"),
        (431.7, 2, "432"),
        (123456.0, 3, "1.23e+05"),
        (0.0, 3, "0"),
        (-0.0, 3, "0"),
        (math.inf, 3, "inf"),
        (-math.inf, 3, "-inf"),
        (None, 3, "-"),
        (math.nan, 3, "-"),
    ],
)
def test_significant(value, digits, text):
    assert numbers.significant(value, digits) == text


def test_signs_and_percent():
    assert numbers.significant(0.5, 2, sign=True) == "+0.50"
    assert numbers.percent(0.3213) == "+32 %"
    assert numbers.percent(None) == "-"
    assert numbers.interval(-1.2e-5, 3.4e-5) == "[-1.2e-05, +3.4e-05]"
    assert numbers.interval(None, 1.0) == "-"
    found = [numbers.probability(p) for p in (1.0, 0.0, 2 / 2**10, None)]
    assert found == ["1", "0", "0.0020", "-"]


def test_typeset_escapes_and_sets_numbers():
    assert numbers.typeset("p<1.2e-05 & seed-1") == (
        "p&lt;1.2×10<sup>−5</sup> &amp; seed-1"
    )
    assert numbers.typeset("[-2, +3.5e+04]") == "[−2, +3.5×10<sup>4</sup>]"
    assert numbers.typeset("threads_1 1e 0.10.2") == "threads_1 1e 0.10.2"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((-0.167, -0.82, 0.486), "-0.17 % [-0.82, +0.49]"),
        ((31.2, 14.4, 69.0), "+31 % [+14, +69]"),
        ((0.0, 0.0, 0.0), "0 % [0, 0]"),
        ((-1.1, -3.0, -0.012), "-1.1 % [-3.0, -0.012]"),
        ((1.3e5, 1e4, 3e5), "+1.3e+05 % [+10000, +3.0e+05]"),
        ((1.234, -math.inf, math.inf), "+1.2 %"),
        ((1.234, None, None), "+1.2 %"),
    ],
)
def test_the_ends_of_a_change_are_zero_only_if_they_are(values, text):
    assert numbers.change(*values) == text
