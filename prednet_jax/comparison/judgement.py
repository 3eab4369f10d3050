"""Judges a comparison: from its runs on disk to verdict.json."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from prednet_jax import statistics
from prednet_jax.comparison.contrasts import (
    EXCLUSION_RULE,
    Contrast,
    Measured,
    contrasts,
    excluded,
    losses,
)
from prednet_jax.comparison.reading import ArmRuns, distance_over_travelled, read
from prednet_jax.runs import arms
from prednet_jax.runs.arms import Arm, Role
from prednet_jax.runs.design import Design
from prednet_jax.tasks import Task


def judge(design: Design, controls: Mapping[str, Any]) -> dict[str, Any]:
    """All contrasts and verdicts, as in verdict.json.

    Args:
        design: the comparison; its runs are on disk.
        controls: outcomes of the positive controls: `theory_matched`,
            `units_separated`, and `noise_can_help` if that was run.
    """
    found = {
        task.name: read([job for job in design.runs() if job.task == task])
        for task in design.tasks
    }
    measured = {
        task.name: losses(design, task, found[task.name]) for task in design.tasks
    }
    margins = statistics.margins_from_losses(measured, arms.CONTROL.name, design.margin)
    made = {
        task.name: contrasts(
            design,
            task,
            found[task.name],
            measured[task.name],
            margins[task.name].value,
        )
        for task in design.tasks
    }
    left_out = {
        task.name: excluded(task, found[task.name], measured[task.name])
        for task in design.tasks
    }
    checks = {
        task.name: manipulation(
            found[task.name], measured[task.name], arms.TREATMENT, arms.CONTROL
        )
        for task in design.tasks
    }
    verdicts = {
        task.name: statistics.decide(
            evidence(
                task,
                made[task.name],
                measured,
                checks[task.name],
                controls,
                left_out[task.name],
                _of_the_gpu(found[task.name], measured[task.name]),
            )
        ).as_dict()
        for task in design.tasks
    }
    every = [one for of_task in made.values() for one in of_task]
    return {
        "contrasts": [one.as_dict() for one in every],
        "verdict": {name: verdict["verdict"] for name, verdict in verdicts.items()},
        "details": verdicts,
        "losses": measured,
        "manipulation": {name: dataclasses.asdict(c) for name, c in checks.items()},
        "margins": {name: margin.as_dict() for name, margin in margins.items()},
        "controls": {name: _plain(value) for name, value in controls.items()},
        "arms": [row for arm_runs in found.values() for row in _arms(design, arm_runs)],
        "excluded": [row for of_task in left_out.values() for row in of_task],
        "fingerprints": {
            name: arm_runs[0].fingerprints() for name, arm_runs in found.items()
        },
        "design": _design(design, found),
    }


def manipulation(
    found: list[ArmRuns], measured: Measured, noisy: Arm, quiet: Arm
) -> statistics.Manipulation:
    """How far the first draw of a noise moved the trajectories of one network.

    Args:
        found: the runs of the network.
        measured: its losses; seeds that `EXCLUSION_RULE` leaves out have no distance.
        noisy: the arm with the noise.
        quiet: the arm without it.
    """
    treatment, control = (
        next(runs for runs in found if runs.arm == arm and runs.job.draw == 0)
        for arm in (noisy, quiet)
    )
    kept = statistics.match(measured, noisy.name, quiet.name).seeds
    places = [i for i, s in enumerate(control.job.seeds) if str(s) in kept]
    differ = treatment.final_bits() != control.final_bits()
    return statistics.manipulation(
        differ[places].tolist(), distance_over_travelled(treatment, control, places)
    )


def _of_the_gpu(
    found: list[ArmRuns], measured: Measured
) -> statistics.Manipulation | None:
    """`manipulation` by the GPU's noise; None unless both GPU arms have a seed."""
    by_role = {runs.arm.role: runs.arm for runs in found}
    both = [by_role.get(role) for role in (Role.GPU, Role.GPU_DETERMINISTIC)]
    if both[0] is None or both[1] is None:
        return None
    if not statistics.comparable(measured, both[0].name, both[1].name):
        return None
    return manipulation(found, measured, both[0], both[1])


def evidence(
    task: Task,
    made: list[Contrast],
    measured: statistics.Losses,
    check: statistics.Manipulation,
    controls: Mapping[str, Any],
    left_out: list[dict[str, Any]],
    gpu_check: statistics.Manipulation | None = None,
) -> statistics.Evidence:
    """Collects what the decision rule needs for one network.

    Args:
        task: the network.
        made: its contrasts.
        measured: the losses of all networks.
        check: the result of `manipulation` for the emulated noise.
        controls: as in `judge`.
        left_out: the result of `excluded`.
        gpu_check: the result of `manipulation` for the GPU's noise.
    """

    def of_role(role: Role) -> list[Contrast]:
        return [one for one in made if one.treatment.role is role]

    (emulated,) = of_role(Role.TREATMENT)
    pair = emulated.treatment.name, emulated.control.name
    draws = statistics.contrasts_of_draws(
        measured, task.name, pair, emulated.result.margin
    )
    questions = [
        statistics.Question(result=emulated.result, manipulation=check, draws=draws)
    ]
    gpu = _gpu(made)
    if gpu is not None:
        pair = gpu.control.name, gpu.treatment.name
        questions.append(
            statistics.Question(
                result=gpu.result.reversed(),
                manipulation=gpu_check,
                draws=statistics.contrasts_of_draws(
                    measured, task.name, pair, gpu.result.margin
                ),
                gpu=True,
            )
        )
    nulls = [one.result for one in of_role(Role.NULL)]
    stale = next((one.result for one in of_role(Role.STALE)), None)
    if stale is not None and not task.windowed:
        # With one image per update stale targets have no effect: one more null.
        nulls.append(stale)
        stale = None
    return statistics.Evidence(
        model=task.name,
        questions=tuple(questions),
        nulls=tuple(nulls),
        gaussian_ladder=tuple(
            (one.treatment.scale, one.result)
            for one in of_role(Role.GAUSSIAN)
            if one.treatment.scale is not None
        ),
        stale=stale,
        stale_applies=task.windowed,
        theory_matched=controls["theory_matched"],
        units_separated=controls["units_separated"],
        noise_can_help=controls.get("noise_can_help"),
        diverged=len({row["seed"] for row in left_out if _asked(row)}),
    )


def _plain(value: Any) -> Any:
    """A control's outcome in types that JSON has."""
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]


def _asked(row: Mapping[str, Any]) -> bool:
    """Whether a seed was left out of a contrast in question."""
    roles = arms.arm(row["treatment"]).role, arms.arm(row["control"]).role
    return roles[0] is Role.TREATMENT or roles == (Role.GPU_DETERMINISTIC, Role.GPU)


def _gpu(made: list[Contrast]) -> Contrast | None:
    """Deterministic minus default algorithms on the GPU; None unless both were run."""
    for one in made:
        if one.control.role is Role.GPU:
            return one
    return None


def _arms(design: Design, found: list[ArmRuns]) -> list[dict[str, Any]]:
    """The table of arms of one network; those that could not run come last."""
    skipped = dict(design.skipped)
    return [runs.as_dict() for runs in found if runs.job.draw == 0] + [
        {"model": found[0].job.model, "name": arm.name}
        | {"status": f"skipped: {skipped[arm.name]}"}
        | arm.as_dict()
        for arm in design.chosen
        if arm.name in skipped
    ]


def _design(design: Design, found: Mapping[str, list[ArmRuns]]) -> dict[str, Any]:
    """The entry `design` of verdict.json."""
    first = next(iter(found.values()))[0]
    manifest = first.runs[0].manifest
    return {
        "seeds": list(first.job.seeds),
        "metric": {task.name: design.metric_name(task) for task in design.tasks},
        "last_updates": {t.name: design.metric_updates(t) for t in design.tasks},
        "versions": manifest["versions"],
        "git_commit": manifest["git_commit"],
        "exclusion_rule": EXCLUSION_RULE,
        "device": manifest["device"],
    }
