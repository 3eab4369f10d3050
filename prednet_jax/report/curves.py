"""A figure with lines over an axis, whose lines and seeds a reader switches.

The numbers of a figure are one CSV table. The page holds it as the file that a reader
downloads, and its script hands the same table to Vega; so what is seen is what is
downloaded. Medians, quartiles and relative values are computed by the figure itself,
in the page as in a picture.
"""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prednet_jax.report import charts
from prednet_jax.report.charts import FAINT, INK, MUTED, ROLES, Spec

HEIGHT, LINE = 250, 17  # Pixels: of the axes, and of a line of text.
_DASH = 6  # Pixels; lines that coincide take turns.


class Series(NamedTuple):
    """A line of a figure, which the reader switches on and off by its name.

    `curves` holds its values by seed, [points] each; a line of its own has the seed "".
    `shown`: whether it is on at first.
    """

    name: str
    colour: str
    curves: dict[str, NDArray[np.float64]]
    shown: bool = True


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Lines over a common axis.

    Attributes:
        name: of the CSV file, without its ending.
        x: values of the axis, [points], rising.
        x_name: what they are.
        y_name: what the lines are.
        series: the lines, in the order of drawing.
        x_log: whether the axis is logarithmic, and so `y_log`.
        y_log: as above.
        base: name of the series that all are shown relative to, in percent, seed by
            seed; None: as they are.
        zone: half the width of a zone around zero that counts as none, or None.
        source: name of the figure whose table holds the numbers; None: its own.
    """

    name: str
    x: NDArray
    x_name: str
    y_name: str
    series: tuple[Series, ...]
    x_log: bool = False
    y_log: bool = False
    base: str | None = None
    zone: float | None = None
    source: str | None = None

    def columns(self) -> list[tuple[int, str]]:
        """Number of the line, and seed, of each column after the axis."""
        return [(k, s) for k, one in enumerate(self.series) for s in one.curves]

    def csv(self) -> str:
        """The table: the axis, then a column per line and seed."""
        curves = [self.series[k].curves[seed] for k, seed in self.columns()]
        names = [f"{self.series[k].name} {seed}".strip() for k, seed in self.columns()]
        return csv_text([self.x_name, *names], zip(self.x, *curves, strict=True))

    def rows(self) -> list[Spec]:
        """The table as the figure takes it; the page's script makes the same rows."""
        return [
            {"i": i, "x": float(x), "k": k, "seed": seed, "value": float(value)}
            for k, seed in self.columns()
            for i, (x, value) in enumerate(
                zip(self.x, self.series[k].curves[seed], strict=True)
            )
            if np.isfinite(value)
        ]


def csv_text(head: Sequence[str], rows: Iterable[Iterable[float | str | None]]) -> str:
    """A CSV file; numbers that are not finite, or not known, are empty cells."""

    def cell(value: float | str | None) -> str:
        if value is None or isinstance(value, str):
            return value or ""
        return f"{value:.9g}" if np.isfinite(value) else ""

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(map(cell, row) for row in rows)
    return text.getvalue()


def chart(curves: Curves, rows: Sequence[Spec] | None = None) -> Spec:
    """Medians of the seeds with the middle half around them, and a cursor.

    Above the axes stands a line of text per curve with its values at the cursor. Lines,
    seed and cursor are parameters of the figure with HTML inputs.

    Args:
        curves: what is drawn.
        rows: `curves.rows()`; None: whoever embeds the figure gives it the table
            "curves" with these rows.
    """
    x = charts.channel("x", curves.x_name, **_scale(curves.x_log))
    x["axis"] = {"grid": False, "labelFlush": True, "labelOverlap": True}
    y = charts.channel("middle", **_scale(curves.y_log))
    unit = " + ' %'" if curves.base else ""
    y["axis"] = {"labelExpr": charts.PLAIN + unit, "tickCount": 5}
    band = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
    colour = _by_line([one.colour for one in curves.series])
    style = {
        "color": colour,
        "strokeDash": _by_line(_dashes(curves.series)),
        # The control is a broad pale line below the others.
        "strokeWidth": charts.literal("width", "quantitative"),
        "strokeOpacity": charts.literal("opacity", "quantitative"),
    }
    here, both = {"filter": {"param": "cursor"}}, {"x": x, "y": y}
    # Invisible; the pointer finds the nearest of them.
    points = charts.layer("point", both, opacity=0) | {"params": [_cursor(curves)]}
    axes = [
        charts.layer("area", {"x": x, **band, "color": colour}, opacity=0.13),
        charts.layer("line", {**both, **style}, opacity=1),
        points,
        charts.layer("rule", {"x": x}, here, color=MUTED, strokeDash=[2, 3]),
        charts.layer("circle", {**both, "color": colour}, here, size=50, opacity=1),
    ]
    if curves.zone:
        ends = [{"low": -curves.zone, "high": curves.zone}]
        zone = charts.layer("rect", band, data=ends, color=FAINT, opacity=0.55)
        axes.insert(0, zone)
    return {
        "data": {"name": "curves"} if rows is None else {"values": rows},
        "width": "container",
        "height": HEIGHT,
        "autosize": "fit-x",
        "params": _inputs(curves),
        "transform": _summary(curves),
        "layer": [{"layer": axes}, *_values(curves, here, style)],
        "resolve": {"scale": {"y": "independent"}},
    }


def _scale(log: bool) -> Spec:
    return {"type": "log", "nice": False} if log else {"nice": False}


def _cursor(curves: Curves) -> Spec:
    """The point whose values are written, by slider or by pointer."""
    last = len(curves.x) - 1
    slider = {"input": "range", "min": 0, "max": last, "step": 1}
    pointer = {"type": "point", "fields": ["i"], "on": "pointermove,click"}
    return {
        "name": "cursor",
        "select": {**pointer, "nearest": True, "toggle": False, "clear": False},
        "value": [{"i": last}],
        "bind": {"i": {**slider, "name": f"{curves.x_name} (point)"}},
    }


def _inputs(curves: Curves) -> list[Spec]:
    """The choice of a seed where there are several, and a switch per line."""
    seeds = [s for s in dict.fromkeys(seed for _, seed in curves.columns()) if s]
    seed: Spec = {"name": "seed", "value": ""}
    if len(seeds) > 1:
        labels = [f"all {len(seeds)}: median and middle half", *seeds]
        options = {"input": "select", "options": ["", *seeds], "labels": labels}
        seed["bind"] = {**options, "name": "Seed"}
    switches = [
        {"name": f"line_{k}", "value": one.shown}
        | {"bind": {"input": "checkbox", "name": one.name}}
        for k, one in enumerate(curves.series)
    ]
    return [seed, *switches]


def _summary(curves: Curves) -> list[Spec]:
    """From the table's values to quartiles over the chosen seeds."""

    def joined(op: str, field: str | None, name: str, *groups: str) -> Spec:
        aggregate = {"op": op, "as": name} | ({"field": field} if field else {})
        return {"joinaggregate": [aggregate], "groupby": list(groups)}

    # A seed that diverged has fewer finite values than the others and is left out.
    steps = [
        joined("count", None, "points", "k", "seed"),
        joined("max", "points", "most", "k"),
        {"filter": "datum.points == datum.most"},
    ]
    if curves.base is not None:
        k = [one.name for one in curves.series].index(curves.base)
        steps += [
            {"calculate": f"datum.k == {k} ? datum.value : null", "as": "own"},
            joined("max", "own", "base", "i", "seed"),
            {"filter": "isValid(datum.base)"},
            {"calculate": "100 * (datum.value / datum.base - 1)", "as": "value"},
        ]
    shown = ", ".join(f"line_{k}" for k in range(len(curves.series)))
    quartiles = {"low": "q1", "middle": "median", "high": "q3"}
    widths = [5.5 if one.colour == INK else 2 for one in curves.series]
    opacities = [0.3 if one.colour == INK else 1 for one in curves.series]
    return [
        *steps,
        {"filter": f"[{shown}][datum.k]"},
        {"filter": "seed == '' || datum.seed == seed || datum.seed == ''"},
        {
            "aggregate": [
                {"op": op, "field": "value", "as": name}
                for name, op in quartiles.items()
            ],
            "groupby": ["i", "x", "k"],
        },
        {"calculate": f"{widths}[datum.k]", "as": "width"},
        {"calculate": f"{opacities}[datum.k]", "as": "opacity"},
    ]


def _values(curves: Curves, here: Spec, style: Spec) -> list[Spec]:
    """Name and values of each line at the cursor, above the axes, and the cursor's."""
    names = json.dumps([one.name for one in curves.series])
    form, unit = ("'+.3~g'", "' %'") if curves.base else ("'.4~g'", "''")
    low, middle, high = (
        f"replace(format(datum.{field}, {form}), '-', '−')"
        for field in ("low", "middle", "high")
    )
    spread = f"(datum.low < datum.high ? ' (' + {low} + ' to ' + {high} + ')' : '')"
    said = f"{names}[datum.k] + '  ' + {middle} + {unit} + {spread}"
    rows = [
        here,
        {"joinaggregate": [{"op": "count", "as": "lines"}]},
        {"window": [{"op": "row_number", "as": "place"}], "sort": [{"field": "k"}]},
        {"calculate": "datum.place - datum.lines - 0.8", "as": "row"},
        {"calculate": said, "as": "text"},
    ]
    y = charts.channel("row", domain=[0, 1], range=[0, LINE]) | {"axis": None}
    start, end = {"value": -2 * LINE}, {"value": 24 - 2 * LINE}
    at = [
        here,
        {"aggregate": [{"op": "count", "as": "n"}], "groupby": ["x"]},
        {"calculate": f"'{curves.x_name} ' + datum.x", "as": "text"},
    ]
    text = {"field": "text"}
    left = {"x": start, "y": y, "text": text}
    right = {"x": {"value": "width"}, "y": {"value": HEIGHT + 33}, "text": text}
    at_left = {"align": "left", "dx": 30, "color": INK, "fontSize": 12}
    return [
        charts.layer("rule", {"x": start, "x2": end, "y": y, **style}, *rows),
        charts.layer("text", left, *rows, **at_left),
        charts.layer("text", right, *at, align="right", color=MUTED, fontSize=12),
    ]


def _by_line(values: Sequence[Any]) -> Spec:
    """A property of each line."""
    scale = {"domain": list(range(len(values))), "range": list(values)}
    return {"field": "k", "type": "ordinal", "legend": None, "scale": scale}


def _dashes(lines: Sequence[Series]) -> list[list[int]]:
    """Stale targets are a solid line on the control's, the others dashes on both."""
    solid = (INK, MUTED, ROLES["stale"])
    dashed = [k for k, one in enumerate(lines) if one.colour not in solid]
    turns = min(3, len(dashed)) if any(one.colour == INK for one in lines) else 1
    dashes = [[2, 4] if one.colour == MUTED else [1, 0] for one in lines]
    if turns > 1:
        for place, k in enumerate(dashed):
            turn = place % turns
            dashes[k] = [0, turn * _DASH, _DASH, (turns - turn - 1) * _DASH]
    return dashes
