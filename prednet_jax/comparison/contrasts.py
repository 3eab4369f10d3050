"""Paired contrasts between the arms of one network, and the seeds they leave out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from prednet_jax import statistics
from prednet_jax.comparison.reading import ArmRuns, distances
from prednet_jax.runs.arms import Arm, Role
from prednet_jax.runs.design import Design
from prednet_jax.tasks import Task

EXCLUSION_RULE = (
    "a seed whose loss is not finite in the averaged updates of either arm is left out "
    "of that contrast, in both arms, and counted; nothing else is left out"
)
#: `{arm: {seed: [metric of each noise draw]}}`.
Measured = Mapping[str, Mapping[str, list[float]]]


@dataclass(frozen=True)
class Contrast:
    """A treatment minus a control.

    Attributes:
        treatment: the arm.
        control: the arm that it is compared with.
        result: the paired test over the seeds that are kept.
        beside: further fields of verdict.json.
    """

    treatment: Arm
    control: Arm
    result: statistics.PairedResult
    beside: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """The contrast as in verdict.json."""
        return self.result.as_dict() | self.beside | self.treatment.as_dict()


def losses(design: Design, task: Task, found: list[ArmRuns]) -> Measured:
    """The metric by arm, seed and noise draw, as in verdict.json.

    Args:
        design: the comparison.
        task: the network.
        found: the network's runs, with the draws of each arm in order.
    """
    last = design.metric_updates(task)
    by_arm: dict[str, dict[str, list[float]]] = {}
    for of_draw in found:
        seeds = by_arm.setdefault(of_draw.arm.name, {})
        values = of_draw.metric(last).tolist()
        for seed, value in zip(of_draw.job.seeds, values, strict=True):
            seeds.setdefault(str(seed), []).append(value)
    return by_arm


def contrasts(
    design: Design,
    task: Task,
    found: list[ArmRuns],
    measured: Measured,
    margin: float,
) -> list[Contrast]:
    """Every arm minus the control, with Holm's correction.

    The deterministic GPU is compared with the default GPU where both were run. A pair
    of which `EXCLUSION_RULE` leaves no seed has no contrast.

    Args:
        design: the comparison.
        task: the network.
        found: the network's runs, the control first.
        measured: the result of `losses`.
        margin: margin of equivalence, in units of the loss.
    """
    pairs = {
        (treatment.arm.name, control.arm.name): (treatment, control)
        for treatment, control in _pairs(found)
    }
    results = statistics.contrasts_from_losses(
        {task.name: measured},
        list(pairs),
        {task.name: margin},
        metric=design.metric_name(task),
    )
    by_pair = {(result.treatment, result.control): result for result in results}
    return [
        _contrast(*both, measured, by_pair[names])
        for names, both in pairs.items()
        if names in by_pair
    ]


def excluded(
    task: Task, found: list[ArmRuns], measured: Measured
) -> list[dict[str, Any]]:
    """One record for each seed that `EXCLUSION_RULE` leaves out of a contrast."""
    return [
        {"model": task.name, "treatment": treatment, "control": control}
        | {"seed": seed, "reason": f"loss not finite in {' and '.join(broken)}"}
        for treatment, control, seeds in (
            (one.arm.name, other.arm.name, other.job.seeds)
            for one, other in _pairs(found)
        )
        for seed in seeds
        if (broken := _not_finite(measured, (treatment, control), str(seed)))
    ]


def _pairs(found: list[ArmRuns]) -> list[tuple[ArmRuns, ArmRuns]]:
    """(treatment, control) of every contrast."""
    control, *treatments = (runs for runs in found if runs.job.draw == 0)
    gpu = next((runs for runs in treatments if runs.arm.role is Role.GPU), control)
    return [
        (runs, gpu if runs.arm.role is Role.GPU_DETERMINISTIC else control)
        for runs in treatments
    ]


def _contrast(
    treatment: ArmRuns,
    control: ArmRuns,
    measured: Measured,
    result: statistics.PairedResult,
) -> Contrast:
    names = treatment.arm.name, control.arm.name
    matched = statistics.match(measured, *names)
    kept = np.asarray([str(seed) in matched.seeds for seed in control.job.seeds])
    same = treatment.final_bits() == control.final_bits()
    beside = {
        "bitwise_equal": int(same[kept].sum()),
        "n_excluded": len(matched.excluded),
        "variability": distances(treatment, control, kept),
    }
    return Contrast(treatment.arm, control.arm, result, beside)


def _not_finite(measured: Measured, names: tuple[str, str], seed: str) -> list[str]:
    """The arms for which `EXCLUSION_RULE` leaves out a seed."""
    return [name for name in names if not np.isfinite(measured[name][seed]).all()]
