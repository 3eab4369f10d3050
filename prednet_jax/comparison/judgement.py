"""Judges a comparison: from its runs on disk to verdict.json."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from prednet_jax import statistics
from prednet_jax.comparison.contrasts import (
    EXCLUSION_RULE,
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


def judge(
    design: Design,
    controls: Mapping[str, Any],
    study: Mapping[str, statistics.Arms] | None = None,
    others: Sequence[statistics.Claim] = (),
) -> dict[str, Any]:
    """All contrasts and verdicts, as in verdict.json.

    Args:
        design: the comparison; its runs are on disk.
        controls: outcomes of the positive controls: `theory_matched`,
            `units_separated`, and `noise_can_help` if that was run.
        study: losses of the published study, by networks for which the comparison
            repeats it.
        others: claims that do not come from its runs.
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
    answers = {
        task.name: asked(found[task.name], measured[task.name], task.name, design)
        for task in design.tasks
    }
    every_claim = [
        claim
        for task in design.tasks
        for claim in claims(
            task,
            answers[task.name],
            measured[task.name],
            (study or {}).get(task.name),
        )
    ] + list(others)
    every = [
        row
        for task in design.tasks
        for row in (
            *(one.as_dict() for one in made[task.name]),
            *(
                one.contrast(f"log of the {design.metric_name(task)}")
                for one in answers[task.name]
            ),
        )
    ]
    return {
        "contrasts": every,
        "verdict": {name: statistics.verdict(of) for name, of in answers.items()},
        "details": {name: details(of) for name, of in answers.items()},
        **said(every_claim),
        "losses": measured,
        "manipulation": {
            name: dataclasses.asdict(of[0].check)
            for name, of in answers.items()
            if of[0].check is not None
        },
        "margins": {name: margin.as_dict() for name, margin in margins.items()},
        "controls": dict(controls),
        "arms": [row for arm_runs in found.values() for row in _arms(design, arm_runs)],
        "excluded": [row for of_task in left_out.values() for row in of_task],
        "fingerprints": {
            name: arm_runs[0].fingerprints() for name, arm_runs in found.items()
        },
        "design": _design(design, found),
    }


def asked(
    found: list[ArmRuns], measured: Measured, model: str, design: Design
) -> list[statistics.Answered]:
    """The answer about random orders, and about a GPU's own noise if it was run.

    Args:
        found: the runs of a network.
        measured: its losses.
        model: its name.
        design: the comparison.
    """
    by_role = {runs.arm.role: runs.arm for runs in found}
    questions = [(arms.TREATMENT, arms.CONTROL, statistics.FIXED_ORDERS)]
    gpu, quiet = by_role.get(Role.GPU), by_role.get(Role.GPU_DETERMINISTIC)
    if gpu and quiet and statistics.comparable(measured, gpu.name, quiet.name):
        questions.append((gpu, quiet, quiet.name))
    return [
        statistics.ask(
            model,
            measured,
            manipulation(found, measured, noisy, still),
            treatment=noisy.name,
            control=control,
            margin=design.margin,
        )
        for noisy, still, control in questions
    ]


def details(answers: list[statistics.Answered]) -> dict[str, Any]:
    """What is known of the answers of one network, and in sentences."""
    sentences = [one.sentence for one in answers]
    if len(answers) == 1:
        sentences.append("This is about emulated noise only: no GPU was used.")
    return answers[0].as_dict() | {
        "verdict": statistics.verdict(answers),
        "sentence": " ".join(sentences),
        "emulated_only": len(answers) == 1,
    }


def claims(
    task: Task,
    answers: list[statistics.Answered],
    measured: Measured,
    study: statistics.Arms | None,
) -> list[statistics.Claim]:
    """What the comparison says about one network.

    With one image per update stale targets cannot have an effect.

    Args:
        task: the network.
        answers: the result of `asked`.
        measured: its losses.
        study: losses of the study that is repeated; None: there is none.
    """
    found = [statistics.noise_claim(one, study) for one in answers]
    stale, margin = arms.STALE.name, answers[0].effect.margin
    if task.windowed and statistics.comparable(measured, stale, arms.CONTROL.name):
        found.insert(
            0, statistics.stale_claim(task.name, measured, stale, margin, study)
        )
    return found


def said(found: Sequence[statistics.Claim]) -> dict[str, Any]:
    """`claims`, and what they say `together` with the study that is repeated."""
    both = [claim.together() for claim in found]
    return {
        "claims": [claim.as_dict() for claim in found],
        "together": [one for one in both if one is not None],
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


def _arms(design: Design, found: list[ArmRuns]) -> list[dict[str, Any]]:
    """The table of arms of one network; those that could not run come last."""
    skipped = dict(design.skipped)
    return [runs.as_dict() for runs in found if runs.job.draw == 0] + [
        {"model": found[0].job.model, "name": arm.name}
        | {"status": f"skipped: {skipped[arm.name]}"}
        | arm.as_dict()
        for arm in design.arms_of(found[0].job.task)
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
