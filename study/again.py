"""What `make compare` repeats of the study: part C, and the saddle of part A."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from prednet_jax import records, runs, statistics
from prednet_jax.saddles import symmetric
from prednet_jax.saddles.symmetric import Row
from study import judgement, seed_records
from study.parts import ANSWER, CONTROL

#: The part that `make compare` repeats.
PART = ANSWER
#: The runs of part A that are repeated: float32, a fresh order at every call, and one
#: order for the whole run. Twins have different orders.
SADDLE_ARMS = (CONTROL, "tile", "run")
_TWINS = "order_between_twins"


def published(design: runs.Design, folder: Path) -> dict[str, statistics.Arms]:
    """The losses of the study, by networks that a comparison trains as the study does.

    `folder` has the study's records. Nothing: another setting, or an unfinished part.
    """
    setting = (PART.network, PART.data, PART.window, PART.updates, PART.updates // 5)
    sizes = design.window, design.updates
    same = []
    for task in design.tasks:
        network, of_task = getattr(task, "config", None), design.data_of(task)
        if setting == (network, of_task, *sizes, design.metric_updates(task)):
            same.append(task.name)
    made = seed_records.finished(PART, folder / PART.name)
    if not same or len(made) < len(PART.seeds):
        return {}
    found = seed_records.read(PART, folder / PART.name)
    return dict.fromkeys(same, judgement.losses(found, judgement.PRIMARY))


def saddle_claim(
    rows: Sequence[Row], folder: Path, margin: float = statistics.MARGIN_FRACTION
) -> statistics.Claim:
    """The claim about an exact saddle, against float32, which stays on it.

    `rows` are runs of `SADDLE_ARMS` from a symmetric start; `folder` has the study.
    """
    left = all(
        row.equal if row.arm == CONTROL else row.separated_at <= row.updates
        for row in rows
    )
    study = [
        row
        for row in symmetric.read(folder / "A" / "runs.csv")
        if (row.program, row.delta) == ("symmetric", 0) and row.arm in SADDLE_ARMS
    ]
    theory = records.read_json(folder / "A" / "theory.json")
    return statistics.saddle_claim(
        judgement.MODEL,
        statistics.effect(_losses(rows), margin),
        left,
        _losses(study) if study[0].updates == rows[0].updates else None,
        float(np.median([seed["orders"] for seed in theory["seeds"]])),
    )


def _losses(rows: Sequence[Row]) -> statistics.Redraws:
    arms: dict[str, dict[str, list[float]]] = {CONTROL: {}, _TWINS: {}}
    for row in sorted(rows, key=lambda row: SADDLE_ARMS.index(row.arm)):
        name = CONTROL if row.arm == CONTROL else _TWINS
        arms[name].setdefault(str(row.seed), []).append(row.loss)
    return statistics.gather(arms, _TWINS, CONTROL)
