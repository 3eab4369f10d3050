"""What `make compare` repeats of the study, and the runs that say what it should find.

`PART` is the only place that names the part which is repeated.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from prednet_jax import records, runs, statistics
from prednet_jax.studies import judgement, symmetric_findings
from prednet_jax.studies.parts import PARTS
from prednet_jax.studies.symmetric_findings import Row
from prednet_jax.tasks import Task

PART = PARTS["C"]
#: The part with an exact saddle, and its runs that are repeated: float32, a fresh order
#: at every call, and one order for the whole run. Twins have different orders.
SADDLE = "A"
SADDLE_ARMS = ("float32", "tile", "run")
_TWINS = "order_between_twins"


def published(design: runs.Design, folder: Path) -> dict[str, statistics.Arms]:
    """The losses of the study, by networks for which a comparison repeats it.

    Args:
        design: the comparison.
        folder: records of the study, a folder per part.

    Returns:
        `{network: {arm: {seed: [loss of each draw]}}}`; empty: another setting, or a
        part that is not complete.
    """
    same = [task.name for task in design.tasks if _repeats(design, task)]
    if not same:
        return {}
    found = judgement.read(PART, folder / PART.name)
    if len(found) < len(PART.seeds):
        return {}
    losses = judgement.losses(found, judgement.PRIMARY)[judgement.MODEL]
    return dict.fromkeys(same, losses)


def _repeats(design: runs.Design, task: Task) -> bool:
    """Whether a network is trained and measured as in the study."""
    return (
        getattr(task, "config", None) == PART.network
        and design.data_of(task) == PART.data
        and (design.window, design.updates) == (PART.window, PART.updates)
        and design.metric_updates(task) == PART.updates // 5
    )


def saddle_claim(rows: Sequence[Row], folder: Path) -> statistics.Claim:
    """The claim about an exact saddle, against float32, which stays on it.

    Args:
        rows: runs of `SADDLE_ARMS` from a symmetric start.
        folder: records of the study, a folder per part.
    """
    left = [
        row.equal if row.arm == "float32" else row.separated_at <= row.updates
        for row in rows
    ]
    study = [
        row
        for row in symmetric_findings.read(folder / SADDLE / "runs.csv")
        if (row.program, row.delta) == ("symmetric", 0) and row.arm in SADDLE_ARMS
    ]
    theory = records.read_json(folder / SADDLE / "theory.json")
    away = np.median([one["orders"] for one in theory["seeds"]])
    return statistics.saddle_claim(
        judgement.MODEL,
        statistics.effect(_losses(rows)),
        all(left),
        _losses(study) if study[0].updates == rows[0].updates else None,
        float(away),
    )


def _losses(rows: Sequence[Row]) -> statistics.Redraws:
    arms: dict[str, dict[str, list[float]]] = {"float32": {}, _TWINS: {}}
    for row in sorted(rows, key=lambda row: SADDLE_ARMS.index(row.arm)):
        name = row.arm if row.arm == "float32" else _TWINS
        arms[name].setdefault(str(row.seed), []).append(row.loss)
    return statistics.gather(arms, _TWINS, "float32")
