"""What a user can mend: one exception class, and the checks that raise it.

A script prints a `UserError` as one line and ends with status 2. A `RunError` is one
line too, with status 1: the run, not the command, went wrong. Every other exception is
a fault of the program: it keeps its traceback and ends with status 1. Libraries raise
subclasses (`DataError`, `RecordError`) where a caller may want to tell them apart.

Every check quotes the name and the value that it received and says what is accepted.
"""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any


class UserError(ValueError):
    """A value, file or setting that the user gave and can mend."""


class RunError(RuntimeError):
    """A run that cannot go on, though what it was asked for is in order."""


def whole(name: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    """A whole number from `minimum` to `maximum`; None: no upper bound.

    Python's and NumPy's integers are accepted, booleans and floats are not.

    Raises:
        UserError: the value is no whole number, or lies outside the range.
    """
    integral = isinstance(value, Integral) and not isinstance(value, bool)
    number = int(value) if integral else minimum - 1
    if number < minimum or (maximum is not None and number > maximum):
        bounds = f"at least {minimum}"
        if maximum is not None:
            bounds = f"from {minimum} to {maximum}"
        raise UserError(f"{name}={value!r}: expected a whole number, {bounds}")
    return number


def positive(name: str, value: Any) -> None:
    """Refuses what is no finite number above 0.

    Raises:
        UserError: the value is none.
    """
    if not (_is_real(value) and math.isfinite(value) and value > 0):
        raise UserError(f"{name}={value!r}: expected a finite number above 0")


def open_unit(name: str, value: Any) -> None:
    """Refuses what is no number between 0 and 1, both excluded.

    Raises:
        UserError: the value is none.
    """
    if not (_is_real(value) and 0 < value < 1):
        raise UserError(f"{name}={value!r}: expected a number between 0 and 1")


def decay(name: str, value: Any) -> None:
    """Refuses what is no number in [0, 1), the range of a decay or momentum.

    Raises:
        UserError: the value is none.
    """
    if not (_is_real(value) and 0 <= value < 1):
        raise UserError(f"{name}={value!r}: expected a number in [0, 1)")


def one_of(name: str, value: object, accepted: Sequence[object]) -> None:
    """Refuses what is not among `accepted`.

    Raises:
        UserError: the value is not.
    """
    if value not in accepted:
        raise UserError(
            f"{name}={value!r}: expected one of {', '.join(map(str, accepted))}"
        )


def _is_real(value: object) -> bool:
    # NumPy's scalars count, booleans do not.
    return isinstance(value, Real) and not isinstance(value, bool)


# The extra of setup.cfg that brings a module, by the name under which it is imported.
EXTRAS = {
    "PIL": "data",
    "av": "data",
    "h5py": "data",
    "importlib_resources": "data",
    "matfree": "study",
    "matplotlib": "report",
    "pyarrow": "sweep",
    "ray": "sweep",
    "safetensors": "data",
    "scipy": "study",
    "skimage": "data",
    "sklearn": "data",
    "statsmodels": "study",
    "tensorflow_datasets": "data",
}


def missing_extra(error: ImportError) -> str | None:
    """What to install where a module of an extra is missing; None: of another."""
    name = (error.name or "").split(".")[0]
    if name not in EXTRAS:
        return None
    return f"{name} is not installed; pip install 'prednet-jax[{EXTRAS[name]}]'"
