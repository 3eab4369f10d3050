"""What `benchmark.py --suite=backends` measured, as a table and a figure.

Reads backends.json, which lies beside a verdict or not.
"""

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from prednet_jax.report import theme as look
from prednet_jax.report.chart import Chart, Series
from prednet_jax.report.documents import columns, markdown
from prednet_jax.report.numbers import significant
from prednet_jax.report.records_beside import find
from prednet_jax.report.tables import table
from prednet_jax.report.theme import LIGHT, Theme

FILE = "backends.json"
__all__ = ["FILE", "LIGHT", "figure", "html_table", "load", "text_table"]
_HEADS = ("work", "threads", "batch", "frames", "ms per call", "frames/s")
_SHADES = ("descriptive", "treatment", "gpu", "stale", "gaussian")


def load(*places: Path) -> dict[str, Any] | None:
    """The measurements in the first directory that has some, or None.

    Raises:
        RecordError: the file is broken.
    """
    return find(places, FILE, "rows")


def charts(result: Mapping[str, Any]) -> list[Chart]:
    """Frames per second against batch size: a chart per work, a line per case."""
    batches = np.array(sorted({row["batch"] for row in result["rows"]}))
    found = []
    for work in dict.fromkeys(row["work"] for row in result["rows"]):
        cases: dict[tuple[int, str], dict[int, float]] = {}
        for row in result["rows"]:
            if row["work"] == work:
                case = cases.setdefault((row["threads"], row["feed"]), {})
                case[row["batch"]] = row["frames_per_second"]
        threads = list(dict.fromkeys(count for count, _ in cases))
        series = tuple(
            Series(
                name=f"{_threads(count)}, {_feed(feed)}",
                colour=_SHADES[threads.index(count) % len(_SHADES)],
                curves={"": np.array([case.get(b, np.nan) for b in batches])},
                shown=feed == "device",
            )
            for (count, feed), case in cases.items()
        )
        found.append(
            Chart(
                name=f"speed_{work}",
                x=batches,
                x_name="batch",
                y_name=f"{work}: frames per second",
                series=series,
                x_log=True,
                y_log=True,
            )
        )
    return found


def best(result: Mapping[str, Any], name: str) -> str:
    """The fastest case of the chart of this name, in words."""
    rows = [row for row in result["rows"] if name == f"speed_{row['work']}"]
    one = max(rows, key=lambda row: row["frames_per_second"])
    return (
        f"{one['work'].capitalize()}: at most {significant(one['frames_per_second'])} "
        f"frames per second, with batch {one['batch']} on {_threads(one['threads'])}, "
        f"frames {_feed(one['feed'])}."
    )


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def _feed(feed: str) -> str:
    return "on device" if feed == "device" else "from host"


def cells(result: Mapping[str, Any]) -> list[list[str]]:
    """The rows of the table as text."""
    return [
        [
            row["work"],
            str(row["threads"]),
            str(row["batch"]),
            _feed(row["feed"]),
            significant(1e3 * row["seconds"], 3),
            significant(row["frames_per_second"], 3),
        ]
        for row in result["rows"]
    ]


def _replica_lines(result: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['replicas']} replica(s), {row['mode']}, {row['devices']} device(s): "
        f"{significant(1e3 * row['seconds_per_seed_update'], 3)} ms per seed and "
        f"update, {significant(row['ratio_to_single'], 2)} of a single run"
        for row in result["replicas"]
    ]


def _notes(result: Mapping[str, Any]) -> list[str]:
    missing = result.get("threads_not_here")
    if not missing:
        return []
    return [
        f"Not measured with {', '.join(map(str, missing))} threads: the machine "
        f"offers {result['device']['threads']}."
    ]


def text_table(result: Mapping[str, Any]) -> str:
    """The table for a terminal."""
    shown = columns([_HEADS, *cells(result)], right=(1, 2, 4, 5))
    return "\n".join([shown, *_replica_lines(result), *_notes(result)])


def markdown_table(result: Mapping[str, Any]) -> str:
    """The table, the replicas, the notes and where they come from, for a document."""
    import pandas as pd  # Heavy, and of this module the documents alone need it.

    height, width, *channels = result["shape"]
    lines = [
        f"PredNet at {width}x{height}, channels {','.join(map(str, channels))}, "
        f"training windows of {result['window']} frames, {result['precision']}, "
        f"{result['device']['processor']}.",
        markdown(pd.DataFrame(cells(result), columns=list(_HEADS))),
        "\n".join(f"- {line}" for line in _replica_lines(result)),
        *_notes(result),
    ]
    if result.get("command"):
        lines.append(f"```\n{result['command']}\n```")
    return "\n\n".join(lines)


def html_table(result: Mapping[str, Any]) -> str:
    """The table, the replicas and the notes for the page."""
    rows = [[html.escape(cell) for cell in row] for row in cells(result)]
    replicas = "".join(f"<li>{html.escape(x)}</li>" for x in _replica_lines(result))
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in _notes(result))
    return f'<div class="wide">{table(_HEADS, rows)}</div><ul>{replicas}</ul>{notes}'


def figure(result: Mapping[str, Any], theme: Theme) -> bytes:
    """Frames a second against batch size, a line a number of threads.

    Filled: frames kept on the device. Hollow: fed from the host each step.
    """
    works = list(dict.fromkeys(row["work"] for row in result["rows"]))
    threads = sorted({row["threads"] for row in result["rows"]})
    batches = sorted({row["batch"] for row in result["rows"]})
    with look.canvas(theme, 7.0, 2.9) as drawn:
        panels = drawn.subplots(1, len(works), squeeze=False)[0]
        for axes, work in zip(panels, works, strict=True):
            for i, count in enumerate(threads):
                shade = theme.colours[_SHADES[i % len(_SHADES)]]
                for feed in ("device", "host"):
                    points = sorted(
                        (row["batch"], row["frames_per_second"])
                        for row in result["rows"]
                        if (row["work"], row["threads"], row["feed"])
                        == (work, count, feed)
                    )
                    x, y = zip(*points, strict=True)
                    held = feed == "device"
                    axes.plot(
                        x,
                        y,
                        color=shade,
                        lw=1.6 if held else 0.9,
                        ls="-" if held else ":",
                        marker="o",
                        ms=4.5,
                        mfc=shade if held else theme.ground,
                        label=_threads(count) if held else None,
                    )
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_locator(FixedLocator(batches))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_xticklabels([str(b) for b in batches])
            shown = [
                r["frames_per_second"] for r in result["rows"] if r["work"] == work
            ]
            # Room for a round number on each side.
            axes.set_ylim(min(shown) / 1.6, max(shown) * 1.6)
            look.log_axis(axes)
            axes.yaxis.set_major_formatter(FuncFormatter(_plain))
            axes.set_title(work, loc="left", size=10)
            axes.set_xlabel("batch")
        panels[0].set_ylabel("frames a second")
        panels[-1].legend(frameon=False, fontsize=9)
        drawn.tight_layout(pad=0.6)
        return look.png(drawn)


def _plain(value: float, _: object) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
