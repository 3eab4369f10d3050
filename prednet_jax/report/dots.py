"""Dot plots: one row per arm, one dot per seed, as SVG.

A mean hides whether all seeds moved a little or one of them a lot; dots show it. The
SVG is plain text: the same bytes on every machine, so that a document's figure can be
compared with its records byte for byte.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

# Pixels. Long labels and high stacks of dots take more room.
LABELS, PANEL, GAP, ROW, TOP, BOTTOM, RADIUS = 210, 300, 40, 26, 64, 34, 3.5
LETTER, STEP = 7.4, 1.3 * RADIUS
GRID, BAND, INK, MUTED = "#e4e5e3", "#eeeeec", "#1d2125", "#626a73"


class Panel(NamedTuple):
    """One axis.

    Attributes:
        title: what is measured, with its unit.
        low: value at the left end.
        high: value at the right end, above `low`.
        ticks: values that get a line and a label.
        band: values that count as none; None: no band.
        text: a tick's label.
    """

    title: str
    low: float
    high: float
    ticks: Sequence[float]
    band: tuple[float, float] | None = None
    text: Callable[[float], str] = "{:g}".format


class Row(NamedTuple):
    """One arm.

    Attributes:
        label: its name.
        colour: of its dots.
        values: for each panel the values of the seeds; what is not finite is left out,
            what is beyond an end is drawn at it as a triangle.
        intervals: for each panel an interval of the mean, or None.
    """

    label: str
    colour: str
    values: Sequence[Sequence[float]]
    intervals: Sequence[tuple[float, float] | None] = ()


def draw(alt: str, panels: Sequence[Panel], rows: Sequence[Row]) -> bytes:
    """Draws the figure.

    Args:
        alt: what the figure shows, for those who cannot see it.
        panels: side by side.
        rows: from the top.

    Returns:
        The SVG.
    """
    labels = max(LABELS, *(round(12 + LETTER * len(row.label)) for row in rows))
    highest = max(
        abs(step)
        for row in rows
        for panel, values in zip(panels, row.values, strict=True)
        for value, _, step in [(panel.low, 0, 0), *_stacked(panel, values)]
        if panel.low <= value <= panel.high
    )
    tall = max(ROW, round(2 * (highest * STEP + RADIUS)))
    width = labels + len(panels) * (PANEL + GAP)
    height = TOP + tall * len(rows) + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(alt)}</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for i, panel in enumerate(panels):
        parts += _axis(panel, labels + i * (PANEL + GAP), TOP, tall * len(rows))
    for j, row in enumerate(rows):
        y = TOP + tall * j + tall / 2
        parts.append(
            f'<text x="12" y="{y + 4.5:g}" fill="{INK}">{escape(row.label)}</text>'
        )
        for i, (panel, values) in enumerate(zip(panels, row.values, strict=True)):
            left = labels + i * (PANEL + GAP)
            if i < len(row.intervals) and (ends := row.intervals[i]) is not None:
                parts.append(_interval(panel, ends, left, y, row.colour))
            parts += _dots(panel, values, left, y, row.colour, tall / 2 - RADIUS)
    return "\n".join([*parts, "</svg>\n"]).encode()


def _place(panel: Panel, value: float, left: float) -> float:
    inside = (value - panel.low) / (panel.high - panel.low)
    return left + PANEL * min(max(inside, 0.0), 1.0)


def _axis(panel: Panel, left: float, top: float, height: float) -> list[str]:
    parts = [
        f'<text x="{left}" y="22" fill="{INK}" font-weight="bold">'
        f"{escape(panel.title)}</text>"
    ]
    if panel.band is not None:
        a, b = (_place(panel, end, left) for end in panel.band)
        parts.append(
            f'<rect x="{a:.1f}" y="{top}" width="{b - a:.1f}" height="{height}" '
            f'fill="{BAND}"/>'
        )
    for tick in panel.ticks:
        x = _place(panel, tick, left)
        parts.append(
            f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + height}" '
            f'stroke="{MUTED if tick == 0 else GRID}"/>'
        )
        for y in (top - 8, top + height + 18):
            parts.append(
                f'<text x="{x:.1f}" y="{y}" text-anchor="middle" font-size="11" '
                f'fill="{MUTED}">{escape(panel.text(tick))}</text>'
            )
    return parts


def _interval(
    panel: Panel, ends: tuple[float, float], left: float, y: float, colour: str
) -> str:
    a, b = (_place(panel, end, left) for end in ends)
    return (
        f'<line x1="{a:.1f}" y1="{y:g}" x2="{b:.1f}" y2="{y:g}" stroke="{colour}" '
        'stroke-width="9" stroke-opacity="0.25"/>'
    )


def _dots(
    panel: Panel,
    values: Sequence[float],
    left: float,
    y: float,
    colour: str,
    reach: float,
) -> list[str]:
    parts = []
    for value, x, step in _stacked(panel, values):
        # Triangles that find no room in the row lie on one another at its edge.
        x, dy = left + x, y + max(-reach, min(reach, step * STEP))
        if panel.low <= value <= panel.high:
            parts.append(
                f'<circle cx="{x:.1f}" cy="{dy:.1f}" r="{RADIUS}" fill="{colour}" '
                'fill-opacity="0.75"/>'
            )
        else:
            parts.append(_triangle(x, dy, 1 if value > panel.high else -1, colour))
    return parts


def _stacked(
    panel: Panel, values: Sequence[float]
) -> Iterator[tuple[float, float, int]]:
    """Value, place from the panel's left end, and steps above the middle of the row.

    Dots that would cover each other stand above one another.
    """
    taken = Counter[int]()
    for value in sorted(value for value in values if np.isfinite(value)):
        x = _place(panel, value, 0.0)
        column = round(x / (2 * RADIUS))
        # 0, 1, -1, 2, -2, ... steps from the middle of the row.
        yield value, x, (taken[column] + 1) // 2 * (1 if taken[column] % 2 else -1)
        taken[column] += 1


def _triangle(x: float, y: float, way: int, colour: str) -> str:
    r = RADIUS * 1.3
    corners = f"{x + way * r:.1f},{y:.1f} {x - way * r:.1f},{y - r:.1f}"
    return (
        f'<polygon points="{corners} {x - way * r:.1f},{y + r:.1f}" fill="{colour}"/>'
    )
