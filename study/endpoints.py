"""The endpoints of a training of the study, as study/pages/plan.md defines them.

`plateau_left` and `parity` are numbers of updates, or null for never. The held-out loss
is on frames that no seed trains on: 100 of one walk, or 16 sequences.
"""

import dataclasses
from typing import Any

import numpy as np

PLATEAU_WIDTH, PARITY_WIDTH = 20, 250
#: The metrics that are kept of each update.
CURVES = ("loss", "last_frame_loss", "copy_last_frame_loss", "grad_norm")


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """The curves and weights of one training.

    `curves` are `[updates]` by name of `CURVES`, shorter if it diverged; `weights` a
    vector `[n]`, float64, after each of the part's snapshots; the held-out loss and the
    SHA-256 belong to the final weights.
    """

    curves: dict[str, np.ndarray]
    weights: dict[int, np.ndarray]
    held_out_loss: float
    sha256: str
    seconds: float

    def ended(self, updates: int) -> bool:
        """Returns whether all updates were made, each with a finite loss."""
        loss = self.curves["loss"]
        return len(loss) == updates and bool(np.isfinite(loss).all())


def endpoints(
    run: Trajectory, control: Trajectory, updates: int
) -> dict[str, float | int | bool | None]:
    """Returns the endpoints of a training; `diverged_at` alone if it diverged."""
    loss, copy = run.curves["loss"], run.curves["copy_last_frame_loss"]
    if not run.ended(updates):
        return {"diverged_at": len(loss)}
    last = -(updates // 5)
    # The level of `plateau_left` needs a control that reached its end.
    plateau_left = parity = None
    if control.ended(updates):
        reference = control.curves["loss"]
        halfway = np.sqrt(reference[:PLATEAU_WIDTH].mean() * reference[last:].mean())
        plateau_left = first_below(loss, PLATEAU_WIDTH, halfway)
    if updates > PARITY_WIDTH:
        level = trailing(copy, PARITY_WIDTH)
        parity = first_below_for_good(loss, PARITY_WIDTH, level)
    return {
        "last_frame_loss": float(run.curves["last_frame_loss"][last:].mean()),
        "window_loss": float(loss[last:].mean()),
        "over_copy": float(loss[last:].mean() / copy[last:].mean()),
        "held_out_loss": run.held_out_loss,
        "control_diverged": not control.ended(updates),
        "plateau_left": plateau_left,
        "parity": parity,
        "diverged_at": None,
    }


def relative_weight_distance(
    a: Trajectory, b: Trajectory, control: Trajectory, update: int
) -> float:
    """Returns the distance of two trainings over the control's from its start."""
    travelled = np.linalg.norm(control.weights[update] - control.weights[0])
    return float(np.linalg.norm(a.weights[update] - b.weights[update]) / travelled)


def trailing(curve: np.ndarray, width: int) -> np.ndarray:
    """Returns the mean of the last `width` values, from place `width` - 1 on."""
    sums = np.cumsum(np.concatenate([[0.0], curve]))
    return (sums[width:] - sums[:-width]) / width


def first_below_for_good(curve: np.ndarray, width: int, level: Any) -> int | None:
    """Returns the first update from which the trailing mean stays below a level."""
    above = ~(trailing(curve, width) < level)
    if above[-1]:
        return None
    return width + (int(np.flatnonzero(above)[-1]) + 1 if above.any() else 0)


def first_below(curve: np.ndarray, width: int, level: float) -> int | None:
    """Returns the first update whose trailing mean is below a level, or None."""
    below = trailing(curve, width) < level
    return width + int(np.argmax(below)) if below.any() else None
