"""From runs on disk to verdict.json."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from prednet_jax import statistics
from prednet_jax.comparison.arms import Role
from prednet_jax.comparison.contrasts import EXCLUSION_RULE, Contrast, contrasts
from prednet_jax.comparison.design import Design, Job
from prednet_jax.comparison.pilot import Pilot
from prednet_jax.comparison.reading import ArmRuns, read
from prednet_jax.tasks import Task

FindStall = Callable[[Job], statistics.Stall | None]
# Gaussian noise stands for the treatment's if its scale is within this factor.
_MATCHED_WITHIN = 10


def judge(
    design: Design,
    pilots: Mapping[str, Pilot],
    controls: Mapping[str, Any],
    find_stall: FindStall,
) -> dict[str, Any]:
    """All contrasts and verdicts, as verdict.json holds them.

    Args:
        design: the comparison; its runs are on disk.
        pilots: what `fix_margin` gave, by network.
        controls: the positive controls, with `theory_matched` and `units_separated`.
        find_stall: probes the curvature of a network's control job; asked only where
            noise lowered the loss beyond the margin, since only then it decides.
    """
    found = {
        task.name: read([job for job in design.runs() if job.task == task])
        for task in design.tasks
    }
    made = {
        task.name: contrasts(
            design, task, found[task.name], pilots[task.name].margin.value
        )
        for task in design.tasks
    }
    verdicts = {}
    for task in design.tasks:
        job = found[task.name][0].job
        verdicts[task.name] = statistics.decide(
            evidence(
                task, made[task.name], pilots[task.name], controls, job, find_stall
            )
        ).as_dict()
    every = [one for of_task in made.values() for one in of_task]
    return {
        "contrasts": [one.as_dict() for one in every],
        "verdict": {name: verdict["verdict"] for name, verdict in verdicts.items()},
        "details": verdicts,
        "margins": {name: pilot.as_dict() for name, pilot in pilots.items()},
        "controls": dict(controls),
        "arms": [row for arm_runs in found.values() for row in _arms(design, arm_runs)],
        "excluded": [row for one in every for row in one.excluded],
        "fingerprints": {
            name: arm_runs[0].fingerprints() for name, arm_runs in found.items()
        },
        "design": _design(design, found),
    }


def evidence(
    task: Task,
    made: list[Contrast],
    pilot: Pilot,
    controls: Mapping[str, Any],
    job: Job,
    find_stall: FindStall,
) -> statistics.Evidence:
    """What the decision rule looks at.

    Args:
        task: the network.
        made: its contrasts.
        pilot: its pilot.
        controls: the positive controls.
        job: that of the control.
        find_stall: as in `judge`.
    """
    in_question = [one for one in made if one.treatment.role is Role.TREATMENT]
    emulated = in_question[0].result
    gpu = _gpu(made)
    helps = [emulated] if gpu is None else [emulated, gpu.result.reversed()]
    margin = pilot.margin.value
    stall = find_stall(job) if any(one.ci_high < -margin for one in helps) else None
    nulls = [one.result for one in made if one.treatment.role is Role.NULL]
    stale = next((c.result for c in made if c.treatment.role is Role.STALE), None)
    if stale is not None and not task.windowed:
        nulls.append(stale)
        stale = None
    matched, ladder = rungs(task, made)
    asked = in_question if gpu is None else [*in_question, gpu]
    return statistics.Evidence(
        model=task.name,
        emulated=emulated,
        gpu=None if gpu is None else gpu.result,
        emulated_pilot_sd=None if math.isnan(pilot.sd) else pilot.sd,
        null=tuple(nulls),
        gaussian_matched=matched,
        gaussian_ladder=ladder,
        stale=stale,
        stale_applies=task.windowed,
        theory_matched=controls["theory_matched"],
        units_separated=controls["units_separated"],
        stall=stall,
        diverged=len({row["seed"] for one in asked for row in one.excluded}),
    )


def rungs(
    task: Task, made: list[Contrast]
) -> tuple[
    statistics.PairedResult | None, tuple[tuple[float, statistics.PairedResult], ...]
]:
    """The Gaussian contrast of the treatment's size, and the ladder of the others.

    The rung nearest to `task.matched_scale` stands for noise of that size, if within a
    factor of ten; it is none of the ladder's, which asks whether more noise helps.
    """
    ladder = [
        (one.treatment.scale, one.result)
        for one in made
        if one.treatment.role is Role.GAUSSIAN and one.treatment.scale is not None
    ]
    if task.matched_scale is None or not ladder:
        return None, tuple(ladder)
    expected = math.log(task.matched_scale)
    nearest = min(ladder, key=lambda rung: abs(math.log(rung[0]) - expected))
    if abs(math.log(nearest[0]) - expected) > math.log(_MATCHED_WITHIN):
        return None, tuple(ladder)
    return nearest[1], tuple(rung for rung in ladder if rung is not nearest)


def _gpu(made: list[Contrast]) -> Contrast | None:
    """Deterministic minus default algorithms on the GPU, where both were run."""
    for one in made:
        if one.control.role is Role.GPU:
            return one
    return None


def _arms(design: Design, found: list[ArmRuns]) -> list[dict[str, Any]]:
    """The table of arms of one network, those that could not run at the end."""
    skipped = dict(design.skipped)
    return [arm_runs.as_dict() for arm_runs in found] + [
        {"model": found[0].job.model, "name": arm.name}
        | {"status": f"skipped: {skipped[arm.name]}"}
        | arm.as_dict()
        for arm in design.chosen
        if arm.name in skipped
    ]


def _design(design: Design, found: Mapping[str, list[ArmRuns]]) -> dict[str, Any]:
    """How the comparison was made."""
    first = next(iter(found.values()))[0]
    manifest = first.runs[0].manifest
    return {
        "seeds": list(first.job.seeds),
        "pilot_seeds": list(design.pilot()[0].seeds),
        "metric": {task.name: design.metric_name(task) for task in design.tasks},
        "last_updates": {t.name: design.metric_updates(t) for t in design.tasks},
        "versions": manifest["versions"],
        "git_commit": manifest["git_commit"],
        "exclusion_rule": EXCLUSION_RULE,
        "device": manifest["device"],
    }
