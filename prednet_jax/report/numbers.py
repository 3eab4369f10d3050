"""Numbers as people read them: few digits, one notation.

They are ASCII, so that a terminal's columns line up. A number that is not known is "-".
"""

import math
import re
import string
from collections.abc import Mapping
from typing import Any

MISSING = "-"


def significant(value: float | None, digits: int = 3, *, sign: bool = False) -> str:
    """Returns a number with `digits` significant digits, such as "0.0306".

    `sign` writes "+" before a positive number; None and NaN give "-".
    """
    if value is None or math.isnan(value):
        return MISSING
    if value == 0 or math.isinf(value):
        return f"{value:g}".replace("-0", "0")
    power = f"{value:{'+' if sign else ''}.{digits - 1}e}"
    if not 1e-4 <= abs(value) < 1e5:  # Harder to read as a decimal fraction.
        return power
    decimals = digits - 1 - int(power.partition("e")[2])
    return f"{value:{'+' if sign else ''}.{max(0, decimals)}f}"


def probability(value: float | None) -> str:
    """Returns a p-value or a power with two significant digits; 1 and 0 stay whole."""
    return f"{value:g}" if value in (0, 1) else significant(value, 2)


def percent(fraction: float | None, *, sign: bool = True) -> str:
    """Returns a fraction in percent, two significant digits."""
    if fraction is None or math.isnan(fraction):
        return MISSING
    return f"{significant(100 * fraction, 2, sign=sign)} %"


def interval(low: float | None, high: float | None) -> str:
    """Returns the two ends of an interval, two significant digits.

    An end that is None or infinite is missing: there were too few seeds for one.
    """
    if low is None or high is None or not math.isfinite(high - low):
        return MISSING
    return f"[{significant(low, 2, sign=True)}, {significant(high, 2, sign=True)}]"


def change(mean: float, low: float | None, high: float | None) -> str:
    """Returns a change in percent to two digits, with its interval.

    The ends have as many decimals as the mean. An end that they would round to 0 has
    two significant digits, so that 0 is always 0 itself.
    """

    def end(value: float) -> str:
        rounded = f"{value:+.{len(mean_text.partition('.')[2])}f}"
        if "e" in mean_text or float(rounded) == 0:
            return significant(value, 2, sign=True)
        return rounded

    mean_text = significant(mean, 2, sign=True)
    if low is None or high is None or not math.isfinite(high - low):
        return f"{mean_text} %"
    return f"{mean_text} % [{end(low)}, {end(high)}]"


class _MissingError(Exception):
    """A field of a template has no value."""


class _Template(string.Formatter):
    """`str.format` with dotted names of fields and two more kinds of number."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        value = kwargs.get(field_name)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            raise _MissingError
        return value, field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "prob":
            return probability(value)
        if kind := re.fullmatch(r"(\+?)sig(\d*)", format_spec):
            return significant(value, int(kind[2] or 3), sign=bool(kind[1]))
        return super().format_field(value, format_spec)


def text(template: str, fields: Mapping[str, object]) -> str:
    """Fills a template as `str.format_map` does; "-" if a field is None or nan.

    A field's name may contain dots: `{raw.lowest}` is the field "raw.lowest". In
    addition to Python's formats there are `{x:sig}`, `{x:sig2}` and `{x:+sig}`
    (`significant`, with 3 digits or the given number of digits) and `{p:prob}`
    (`probability`).
    """
    try:
        return _Template().vformat(template, (), fields)
    except _MissingError:
        return MISSING
