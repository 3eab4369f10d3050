"""Defines the error for values that a user can correct, and its checks."""

import math
from collections.abc import Sequence
from typing import Any


class NoiseError(ValueError):
    """A value, an argument or a function that noise cannot work with."""


class UnsupportedPrimitiveError(NoiseError, NotImplementedError):
    """A higher-order primitive without a rule; see `noise.register_rule`."""


def expect(accepted: Any, name: str, value: object, what: str) -> None:
    """Raises a NoiseError with the allowed values unless `accepted` is true."""
    if not accepted:
        raise NoiseError(f"{name}={value!r}: expected {what}")


def choice(name: str, value: object, accepted: Sequence[str]) -> None:
    """Raises a NoiseError for a value that is not one of `accepted`."""
    expect(value in accepted, name, value, f"one of {', '.join(accepted)}")


def integer(name: str, value: Any, low: int, high: int | None = None) -> None:
    """Raises a NoiseError unless `value` is an int from `low` to `high`, if given."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if high is None and is_integer and value >= 1 << 63:
        high = (1 << 63) - 1
    inside = is_integer and low <= value and (high is None or value <= high)
    bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
    expect(inside, name, value, f"an integer {bounds}")


def positive(name: str, value: Any) -> None:
    """Raises a NoiseError unless `value` is a finite number above 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    inside = is_number and math.isfinite(value) and value > 0
    expect(inside, name, value, "a positive, finite number")


def flag(name: str, value: object) -> None:
    """Raises a NoiseError unless `value` is True or False."""
    expect(isinstance(value, bool), name, value, "True or False")


def text(name: str, value: object, what: str) -> None:
    """Raises a NoiseError unless `value` is a non-empty string."""
    expect(isinstance(value, str) and value, name, value, what)


def names(name: str, value: object) -> None:
    """Raises a NoiseError unless `value` is None or a tuple of non-empty strings."""
    texts = isinstance(value, tuple) and all(isinstance(x, str) and x for x in value)
    what = "None or a non-empty tuple of primitive names, such as ('add', 'mul')"
    expect(value is None or (texts and value), name, value, what)
