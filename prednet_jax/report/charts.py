"""The style of all figures, and the figure with one dot per seed.

Every figure is a Vega-Lite specification (https://vega.github.io/vega-lite/docs/): the
page embeds it, documents get its SVG, and scripts its PNG. The colours are from Okabe &
Ito (2008, "Color universal design"), and a violet.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
import vl_convert

Spec = dict[str, Any]
INK, MUTED, FAINT, ZONE = "#1d2125", "#626a73", "#e4e5e3", "#eeeeec"
#: The colour of an arm by its role in a comparison.
ROLES = {
    "control": INK,
    "stale": "#D55E00",
    "treatment": "#0072B2",
    "descriptive": "#56B4E9",
    "gaussian": "#E69F00",
    "gpu": "#009E73",
    "gpu_deterministic": "#7B5CB8",
    "null": "#8a8f96",
}
#: Colours for lines that have no role.
CYCLE = [ROLES[role] for role in ("treatment", "stale", "gpu", "gaussian", "null")]
# vl-convert brings the font that it takes for "sans-serif", so that an SVG does not
# depend on the fonts of the machine.
_CONFIG: Spec = {
    "font": "sans-serif",
    "background": "white",
    "view": {"stroke": None},
    "axis": {
        "domain": False,
        "ticks": False,
        "gridColor": FAINT,
        "labelColor": MUTED,
        "titleColor": INK,
        "labelFontSize": 12,
        "titleFontSize": 13,
        "titleFontWeight": "normal",
        "labelPadding": 6,
        "labelLimit": 0,
    },
    "legend": {
        "labelColor": INK,
        "title": None,
        "orient": "top",
        "labelLimit": 0,
        "columns": 2,
    },
    "title": {"color": INK, "anchor": "start", "fontSize": 13},
    "range": {"category": CYCLE},
    "aria": False,
}


def spec(chart: Spec) -> Spec:
    """Returns a chart in the style of all figures."""
    schema = "https://vega.github.io/schema/vega-lite/v6.json"
    return {"$schema": schema, **chart, "config": _CONFIG}


def svg(chart: Spec, alt_text: str) -> bytes:
    """Returns a chart with its data as SVG.

    The same chart gives the same bytes everywhere.
    """
    head, _, body = vl_convert.vegalite_to_svg(spec(chart)).partition(">")
    return f'{head} role="img">\n<title>{escape(alt_text)}</title>{body}\n'.encode()


def png(chart: Spec) -> bytes:
    """Returns a chart with its data as PNG, at twice its size in pixels."""
    return vl_convert.vegalite_to_png(spec(chart), scale=2)


def layer(mark: str, encoding: Spec, data: Any = None, **properties: Any) -> Spec:
    """Returns a mark of a chart with its properties; `data` defaults to the chart's."""
    drawn: Spec = {"mark": {"type": mark, **properties}, "encoding": encoding}
    if data is not None:
        drawn["data"] = {"values": data}
    return drawn


def channel(field: str, title: str | None = None, **scale: Any) -> Spec:
    """Returns a quantitative channel; on a linear scale it need not show zero."""
    if "type" not in scale:
        scale = {"zero": False, **scale}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale}


def names(field: str, **more: Any) -> Spec:
    """Returns a nominal channel, whose values stand in the order of the data."""
    return {"field": field, "type": "nominal", "sort": None, "title": None, **more}


def literal(field: str) -> Spec:
    """Returns a channel whose values are colours or shapes."""
    return {"field": field, "type": "nominal", "scale": None}


class Panel(NamedTuple):
    """One axis of a figure with dots; values in `zone` are negligible."""

    title: str
    low: float
    high: float
    ticks: Sequence[float]
    zone: tuple[float, float] | None = None


def around_zero(title: str, values: Sequence[Sequence[float]], margin: float) -> Panel:
    """Returns a panel wide enough for all rows except distant ones.

    There is room for half of the rows and a quarter more: with stale targets in the
    panel the other arms would look like lines. `values` are of the seeds, by row; up to
    the margin a difference is negligible.
    """
    largest = sorted(max(map(abs, row)) for row in values if len(row))
    middle = largest[(len(largest) - 1) // 2] if largest else 0.0
    reach = float(np.ceil(1.25 * max(2 * margin, middle)))
    step = 10.0 ** np.floor(np.log10(reach))
    step *= 0.5 if reach < 2 * step else 1 if reach < 5 * step else 2
    ticks = (np.arange(-(reach // step), reach // step + 1) * step).tolist()
    return Panel(title, -reach, reach, ticks, zone=(-margin, margin))


class Row(NamedTuple):
    """One arm of a figure with dots, with the values of its seeds for each panel.

    Values that are not finite are left out. A value beyond an end of the axis is drawn
    at that end as a triangle. `intervals` has an interval of the mean, or None, for
    each panel.
    """

    label: str
    colour: str
    values: Sequence[Sequence[float]]
    intervals: Sequence[tuple[float, float] | None] = ()


# Pixels: width of a panel, least height of a row, diameter of a dot, how far dots that
# would cover each other stand apart, and the gap between two rows.
_WIDTH, _ROW, _DOT, _STEP, _GAP = 300, 26, 7, 4.5, 6
#: Labels of an axis as plain decimal numbers with a true minus sign.
PLAIN = "replace('' + datum.value, '-', '−')"


class Dots(NamedTuple):
    """A figure with one row per arm, from the top, and one dot per seed.

    The panels stand side by side.
    """

    alt_text: str
    panels: Sequence[Panel]
    rows: Sequence[Row]

    @property
    def chart(self) -> Spec:
        """Returns the specification."""
        stacks = [
            [dot for row in self.rows for dot in _stacked(panel, row, row.values[i])]
            for i, panel in enumerate(self.panels)
        ]
        # Triangles lie on one another at the edge of the row and need no room.
        steps = [abs(dot["step"]) for dots in stacks for dot in dots if dot["inside"]]
        height = max(_ROW, round(2 * max(steps, default=0) * _STEP) + _DOT + _GAP)
        both = enumerate(zip(self.panels, stacks, strict=True))
        drawn = [_panel(panel, i, self.rows, dots, height) for i, (panel, dots) in both]
        return {"hconcat": drawn, "spacing": 40}

    def svg(self) -> bytes:
        """Returns the figure for a document."""
        return svg(self.chart, self.alt_text)


def _stacked(panel: Panel, row: Row, values: Sequence[float]) -> Iterator[Spec]:
    """Yields each finite value.

    Dots that would cover each other stand above one another.
    """
    taken = Counter[int]()
    for value in sorted(filter(np.isfinite, values)):
        shown = min(max(value, panel.low), panel.high)
        beyond = "right" if value > panel.high else "left"
        column = round(_WIDTH * (shown - panel.low) / (panel.high - panel.low) / _DOT)
        # 0, 1, -1, 2, -2, ... steps from the middle of the row.
        step = (taken[column] + 1) // 2 * (1 if taken[column] % 2 else -1)
        taken[column] += 1
        yield {
            "row": row.label,
            "value": float(value),
            "shown": float(shown),
            "step": step,
            "inside": shown == value,
            "shape": "circle" if shown == value else f"triangle-{beyond}",
            "colour": row.colour,
        }


def _panel(
    panel: Panel, number: int, rows: Sequence[Row], stack: Sequence[Spec], height: int
) -> Spec:
    # Steps from the middle of a row to the last dot that is wholly in it.
    reach, edge = (height - _DOT - _GAP) / 2 / _STEP, (_DOT + _GAP) / 2
    x = channel("shown", panel.title, domain=[panel.low, panel.high], nice=False)
    x["axis"] = {"orient": "top", "values": list(panel.ticks), "labelExpr": PLAIN}
    axis = {"labelColor": INK} if number == 0 else None
    labels = [row.label for row in rows]
    y = names("row", sort=labels, scale={"padding": 0}, axis=axis)
    step = channel("step", domain=[reach, -reach], clamp=True)
    step["scale"]["range"] = [edge, height - edge]
    colour, to = literal("colour"), {"field": "end"}
    layers = []
    if panel.zone is not None:
        zone = [{"shown": panel.zone[0], "end": panel.zone[1]}]
        layers.append(layer("rect", {"x": x, "x2": to}, data=zone, color=ZONE))
    if panel.low <= 0 <= panel.high:
        layers.append(layer("rule", {"x": x}, data=[{"shown": 0}], color=MUTED))
    # Cut here rather than by Vega, whose names of clips differ from drawing to drawing.
    intervals = [
        {
            "row": row.label,
            "shown": max(ends[0], panel.low),
            "end": min(ends[1], panel.high),
            "colour": row.colour,
        }
        for row in rows
        if (ends := row.intervals[number] if row.intervals else None)
        and ends[0] < panel.high
        and ends[1] > panel.low
    ]
    if intervals:
        bar = {"x": x, "x2": to, "y": y, "color": colour}
        layers.append(layer("rule", bar, data=intervals, size=9, opacity=0.25))
    dot = {"x": x, "y": y, "yOffset": step, "shape": literal("shape"), "color": colour}
    layers.append(layer("point", dot, data=stack, filled=True, size=42, opacity=0.75))
    rows_high = {"step": height, "for": "position"}
    return {"width": _WIDTH, "height": rows_high, "layer": layers}
