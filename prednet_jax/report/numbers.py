"""Numbers as people read them: few digits, one notation.

They are ASCII, so that a terminal's columns line up. A number that is not known is "-".
"""

import math
import re
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


_FIELD = re.compile(r"\{([^{}:]+):?([^{}]*)\}")


def text(template: str, fields: Mapping[str, Any]) -> str:
    """Fills a template as `str.format_map` does; "-" if a field is None or nan.

    A field's name may contain dots: `{raw.lowest}` is the field "raw.lowest". In
    addition to Python's formats there are `{x:sig}`, `{x:sig2}` and `{x:+sig}`
    (`significant`, with 3 digits or the given number of digits) and `{p:prob}`
    (`probability`).
    """
    values = [fields.get(name) for name, _ in _FIELD.findall(template)]
    # NaN alone differs from itself.
    if any(value is None or value != value for value in values):
        return MISSING
    return _FIELD.sub(lambda field: _formatted(fields[field[1]], field[2]), template)


def _formatted(value: Any, kind: str) -> str:
    if kind == "prob":
        return probability(value)
    if own := re.fullmatch(r"(\+?)sig(\d*)", kind):
        return significant(value, int(own[2] or 3), sign=bool(own[1]))
    return format(value, kind)
