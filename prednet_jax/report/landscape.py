"""Saddles and curvature: what `saddle_escape.py` and `probe_curvature.py` left.

Both records lie beside the verdict or among the published ones; where there is none,
there is no figure.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax import records
from prednet_jax.report.answers import display_name
from prednet_jax.report.charts import CYCLE, INK
from prednet_jax.report.curves import Curves, Series
from prednet_jax.report.numbers import significant
from prednet_jax.report.records_beside import find

SADDLES, CURVATURE = "saddle_escape.json", "probe_curvature.json"
#: Cases of an escape record that the page has room for.
MOST = 4
Record = Mapping[str, Any]


def load(places: Sequence[Path]) -> dict[str, Record]:
    """The records that are there, by file name, the first place first.

    Raises:
        RecordError: one is broken; the message names it.
    """
    found: dict[str, Record] = {}
    for name, listed in ((SADDLES, "groups"), (CURVATURE, "rows")):
        record = find(places, name, listed)
        if record is not None:
            found[name] = record
    return found


def charts(found: Mapping[str, Record]) -> list[tuple[Curves, str, str]]:
    """Each chart with its words and the command that made its record.

    Raises:
        RecordError: a record lacks what it should hold.
    """
    made = []
    for name, draw in ((SADDLES, _escapes), (CURVATURE, _curvature)):
        if name not in found:
            continue
        try:
            drawn = draw(found[name])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise records.RecordError(
                f"{name}: {type(error).__name__} {error}; expected what "
                f"{Path(name).stem}.py writes"
            ) from None
        command = str(found[name].get("command") or "")
        made += [(chart, words, command) for chart, words in drawn]
    return made


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
        series.append(Series(name=name, colour=colour, curves={"": stuck}))
        left.append(f"{name} {np.sum(~arrived)} of {len(arrived)}")
    function, optimizer, form, precision = (str(k).replace("_", " ") for k in key)
    title = f"{function}, {form}: runs not yet past every saddle, percent"
    words = (
        f"{function}, {form}, {optimizer}, {precision}; runs that have not passed "
        f"every saddle after {budget:g} steps: {', '.join(left)}."
    )
    chart = Curves(
        name="saddles_" + "_".join(map(str, key)),
        x=steps,
        x_name="step",
        y_name=title,
        series=tuple(series),
        x_log=True,
    )
    return chart, words


def _curvature(record: Record) -> list[tuple[Curves, str]]:
    """Extreme eigenvalues in Adam's coordinates along training, in one chart."""
    rows = record["rows"]
    updates = np.array(sorted({row["update"] for row in rows}))
    series, words = [], []
    for i, model in enumerate(dict.fromkeys(row["model"] for row in rows)):
        ends = {r["update"]: r["preconditioned"] for r in rows if r["model"] == model}
        lowest, highest = (
            np.array([ends[u][end] if u in ends else np.nan for u in updates], float)
            for end in ("lowest", "highest")
        )
        name = display_name(str(model))
        for j, (said, values) in enumerate(
            (("minus the lowest", -lowest), ("highest", highest))
        ):
            values = np.where(values > 0, values, np.nan)
            colour = CYCLE[(2 * i + j) % len(CYCLE)]
            series.append(
                Series(name=f"{name}, {said}", colour=colour, curves={"": values})
            )
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
