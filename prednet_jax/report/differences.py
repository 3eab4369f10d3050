"""Paired differences with their intervals, in units of the margin, as HTML.

Boxes and text rather than a picture, so that the words stay readable on a phone. The
axis is linear up to a threshold and logarithmic beyond it on both sides of zero, so
that rounding and a bug fit in one figure.
"""

import html
import math
from collections.abc import Mapping
from typing import Any

from prednet_jax.report import theme as look
from prednet_jax.report.numbers import interval, significant
from prednet_jax.report.results import Results, identical, label

# Width of the linear part of the axis, each side, in decades.
LINEAR_DECADES = 0.5


class Axis:
    """Places on a symmetric logarithmic axis, in percent of its width.

    Args:
        threshold: up to here the axis is linear, in margins.
        limit: its end, in margins.
    """

    def __init__(self, threshold: float, limit: float):
        self.threshold = threshold
        self.limit = limit
        self._reach = LINEAR_DECADES + math.log10(limit / threshold)

    def place(self, value: float) -> float:
        """From 0 (minus the limit) over 50 (zero) to 100 (the limit)."""
        size = abs(value) / self.threshold
        far = LINEAR_DECADES * min(size, 1)
        if size > 1:
            far += math.log10(size)
        return 50 + math.copysign(50 * min(1, far / self._reach), value)

    def ticks(self) -> list[tuple[float, str]]:
        """Zero, the margin, and a decade between them where there is room; HTML."""
        found = [(0.0, "0"), (1.0, "1"), (-1.0, "−1")]
        power = round(math.log10(self.threshold) / 2)
        between = self.place(10.0**power)
        if between - 50 > 12 and self.place(1.0) - between > 12:
            name = f"10<sup>−{-power}</sup>"
            found += [(10.0**power, name), (-(10.0**power), f"−{name}")]
        return sorted(found)


def figure(results: Results, model: str) -> str:
    """A row per contrast that has a margin and a difference, or nothing."""
    chosen = [
        (one, _ends(one))
        for one in results.contrasts(model)
        if one.get("margin") and one.get("mean_difference") is not None
    ]
    if not chosen:
        return ""
    extents = [max(map(abs, ends)) for _, ends in chosen]
    # Inside the threshold the axis is linear: the narrowest interval just fits there.
    smallest = min((extent for extent in extents if extent > 0), default=0.1)
    power = min(-1, max(-14, math.floor(math.log10(smallest))))
    axis = Axis(10.0**power, 2.5 * max(1.5, *extents))
    rows = "".join(_row(one, ends, axis) for one, ends in chosen)
    marks = "".join(
        f'<span style="left:{axis.place(value):.2f}%">{name}</span>'
        for value, name in axis.ticks()
    )
    return (
        f'<div class="differences">{rows}<div class="difference"><span class="track '
        f'marks">{marks}</span></div></div>'
    )


def _ends(one: Mapping[str, Any]) -> tuple[float, float, float]:
    """Low end, mean and high end, in margins; the mean where an end is not known."""
    mean = one["mean_difference"]
    low, high = (mean if one[k] is None else one[k] for k in ("ci_low", "ci_high"))
    return low / one["margin"], mean / one["margin"], high / one["margin"]


def _row(one: Mapping[str, Any], ends: tuple[float, float, float], axis: Axis) -> str:
    low, mean, high = map(axis.place, ends)
    left, right = axis.place(-1), axis.place(1)
    same = identical(one)
    told = (
        f"{significant(one['mean_difference'], sign=True)} "
        f"{interval(one['ci_low'], one['ci_high'])}, "
        f"{significant(ends[1], 2, sign=True)} margins"
    )
    word = "identical bits" if same else one["verdict"]
    return (
        f'<div class="difference colour-{look.key(one.get("role"))}">'
        f'<span class="who">{html.escape(label(one))}</span>'
        f'<span class="track" title="{html.escape(told)}">'
        f'<i class="none" style="left:{left:.2f}%;width:{right - left:.2f}%"></i>'
        '<i class="zero"></i>'
        f'<i class="bar" style="left:{low:.2f}%;width:{max(0, high - low):.2f}%"></i>'
        f'<i class="{"dot same" if same else "dot"}" style="left:{mean:.2f}%"></i>'
        f'</span><span class="what">{html.escape(word)}</span></div>'
    )
