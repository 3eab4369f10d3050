"""Errors that a user can correct, and the checks of arguments that raise them.

`prednet_jax.errors` gives them to the rest of the project.
"""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from numbers import Integral, Real
from typing import Any


class UserError(ValueError):
    """A value, an argument, a function or a file that the user can correct."""


#: The name under which `prednet_jax.noise` exports it.
NoiseError = UserError


class UnsupportedPrimitiveError(NoiseError, NotImplementedError):
    """A higher-order primitive without a rule; see `noise.register_rule`."""


def open_streams() -> None:
    """Prepares the standard streams for any output.

    Streams that were closed, as by `2>&-`, are opened on the null device; otherwise the
    next file that is opened would get what is written to stderr. Characters that the
    encoding of the terminal lacks, as in the name of a file, are escaped.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))
        stream = getattr(sys, name)
        if number and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def no_backend(error: BaseException) -> str | None:
    """Returns the line of JAX's error about its environment, or None for another one.

    Such an error is about JAX_PLATFORMS, or a variable that JAX reads when imported.
    """
    first = str(error).partition("\n")[0]
    if isinstance(error, ValueError) and " for environment " in first:
        return f"{first}; expected a value that JAX takes"
    if not (isinstance(error, RuntimeError) and "initialize backend" in first):
        return None
    platforms = os.environ.get("JAX_PLATFORMS")
    setting = f"JAX_PLATFORMS={platforms}: " if platforms else ""
    return f"{setting}{first}; expected a platform of this machine"


# The largest number of float32.
_LARGEST = 3.4028234663852886e38


def expect(accepted: object, name: str, value: object, wanted: str) -> None:
    """Refuses a value that is not among the accepted ones, which the error lists."""
    if not accepted:
        raise UserError(f"{name}={shown(value)}: expected {wanted}")


def shown(value: object) -> str:
    """Returns a value as a message shows it: on one line, cut short."""
    try:
        # An array's text has several lines.
        text = " ".join(map(str.strip, repr(value).splitlines()))
    except Exception:  # An object's own, or Python's of a long number.
        long = isinstance(value, int)
        text = (
            "a number of thousands of digits" if long else f"a {type(value).__name__}"
        )
    return text if len(text) <= 300 else f"{text[:300]}..."


def one_of(name: str, value: object, accepted: Sequence[object]) -> None:
    """Refuses a value that is not among `accepted`."""
    listed = ", ".join(map(str, accepted))
    # An array would be compared element by element.
    is_accepted = isinstance(value, Hashable) and value in accepted
    expect(is_accepted, name, value, f"one of {listed}")


def check_int(name: str, value: object, low: int, high: int | None = None) -> int:
    """Returns an integer in a range; refuses other numbers, booleans and floats."""
    number = low - 1
    if _is(Integral, value):
        number = int(value)  # type: ignore[call-overload]
    if high is None and number >= 1 << 63:
        high = (1 << 63) - 1
    inside = low <= number and (high is None or number <= high)
    bounds = f"at least {low}" if high is None else f"from {low} to {high}"
    expect(inside, name, value, f"a whole number, {bounds}")
    return number


def _is(kind: type, value: object) -> bool:
    """Returns whether a value is a number, and neither a boolean nor a duration."""
    duration = getattr(getattr(value, "dtype", None), "kind", "") == "m"
    return isinstance(value, kind) and not isinstance(value, bool) and not duration


def check_draws(draws: object, least: int, name: str = "draws") -> None:
    """Refuses a number of noisy runs below `least` or above 2^20."""
    check_int(name, draws, least, 1 << 20)


def check_function(fn: object, name: str = "fn") -> None:
    """Refuses what cannot be called."""
    expect(callable(fn), name, fn, "a function of arrays")


def positive(name: str, value: object) -> None:
    """Refuses a value that is not a number above 0 that float32 holds."""
    wanted = "a finite number above 0, up to 3.4e38"
    number(name, value, lambda x: 0 < x <= _LARGEST, wanted)


def not_negative(name: str, value: object) -> None:
    """Refuses a value that is not a number of at least 0 that float32 holds."""
    wanted = "a finite number, 0 or more, up to 3.4e38"
    number(name, value, lambda x: 0 <= x <= _LARGEST, wanted)


def open_unit(name: str, value: object) -> None:
    """Refuses a value that is not a number between 0 and 1, both excluded."""
    number(name, value, lambda x: 0 < x < 1, "a number between 0 and 1")


def decay(name: str, value: object) -> None:
    """Refuses a value that is not in [0, 1), the range of a decay rate or momentum."""
    number(name, value, lambda x: 0 <= x < 1, "a number in [0, 1)")


def number(name: str, value: object, holds: Callable[[Any], bool], wanted: str) -> None:
    """Refuses a value that is not a real number for which `holds` is true.

    NumPy's scalars count, booleans do not.
    """
    real = _is(Real, value)
    # A bound may be more than a narrow type of NumPy holds.
    plain = value.item() if real and hasattr(value, "item") else value
    expect(real and holds(plain), name, value, wanted)


def flag(name: str, value: object) -> None:
    """Refuses a value that is not True or False."""
    expect(isinstance(value, bool), name, value, "True or False")


def text(name: str, value: object, wanted: str) -> None:
    """Refuses a value that is not a non-empty string."""
    expect(isinstance(value, str) and value, name, value, wanted)


def texts(name: str, value: object, wanted: str) -> tuple[str, ...] | None:
    """Returns None or several strings as a tuple, and refuses any other value."""
    entries: tuple | None = None
    if isinstance(value, Iterable) and not isinstance(value, str):
        with contextlib.suppress(TypeError):  # An array of no axes.
            entries = tuple(value)
    strings = entries is not None and all(isinstance(x, str) for x in entries)
    expect(value is None or strings, name, value, wanted)
    return entries


def names(name: str, value: object) -> None:
    """Refuses a value that is neither None nor a tuple of non-empty strings."""
    texts = isinstance(value, tuple) and all(isinstance(x, str) and x for x in value)
    wanted = "None or a non-empty tuple of primitive names, such as ('add', 'mul')"
    expect(value is None or (texts and value), name, value, wanted)
