"""What `benchmark.py --suite=backends` measured, as a table and a figure.

Reads backends.json, which lies beside a verdict or not.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax.report.charts import CYCLE
from prednet_jax.report.curves import Curves, Series
from prednet_jax.report.documents import columns, markdown
from prednet_jax.report.numbers import significant
from prednet_jax.report.records_beside import find

FILE = "backends.json"
HEADS = ("work", "threads", "batch", "frames", "ms per call", "frames/s")


def load(*places: Path) -> dict[str, Any] | None:
    """The measurements in the first directory that has some, or None.

    Raises:
        RecordError: the file is broken.
    """
    return find(places, FILE, "rows")


def charts(result: Mapping[str, Any]) -> list[Curves]:
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
                colour=CYCLE[threads.index(count) % len(CYCLE)],
                curves={"": np.array([case.get(b, np.nan) for b in batches])},
                shown=feed == "device",
            )
            for (count, feed), case in cases.items()
        )
        found.append(
            Curves(
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


def replica_lines(result: Mapping[str, Any]) -> list[str]:
    """What several seeds at once cost, a sentence per case."""
    return [
        f"{row['replicas']} replica(s), {row['mode']}, {row['devices']} device(s): "
        f"{significant(1e3 * row['seconds_per_seed_update'], 3)} ms per seed and "
        f"update, {significant(row['ratio_to_single'], 2)} of a single run"
        for row in result["replicas"]
    ]


def notes(result: Mapping[str, Any]) -> list[str]:
    """What was not measured, in sentences."""
    missing = result.get("threads_not_here")
    if not missing:
        return []
    return [
        f"Not measured with {', '.join(map(str, missing))} threads: the machine "
        f"offers {result['device']['threads']}."
    ]


def text_table(result: Mapping[str, Any]) -> str:
    """The table for a terminal."""
    shown = columns([HEADS, *cells(result)], right=(1, 2, 4, 5))
    return "\n".join([shown, *replica_lines(result), *notes(result)])


def markdown_table(result: Mapping[str, Any]) -> str:
    """The table, the replicas, the notes and where they come from, for a document."""
    import pandas as pd  # Heavy, and of this module the documents alone need it.

    height, width, *channels = result["shape"]
    lines = [
        f"PredNet at {width}x{height}, channels {','.join(map(str, channels))}, "
        f"training windows of {result['window']} frames, {result['precision']}, "
        f"{result['device']['processor']}.",
        markdown(pd.DataFrame(cells(result), columns=list(HEADS))),
        "\n".join(f"- {line}" for line in replica_lines(result)),
        *notes(result),
    ]
    if result.get("command"):
        lines.append(f"```\n{result['command']}\n```")
    return "\n\n".join(lines)
