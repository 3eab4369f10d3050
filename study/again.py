"""Writes the data of the study that `make compare` needs, as one file in the package.

    python -c "from study import again; again.write()"

`runs/published.json` holds the setting of part C, its losses and distances after 1000,
2000 and 3000 updates, and the losses of part A's runs from an exact saddle. A test
compares the file with the records.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from prednet_jax import records
from prednet_jax.runs import published
from prednet_jax.saddles import symmetric
from study import judgement, seed_records
from study.parts import ANSWER as PART
from study.seed_records import BIN

RESULTS = Path(__file__).parents[1] / "results" / "study"
#: The arms of part C that a comparison repeats.
ARMS = (
    *("float32", "reduction_order", "reduction_order_run", "convolution_im2col"),
    "stale_targets",
)


def write(folder: Path = RESULTS) -> None:
    """Writes the file of the package from the records of the study in a folder."""
    text = json.dumps(summary(folder), separators=(",", ":"))
    records.write_bytes(published.PATH, f"{text}\n".encode())


def summary(folder: Path = RESULTS) -> dict[str, Any]:
    """Returns the content of the file, from the records of the study in a folder."""
    network = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(PART.network).items()
        if name in ("channels", "height", "width", "variant")
    }
    theory = records.read_json(folder / "A" / "theory.json")
    return {
        "setting": {
            **network,
            "data": PART.data,
            "window": PART.window,
            "last": published.LAST,
            "seeds": [PART.seeds[0], PART.seeds[-1]],
        },
        "by_updates": {str(n): _losses_after(folder, n) for n in published.UPDATES},
        "saddle": {
            "losses": {str(n): _saddle(folder, n) for n in published.SADDLE_UPDATES},
            "orders_away": float(np.median([s["orders"] for s in theory["seeds"]])),
        },
    }


def _losses_after(folder: Path, updates: int) -> dict[str, Any]:
    """Returns losses and distances of part C after a number of updates."""
    seeds = seed_records.read(PART, folder / PART.name)
    if updates == PART.updates:
        found = judgement.losses(seeds, judgement.PRIMARY)
        losses: dict[str, Any] = {arm: found[arm] for arm in ARMS}
    else:
        by_arm: dict[str, dict[str, list[float]]] = {arm: {} for arm in ARMS}
        curves = seed_records.curves(folder / PART.name)
        for seed in seeds:
            table = curves[curves.seed == seed.seed]
            for (arm, _), loss in _last_fifths(table, updates).items():
                by_arm[arm].setdefault(str(seed.seed), []).append(float(f"{loss:.6g}"))
        losses = dict(by_arm)
    distance = {
        str(seed.seed): next(
            float(f"{run.distance_over_travelled[str(updates)]:.4g}")
            for run in seed.runs
            if run.arm == "reduction_order"
        )
        for seed in seeds
    }
    return {"losses": losses, "distance_over_travelled": distance}


def _last_fifths(table: pd.DataFrame, updates: int) -> dict[tuple[str, int], float]:
    """Returns the mean loss of the last fifth of the updates, by arm and draw."""
    start = updates - updates // 5 + BIN
    chosen = table["update"].between(start, updates) & table.arm.isin(ARMS)
    runs = table[chosen].groupby(["arm", "draw"], sort=False).last_frame_loss
    return {run: float(np.mean(losses.to_numpy())) for run, losses in runs}


def _saddle(folder: Path, updates: int) -> dict[str, dict[str, float]]:
    """Returns the mean loss of the last fifth of the updates, by arm and seed."""
    losses: dict[str, dict[str, float]] = {arm: {} for arm in published.SADDLE_ARMS}
    for row in records.read_csv(folder / "A" / "runs.csv"):
        if row["program"] != "symmetric" or float(row["delta"]) != 0:
            continue
        width = int(row["updates"]) // symmetric.BINS
        stop = updates // width
        bins = [
            float(row[f"loss_{number:02d}"])
            for number in range(stop - stop // 5 + 1, stop + 1)
        ]
        if row["arm"] in losses:
            losses[row["arm"]][row["seed"]] = float(f"{np.mean(bins):.6g}")
    return losses
