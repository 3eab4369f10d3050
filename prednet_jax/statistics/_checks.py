"""Range checks of the arguments shared by the tests and their power."""

import math


def positive(name: str, value: float) -> None:
    """Raises ValueError unless `value` is finite and above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}={value}; a finite number above 0 is needed")


def level(name: str, value: float) -> None:
    """Raises ValueError unless `value` lies in (0, 1)."""
    if not 0 < value < 1:
        raise ValueError(f"{name}={value}; a number in (0, 1) is needed")
