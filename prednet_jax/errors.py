"""Errors that a user can correct, and the checks that raise them.

A script prints a `UserError` as one line and ends with status 2. It prints a `RunError`
as one line too and ends with status 1: the command was right but the run failed. Every
other exception is a fault of the program; it keeps its traceback and ends with status
1. Modules raise subclasses (`DataError`, `RecordError`) where a caller may want to tell
them apart.

Every check names the value that it received and says what would be accepted.
"""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any


class UserError(ValueError):
    """A value, file or setting that the user gave and can correct."""


class RunError(RuntimeError):
    """A run that cannot go on although its command was valid."""


def whole(name: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    """A whole number from `minimum` to `maximum`; None: no upper bound.

    Python's and NumPy's integers are accepted, booleans and floats are not.

    Raises:
        UserError: the value is not a whole number, or it is out of range.
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
    """Refuses a value that is not a finite number above 0.

    Raises:
        UserError: the value is refused.
    """
    if not (_is_real(value) and math.isfinite(value) and value > 0):
        raise UserError(f"{name}={value!r}: expected a finite number above 0")


def not_negative(name: str, value: Any) -> None:
    """Refuses a value that is not a finite number of at least 0.

    Raises:
        UserError: the value is refused.
    """
    if not (_is_real(value) and math.isfinite(value) and value >= 0):
        raise UserError(f"{name}={value!r}: expected a finite number, 0 or more")


def open_unit(name: str, value: Any) -> None:
    """Refuses a value that is not a number between 0 and 1, both excluded.

    Raises:
        UserError: the value is refused.
    """
    if not (_is_real(value) and 0 < value < 1):
        raise UserError(f"{name}={value!r}: expected a number between 0 and 1")


def decay(name: str, value: Any) -> None:
    """Refuses a value that is not in [0, 1), the range of a decay rate or momentum.

    Raises:
        UserError: the value is refused.
    """
    if not (_is_real(value) and 0 <= value < 1):
        raise UserError(f"{name}={value!r}: expected a number in [0, 1)")


def one_of(name: str, value: object, accepted: Sequence[object]) -> None:
    """Refuses a value that is not among `accepted`.

    Raises:
        UserError: the value is refused.
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
    "jinja2": "report",
    "matfree": "study",
    "pandas": "report",
    "pyarrow": "sweep",
    "ray": "sweep",
    "safetensors": "data",
    "scipy": "study",
    "skimage": "data",
    "sklearn": "data",
    "tensorflow_datasets": "data",
    "vl_convert": "report",
}


def missing_extra(error: ImportError) -> str | None:
    """What to install where a module of an extra is missing; None: of another.

    By the path of a checkout: no package index has this project.
    """
    name = (error.name or "").split(".")[0]
    if name not in EXTRAS:
        return None
    return f"{name} is not installed; pip install '.[{EXTRAS[name]}]'"
