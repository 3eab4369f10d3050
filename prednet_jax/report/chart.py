"""A figure that the page's script may draw: a table of numbers and how to read it.

The table goes into the page as the CSV file that a reader downloads, and the script
(`page.js`) draws what stands in it; so what is seen is what is downloaded.
"""

import csv
import html
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from prednet_jax.report import theme as look
from prednet_jax.report.theme import Theme


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line of a chart.

    Attributes:
        name: what the reader switches on and off.
        colour: a key of the themes' colours; "ink" and "muted" are two of them.
        curves: values by seed, [points] each. A line of its own has one seed, "".
        shown: whether it is on at first.
    """

    name: str
    colour: str
    curves: dict[str, NDArray[np.float64]]
    shown: bool = True


@dataclass(frozen=True, kw_only=True)
class Chart:
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
        source: name of the chart whose table holds the numbers; None: its own.
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

    def csv(self) -> str:
        """The table: the axis, then a column per line and seed."""
        columns = [
            (f"{one.name} {seed}".strip(), curve)
            for one in self.series
            for seed, curve in one.curves.items()
        ]
        head = [self.x_name, *(name for name, _ in columns)]
        return csv_text(head, zip(self.x, *(c for _, c in columns), strict=True))

    def attribute(self) -> str:
        """How the script is to read and draw the table, as HTML attributes."""
        at = 1
        series: list[dict[str, Any]] = []
        for one in self.series:
            columns = range(at, at + len(one.curves))
            at += len(one.curves)
            series.append(
                {
                    "name": one.name,
                    "colour": one.colour,
                    "shown": one.shown,
                    "columns": dict(zip(one.curves, columns, strict=True)),
                }
            )
        says = {
            "source": file_name(self.source or self.name),
            "x": self.x_name,
            "y": self.y_name,
            "xLog": self.x_log,
            "yLog": self.y_log,
            "base": self.base,
            "zone": self.zone,
            "series": series,
        }
        return f'data-chart="{html.escape(json.dumps(says))}"'


def csv_text(head: Sequence[str], rows: Iterable[Iterable[float | str | None]]) -> str:
    """A CSV file; numbers that are not finite, or not known, are empty cells."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return text.getvalue()


def _cell(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.9g}" if np.isfinite(value) else ""


def file_name(name: str) -> str:
    """A name that any file system takes, and an element of the page."""
    return re.sub(r"[^\w.-]+", "_", name)


def download(name: str, text: str, words: str) -> str:
    """A link that holds a CSV file.

    Args:
        name: of the file, without its ending; the link's id too.
        text: the file.
        words: of the link, plain text.
    """
    name = file_name(name)
    return (
        f'<a id="{name}" download="{name}.csv" '
        f'href="data:text/csv;charset=utf-8,{quote(text, safe=",")}">'
        f"{html.escape(words)}</a>"
    )


def thin(points: int, most: int = 120) -> NDArray[np.int64]:
    """Indices of at most so many points, evenly spread, first and last among them."""
    return np.unique(np.linspace(0, points - 1, min(points, most)).round().astype(int))


def picture(chart: Chart, theme: Theme) -> bytes:
    """The chart as PNG, for readers without scripts; medians of the seeds."""
    with look.canvas(theme, 4.9, 3.1) as figure:
        axes = figure.subplots()
        for one in chart.series:
            middle = np.median(np.stack(list(one.curves.values())), axis=0)
            shade = look.shade(one.colour, theme)
            axes.plot(chart.x, middle, color=shade, label=one.name, lw=1.8)
        if chart.x_log:
            axes.set_xscale("log")
        if chart.y_log:
            look.log_axis(axes)
        axes.set_xlabel(chart.x_name, fontsize=9)
        axes.set_title(chart.y_name, loc="left", size=9, color=theme.muted)
        axes.legend(frameon=False, fontsize=8)
        figure.tight_layout(pad=0.6)
        return look.png(figure)


def command(words: Sequence[str] | str | None) -> str:
    """A command as HTML whose lines break between its words, or nothing."""
    if not words:
        return ""
    parts = words.split(" ") if isinstance(words, str) else words
    return f"<pre>{' '.join(f'<span>{html.escape(w)}</span>' for w in parts)}</pre>"
