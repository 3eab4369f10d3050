"""Errors that a user can correct, the checks that raise them, and lines on stderr.

A script prints a `UserError` as one line and ends with status 2, a `RunError` with
status 1; every other exception is a fault of the program and keeps its traceback.
"""

import logging
import math
import os
import sys
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any


class UserError(ValueError):
    """A value, file or setting that the user gave and can correct."""


class RunError(RuntimeError):
    """A run that cannot continue although its command was valid."""


def expect(accepted: object, name: str, value: object, wanted: str) -> None:
    """Refuses a value that is not among the accepted ones, which the error lists."""
    if accepted:
        return
    try:
        given = repr(value)
    except ValueError:  # Python writes no number of thousands of digits.
        given = "a number of thousands of digits"
    shown = given if len(given) <= 300 else f"{given[:300]}..."
    raise UserError(f"{name}={shown}: expected {wanted}")


def whole(name: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    """Returns an integer in a range; refuses other numbers, booleans and floats."""
    integral = isinstance(value, Integral) and not isinstance(value, bool)
    number = int(value) if integral else minimum - 1
    inside = minimum <= number and (maximum is None or number <= maximum)
    bounds = f"at least {minimum}"
    if maximum is not None:
        bounds = f"from {minimum} to {maximum}"
    expect(inside, name, value, f"a whole number, {bounds}")
    return number


def positive(name: str, value: Any) -> None:
    """Refuses a value that is not a finite number above 0."""
    _check(name, value, lambda x: 0 < x < math.inf, "a finite number above 0")


def not_negative(name: str, value: Any) -> None:
    """Refuses a value that is not a finite number of at least 0."""
    _check(name, value, lambda x: 0 <= x < math.inf, "a finite number, 0 or more")


def open_unit(name: str, value: Any) -> None:
    """Refuses a value that is not a number between 0 and 1, both excluded."""
    _check(name, value, lambda x: 0 < x < 1, "a number between 0 and 1")


def decay(name: str, value: Any) -> None:
    """Refuses a value that is not in [0, 1), the range of a decay rate or momentum."""
    _check(name, value, lambda x: 0 <= x < 1, "a number in [0, 1)")


def _check(name: str, value: Any, holds: Callable[[Any], bool], wanted: str) -> None:
    # NumPy's scalars count, booleans do not.
    real = isinstance(value, Real) and not isinstance(value, bool)
    expect(real and holds(value), name, value, wanted)


def one_of(name: str, value: object, accepted: Sequence[object]) -> None:
    """Refuses a value that is not among `accepted`."""
    listed = ", ".join(map(str, accepted))
    expect(value in accepted, name, value, f"one of {listed}")


# The extra of setup.cfg that brings a module, by the name under which it is imported.
_BRINGS = {
    "data": "PIL av h5py importlib_resources safetensors skimage sklearn "
    "tensorflow_datasets",
    "report": "jinja2 pandas vl_convert",
    "study": "matfree scipy",
    "sweep": "pyarrow ray",
}
EXTRAS = {name: extra for extra, of in _BRINGS.items() for name in of.split()}


def missing_extra(error: ImportError) -> str | None:
    """Returns the command to install a missing module of an extra, or None.

    It installs from the path of a checkout, since no package index has this project.
    """
    name = (error.name or "").split(".")[0]
    if name not in EXTRAS:
        return None
    return f"{name} is not installed; pip install '.[{EXTRAS[name]}]'"


def log_line(text: str) -> None:
    """Writes one line on stderr, above a progress bar and not into it."""
    bars = sys.modules.get("tqdm")  # None: nothing has drawn one.
    (bars.tqdm.write if bars else print)(text, file=sys.stderr)
    sys.stderr.flush()


say = log_line


# Files that an NVIDIA driver shows, on Linux and in Windows' Linux.
_DRIVERS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")


def quieten_cuda_plugin() -> None:
    """Drops JAX's traceback about a CUDA plugin that has no device to run on.

    The extra `gpu-audit` installs JAX's CUDA plugin too, for its compiler. Without a
    driver JAX then continues on the CPU, as before, but logs this in twenty lines.
    """

    def says_more(record: logging.LogRecord) -> bool:
        about = "jax_plugins.xla_cuda" in str(record.args)
        return not (about and not any(map(os.path.exists, _DRIVERS)))

    logging.getLogger("jax._src.xla_bridge").addFilter(says_more)
