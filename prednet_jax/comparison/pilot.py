"""The pilot: what is fixed before the first main run starts."""

import dataclasses
from typing import Any

import numpy as np

from prednet_jax import records, statistics
from prednet_jax.comparison import arms
from prednet_jax.comparison.contrasts import not_finite
from prednet_jax.comparison.design import Design
from prednet_jax.comparison.reading import read
from prednet_jax.errors import UserError
from prednet_jax.tasks import Task


@dataclasses.dataclass(frozen=True)
class Pilot:
    """What the pilot of a network fixes.

    Attributes:
        margin: the margin of equivalence.
        sd: standard deviation over the seeds of the differences between treatment and
            control, by which power is planned.
        left_out: seeds that diverged in one arm, left out of all, each with `seed` and
            `reason`.
    """

    margin: statistics.Margin
    sd: float
    left_out: tuple[dict[str, Any], ...] = ()

    def planned_power(self, seeds: int) -> float:
        """Power of the equivalence test with that many seeds, at no difference."""
        return statistics.tost_power(seeds, margin=self.margin.value, sd=self.sd)

    def as_dict(self) -> dict[str, Any]:
        """A JSON object: the margin, and what it was fixed with."""
        return self.margin.as_dict() | {
            "pilot_sd_of_differences": self.sd,
            "pilot_left_out": list(self.left_out),
        }


def fix_margin(design: Design, task: Task) -> Pilot:
    """The margin of equivalence, written to disk before the first main run.

    Args:
        design: the comparison; its pilot has run.
        task: the network.

    Returns:
        The margin, and what it was fixed with. The origin of the margin names the
        seeds that were left out.

    Raises:
        UserError: fewer than two seeds of the pilot are left, or their losses fix no
            margin.
    """
    jobs = [job for job in design.pilot() if job.task == task]
    last = design.metric_updates(task)
    losses = {found.arm: found.metric(last) for found in read(jobs)}
    finite = np.isfinite(list(losses.values())).all(axis=0)
    left_out = tuple(
        {"seed": jobs[0].seeds[i], "reason": not_finite(losses, i)}
        for i in np.flatnonzero(~finite).tolist()
    )
    if finite.sum() < 2:
        raise UserError(
            f"pilot of {task.name}: {finite.sum()} of {finite.size} seeds ended with a "
            "finite loss in every arm, expected at least 2"
        )
    losses = {arm: values[finite] for arm, values in losses.items()}
    control = losses[arms.CONTROL]
    # Stale targets cannot move a network with one image per update.
    stale = losses[arms.STALE] if task.windowed else None
    try:
        margin = statistics.margin(control, stale)
    except ValueError as error:
        raise UserError(f"pilot of {task.name}: {error}") from None
    for row in left_out:
        origin = f"{margin.origin}; without seed {row['seed']} ({row['reason']})"
        margin = dataclasses.replace(margin, origin=origin)
    sd = float(np.std(losses[arms.TREATMENT] - control, ddof=1))
    pilot = Pilot(margin, sd, left_out)
    records.write_json(design.root / f"margin_{task.name}.json", pilot.as_dict())
    return pilot
