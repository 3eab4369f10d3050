"""Paired contrasts of the arms of one network, and the seeds left out of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from prednet_jax import statistics
from prednet_jax.comparison.arms import Arm, Role
from prednet_jax.comparison.design import Design
from prednet_jax.comparison.reading import ArmRuns, distances
from prednet_jax.errors import UserError
from prednet_jax.tasks import Task

EXCLUSION_RULE = (
    "a seed whose loss is not finite in the averaged updates of either arm is left out "
    "of that contrast, in both arms, and counted; nothing else is left out"
)


@dataclass(frozen=True)
class Contrast:
    """A treatment minus a control.

    Attributes:
        treatment: the arm.
        control: what it is compared with.
        result: the paired test over the seeds kept.
        beside: what the table shows beside it.
        excluded: what `EXCLUSION_RULE` left out.
    """

    treatment: Arm
    control: Arm
    result: statistics.PairedResult
    beside: dict[str, Any]
    excluded: tuple[dict[str, Any], ...]

    def as_dict(self) -> dict[str, Any]:
        """One contrast of verdict.json."""
        return self.result.as_dict() | self.beside | self.treatment.as_dict()


def contrasts(
    design: Design, task: Task, found: list[ArmRuns], margin: float
) -> list[Contrast]:
    """Every arm against the control, after Holm.

    The deterministic GPU is compared with the default one where both were run.

    Args:
        design: the comparison.
        task: the network.
        found: its runs, the control first.
        margin: of equivalence.

    Raises:
        UserError: no seed of a contrast is left.
    """
    by_role = {arm_runs.arm.role: arm_runs for arm_runs in found}
    made = []
    for treatment in found[1:]:
        control = found[0]
        if treatment.arm.role is Role.GPU_DETERMINISTIC:
            control = by_role.get(Role.GPU, control)
        made.append(_contrast(design, task, treatment, control, margin))
    corrected = statistics.holm(
        [one.result for one in made], f"all {len(made)} contrasts of {task.name}"
    )
    return [replace(c, result=r) for c, r in zip(made, corrected, strict=True)]


def _contrast(
    design: Design, task: Task, treatment: ArmRuns, control: ArmRuns, margin: float
) -> Contrast:
    last = design.metric_updates(task)
    losses = {arm_runs.arm: arm_runs.metric(last) for arm_runs in (treatment, control)}
    kept = np.asarray(np.isfinite(list(losses.values())).all(axis=0))
    names = {"treatment": treatment.arm.name, "control": control.arm.name}
    if not kept.any():
        raise UserError(
            f"{' - '.join(names.values())} of {task.name}: no seed with a finite loss "
            "in both arms; expected at least one"
        )
    ours, theirs = (values[kept] for values in losses.values())
    result = statistics.paired(ours, theirs, margin=margin).labelled(
        model=task.name, metric=design.metric_name(task), **names
    )
    beside = {
        "treatment_mean": float(ours.mean()),
        "control_mean": float(theirs.mean()),
        "bitwise_equal": int(
            (treatment.final_bits() == control.final_bits())[kept].sum()
        ),
        "n_excluded": int((~kept).sum()),
        "variability": distances(treatment, control, kept),
    }
    excluded = tuple(
        {"model": task.name, **names}
        | {"seed": treatment.job.seeds[i], "reason": not_finite(losses, i)}
        for i in np.flatnonzero(~kept).tolist()
    )
    return Contrast(treatment.arm, control.arm, result, beside, excluded)


def not_finite(losses: Mapping[Arm, np.ndarray], seed: int) -> str:
    """Why `EXCLUSION_RULE` leaves out the seed at a place in the losses of arms."""
    broken = [arm.name for arm, found in losses.items() if not np.isfinite(found[seed])]
    return f"loss not finite in {' and '.join(broken)}"
