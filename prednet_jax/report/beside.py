"""Records beside a comparison: saddles, curvature and speed, as figures and tables.

What `saddle_escape.py`, `probe_curvature.py` and `benchmark.py --suite=backends` left
lies beside the verdict or among the published records; where there is none, there is
no figure.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from prednet_jax import records
from prednet_jax.report.charts import CYCLE, INK
from prednet_jax.report.curves import Curves, Series
from prednet_jax.report.documents import columns
from prednet_jax.report.numbers import significant
from prednet_jax.report.results import Record
from prednet_jax.report.tables import display_name

SADDLES, CURVATURE = "saddle_escape.json", "probe_curvature.json"
SPEED = "backends.json"
#: Cases of an escape record that the page has room for.
MOST = 4
#: The columns of the table of speed.
HEADS = ("work", "threads", "batch", "frames", "ms per call", "frames/s")


class Drawn(NamedTuple):
    """A chart, what it shows in words, and the command that made its record."""

    chart: Curves
    words: str
    command: str


def load(*places: Path) -> dict[str, Record]:
    """The records that are there, by file name, the first place first.

    Raises:
        RecordError: one is broken; the message names it.
    """
    found: dict[str, Record] = {}
    for name, listed in ((SADDLES, "groups"), (CURVATURE, "rows"), (SPEED, "rows")):
        path = next((p / name for p in places if (p / name).exists()), None)
        if path is None:
            continue
        record = records.read_json(path)
        if not isinstance(record, dict) or not record.get(listed):
            raise records.RecordError(f"{path}: expected an object with {listed}")
        found[name] = record
    return found


def charts(found: Mapping[str, Record], name: str) -> list[Drawn]:
    """The charts of the record of a name; none where it is missing.

    Raises:
        RecordError: the record lacks what it should hold.
    """
    if name not in found:
        return []
    draw = {SADDLES: _escapes, CURVATURE: _curvature, SPEED: _speed}[name]
    command = str(found[name].get("command") or "")
    try:
        return [Drawn(chart, said, command) for chart, said in draw(found[name])]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise records.RecordError(
            f"{name}: {type(error).__name__} {error}; expected what "
            f"{Path(name).stem}.py writes"
        ) from None


def _escapes(record: Record) -> list[tuple[Curves, str]]:
    """Runs that have not passed every saddle, against steps; a chart a case."""
    cases: dict[tuple, list[Record]] = {}
    for group in record["groups"]:
        key = tuple(group[k] for k in ("function", "optimizer", "form", "precision"))
        cases.setdefault(key, []).append(group)
    return [_escape(key, groups) for key, groups in list(cases.items())[:MOST]]


def _escape(key: tuple, groups: Sequence[Record]) -> tuple[Curves, str]:
    budget = max(max(group["arrival_steps"]) for group in groups)
    steps = np.unique(np.geomspace(1, budget, 80).round())
    series, left = [], []
    for i, group in enumerate(groups):
        quiet = group["noise"] == "none"
        name = "no noise" if quiet else str(group["noise"])
        arrived = np.array(group["arrived"], bool)
        when = np.where(arrived, np.array(group["arrival_steps"], float), np.inf)
        stuck = 100 * (when[:, None] > steps).mean(axis=0)
        colour = INK if quiet else CYCLE[(i - 1) % len(CYCLE)]
        series.append(Series(name, colour, {"": stuck}))
        left.append(f"{name} {np.sum(~arrived)} of {len(arrived)}")
    function, optimizer, form, precision = (str(k).replace("_", " ") for k in key)
    chart = Curves(
        name="saddles_" + "_".join(map(str, key)),
        x=steps,
        x_name="step",
        y_name=f"{function}, {form}: runs not yet past every saddle, percent",
        series=tuple(series),
        x_log=True,
    )
    return chart, (
        f"{function}, {form}, {optimizer}, {precision}; runs that have not passed "
        f"every saddle after {budget:g} steps: {', '.join(left)}."
    )


def _curvature(record: Record) -> list[tuple[Curves, str]]:
    """Extreme eigenvalues in Adam's coordinates along training, in one chart."""
    rows = record["rows"]
    updates = np.array(sorted({row["update"] for row in rows}))
    series: list[Series] = []
    words = []
    for model in dict.fromkeys(row["model"] for row in rows):
        ends = {r["update"]: r["preconditioned"] for r in rows if r["model"] == model}
        lowest, highest = (
            np.array([ends[u][end] if u in ends else np.nan for u in updates], float)
            for end in ("lowest", "highest")
        )
        name = display_name(str(model))
        for said, values in (("minus the lowest", -lowest), ("highest", highest)):
            colour = CYCLE[len(series) % len(CYCLE)]
            shown = np.where(values > 0, values, np.nan)
            series.append(Series(f"{name}, {said}", colour, {"": shown}))
        proved = sum(bool(one["negative_curvature_proved"]) for one in ends.values())
        words.append(
            f"{name}: lowest {significant(np.nanmin(lowest))} to "
            f"{significant(np.nanmax(lowest))}, highest up to "
            f"{significant(np.nanmax(highest))}, negative curvature proved at {proved} "
            f"of {len(ends)} stops"
        )
    chart = Curves(
        name="curvature",
        x=updates,
        x_name="update",
        y_name="size of the extreme eigenvalues, in Adam's coordinates",
        series=tuple(series),
        x_log=True,
        y_log=True,
    )
    return [(chart, "; ".join(words) + ".")]


def _speed(record: Record) -> list[tuple[Curves, str]]:
    """Frames per second against batch size: a chart per work, a line per case."""
    batches = np.array(sorted({row["batch"] for row in record["rows"]}))
    found = []
    for work in dict.fromkeys(row["work"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["work"] == work]
        threads = list(dict.fromkeys(row["threads"] for row in rows))
        cases: dict[tuple[int, str], dict[int, float]] = {}
        for row in rows:
            case = cases.setdefault((row["threads"], row["feed"]), {})
            case[row["batch"]] = row["frames_per_second"]
        series = tuple(
            Series(
                f"{_threads(count)}, {_feed(feed)}",
                CYCLE[threads.index(count) % len(CYCLE)],
                {"": np.array([case.get(b, np.nan) for b in batches])},
                shown=feed == "device",
            )
            for (count, feed), case in cases.items()
        )
        chart = Curves(
            name=f"speed_{work}",
            x=batches,
            x_name="batch",
            y_name=f"{work}: frames per second",
            series=series,
            x_log=True,
            y_log=True,
        )
        best = max(rows, key=lambda row: row["frames_per_second"])
        words = (
            f"{work.capitalize()}: at most {significant(best['frames_per_second'])} "
            f"frames per second, with batch {best['batch']} on "
            f"{_threads(best['threads'])}, frames {_feed(best['feed'])}."
        )
        found.append((chart, words))
    return found


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def _feed(feed: str) -> str:
    return "on device" if feed == "device" else "from host"


def speed_cells(record: Record) -> list[list[str]]:
    """The rows of the table of speed, below `HEADS`."""
    return [
        [
            row["work"],
            str(row["threads"]),
            str(row["batch"]),
            _feed(row["feed"]),
            significant(1e3 * row["seconds"]),
            significant(row["frames_per_second"]),
        ]
        for row in record["rows"]
    ]


def replica_lines(record: Record) -> list[str]:
    """What several seeds at once cost, a sentence per case."""
    return [
        f"{row['replicas']} replica(s), {row['mode']}, {row['devices']} device(s): "
        f"{significant(1e3 * row['seconds_per_seed_update'])} ms per seed and update, "
        f"{significant(row['ratio_to_single'], 2)} of a single run"
        for row in record["replicas"]
    ]


def speed_notes(record: Record) -> list[str]:
    """What was not measured, in sentences."""
    missing = ", ".join(map(str, record.get("threads_not_here") or ()))
    offered = f"the machine offers {record['device']['threads']}"
    return [f"Not measured with {missing} threads: {offered}."] if missing else []


def speed_table(record: Record) -> str:
    """The table of speed for a terminal."""
    shown = columns([HEADS, *speed_cells(record)], right=(1, 2, 4, 5))
    return "\n".join([shown, *replica_lines(record), *speed_notes(record)])
