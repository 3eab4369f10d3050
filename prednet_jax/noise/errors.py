"""What a user of noise can mend: one exception class, and the checks that raise it."""

import math
from collections.abc import Sequence
from typing import Any


class NoiseError(ValueError):
    """A value, an argument or a function that noise cannot work with."""


class UnsupportedPrimitiveError(NoiseError, NotImplementedError):
    """A higher-order primitive without a rule; see `noise.register_rule`."""


def choice(name: str, value: object, accepted: Sequence[str]) -> None:
    """Refuses what is not among `accepted`."""
    if value not in accepted:
        raise NoiseError(f"{name}={value!r}: expected one of {', '.join(accepted)}")


def integer(name: str, value: Any, low: int, high: int | None = None) -> None:
    """Refuses what is no Python integer from `low` to `high`; None: no upper bound."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or value < low or (high is not None and value > high):
        accepted = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise NoiseError(f"{name}={value!r}: expected an integer {accepted}")


def positive(name: str, value: Any) -> None:
    """Refuses what is no finite number above 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and value > 0):
        raise NoiseError(f"{name}={value!r}: expected a positive, finite number")


def unit_interval(name: str, value: object) -> None:
    """Refuses what is no number between 0 and 1, both excluded."""
    if not (isinstance(value, int | float) and 0 < value < 1):
        raise NoiseError(f"{name}={value!r}: expected a number between 0 and 1")


def flag(name: str, value: object) -> None:
    """Refuses what is neither True nor False."""
    if not isinstance(value, bool):
        raise NoiseError(f"{name}={value!r}: expected True or False")


def names(name: str, value: object) -> None:
    """Refuses what is neither None nor a non-empty tuple of non-empty texts."""
    texts = value if isinstance(value, tuple) else ()
    if value is not None and not (
        texts and all(isinstance(x, str) and x for x in texts)
    ):
        raise NoiseError(
            f"{name}={value!r}: expected None or a non-empty tuple of primitive "
            "names, such as ('add', 'mul')"
        )
