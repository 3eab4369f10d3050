"""Tables and verdict files of docs/study, from committed records.

A part that is not complete has no result; its tables say how much is recorded.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prednet_jax import records
from prednet_jax.report.documents import markdown
from prednet_jax.report.numbers import MISSING, interval, probability, significant
from prednet_jax.statistics import Check
from prednet_jax.studies import judgement, symmetric_findings
from prednet_jax.studies.parts import PARTS
from prednet_jax.studies.symmetric_findings import Effect, summary

SADDLE = "A"
# Two programs x (three arms at six deltas, two more at delta 0) x five seeds.
SADDLE_RUNS = 2 * (3 * 6 + 2) * 5


def blocks(folder: Path, verdicts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """All tables of docs/study, by the name in their mark `<!-- table: NAME -->`.

    Args:
        folder: the directory results/study.
        verdicts: the result of `verdict_files`.
    """
    rows = symmetric_findings.read(folder / SADDLE / "runs.csv")
    parts = {name: judgement.read(part, folder / name) for name, part in PARTS.items()}
    done = {name: (len(parts[name]), len(part.seeds)) for name, part in PARTS.items()}
    made = {"study-progress": progress({SADDLE: (len(rows), SADDLE_RUNS)} | done)}
    made |= _saddle_blocks(folder, rows)
    for name in ("B", "C-digits", "D", "E"):
        count, planned = done[name]
        made[f"study-{name}"] = (
            against_control(parts[name])
            if count == planned
            else waiting(name, count, planned)
        )
    if not verdicts:
        names = ("study-verdict", "study-contrasts", "study-endpoints")
        return made | dict.fromkeys(names, waiting("C", *done["C"]))
    first = verdicts["verdict.json"]
    others = [record for record in verdicts.values() if record is not first]
    return made | {
        "study-verdict": verdict(first),
        "study-contrasts": contrasts(first),
        "study-endpoints": "\n\n".join(
            f"`{record['design']['metric'][judgement.MODEL]}`\n\n{contrasts(record)}"
            for record in others
        ),
    }


def _saddle_blocks(folder: Path, rows: list[symmetric_findings.Row]) -> dict[str, str]:
    names = ("study-saddle", "study-saddle-checks", "study-saddle-theory")
    if len(rows) < SADDLE_RUNS:
        return dict.fromkeys(names, waiting(SADDLE, len(rows), SADDLE_RUNS))
    found = symmetric_findings.effects(rows)
    path = folder / SADDLE / "theory.json"
    measured = "Not measured yet."
    if path.exists():
        measured = theory(records.read_json(path), found)
    made = (saddle(found), checks(symmetric_findings.checks(rows)), measured)
    return dict(zip(names, made, strict=True))


def verdict_files(folder: Path, small: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The study's verdict files by name; none before part C is complete.

    Args:
        folder: the directory results/study.
        small: verdict.json of the small comparison, which has the controls
            `theory_matched` and `units_separated`.
    """
    part = PARTS["C"]
    found = judgement.read(part, folder / part.name)
    if len(found) < len(part.seeds):
        return {}
    doses = judgement.read(PARTS["B"], folder / "B")
    if len(doses) < len(PARTS["B"].seeds):
        doses = []
    rows = symmetric_findings.read(folder / SADDLE / "runs.csv")
    helps = None
    if len(rows) == SADDLE_RUNS:
        helps = noise_can_help(symmetric_findings.checks(rows))
    controls = {
        "theory_matched": small["controls"]["theory_matched"],
        "units_separated": small["controls"]["units_separated"],
        "noise_can_help": helps,
    }
    made = {"verdict.json": judgement.judge(found, doses, controls)}
    for endpoint in (*judgement.ENDPOINTS, *judgement.MOMENTS):
        if endpoint != judgement.PRIMARY:
            made[f"verdict_{endpoint}.json"] = judgement.describe(found, endpoint)
    return made


def noise_can_help(found: Mapping[str, Check]) -> Check:
    """All checks of part A together, as one control of the rule."""
    return Check(
        passed=all(check.passed for check in found.values()),
        figure="; ".join(check.figure for check in found.values()),
    )


def waiting(part: str, done: int, planned: int) -> str:
    """The text that stands in for the table of an incomplete part."""
    return f"Part {part}: {done} of {planned} recorded. No result before the last."


def verdict(record: Mapping[str, Any]) -> str:
    """The verdict in words, with what `supported` and `refuted` lacked.

    Args:
        record: the study's verdict.json.
    """
    details = record["details"][judgement.MODEL]
    return f"**{details['verdict']}**. {details['sentence']}"


def saddle(found: Sequence[Effect]) -> str:
    """Part A: every arm at every delta of both programs.

    Args:
        found: the result of `symmetric_findings.effects`.
    """
    head = (
        "program",
        "delta",
        "arm",
        "separated at update",
        "loss of the last fifth",
        "over float32",
        "separates",
        "loss",
    )
    rows = [
        (
            effect.program,
            f"{effect.delta:g}",
            effect.arm,
            summary(effect.separated_at, "{:.0f}".format),
            summary(effect.losses),
            summary(effect.over_control, "{:.2f}".format),
            effect.separation,
            effect.loss,
        )
        for effect in found
    ]
    return markdown(head, rows)


def checks(found: Mapping[str, Check]) -> str:
    """Part A: its checks.

    Args:
        found: the result of `symmetric_findings.checks`.
    """
    rows = [
        (name, "passed" if check.passed else "**failed**", check.figure)
        for name, check in found.items()
    ]
    return markdown(("check", "outcome", "measured"), rows)


def theory(record: Mapping[str, Any], found: Sequence[Effect]) -> str:
    """Part A: the largest split at which noise matters, by theory and as measured.

    Args:
        record: theory.json.
        found: the result of `symmetric_findings.effects`.
    """
    rows = [
        (
            str(one["seed"]),
            f"{one['rate']:.4f}",
            f"{one['c_sigma']:.1e}",
            f"{one['useful']:.1e}",
            f"{one['initial']:.2f}",
            f"{one['orders']:.1f}",
        )
        for one in record["seeds"]
    ]
    text = markdown(
        (
            "seed",
            "growth per update",
            "c_sigma",
            "noise matters below",
            "asymmetry of random weights",
            "orders of magnitude between",
        ),
        rows,
    )
    largest = {
        program: symmetric_findings.largest_delta(found, program)
        for program in ("symmetric", "ordinary")
    }
    said = "; ".join(
        f"{program} program: {'none' if delta is None else f'{delta:g}'}"
        for program, delta in largest.items()
    )
    return f"{text}\n\nLargest delta at which tile order lowered the loss: {said}."


def contrasts(record: Mapping[str, Any]) -> str:
    """Contrasts of one endpoint.

    Args:
        record: verdict.json or verdict_<endpoint>.json.
    """
    head = (
        "contrast",
        "n",
        "mean, control",
        "difference [95 %]",
        "of the control",
        "largest",
        "gain / lose more than the margin",
        "p (Holm)",
        "p (equivalence)",
        "finding",
    )
    rows = [
        (
            f"{one['treatment']} - {one['control']}",
            str(one["n"]),
            significant(one["control_mean"], 4),
            f"{significant(one['mean_difference'], sign=True)} "
            f"{interval(one['ci_low'], one['ci_high'])}",
            f"{100 * one['mean_difference'] / one['control_mean']:+.2f} %",
            significant(one["max_abs_difference"]),
            f"{one['seeds_gaining']} / {one['seeds_losing']}",
            probability(one["p_holm"]),
            probability(one["tost_p"]),
            one["verdict"],
        )
        for one in record["contrasts"]
    ]
    return markdown(head, rows)


def against_control(found: Sequence[Mapping[str, Any]]) -> str:
    """Every arm of a part against its control, without a verdict.

    Args:
        found: records of the part's seeds.
    """
    head = (
        "arm",
        "n",
        "diverged",
        "loss over the control's",
        "difference [95 %]",
        "p",
        "distance / travelled",
    )
    rows = []
    for one in judgement.against_control(found):
        r, distance = one.result, one.manipulation
        rows.append(
            (
                f"{r.treatment} - {r.control}",
                str(r.n),
                str(one.diverged),
                f"{r.treatment_mean / r.control_mean:.3f}",
                f"{significant(r.mean_difference, sign=True)} "
                f"{interval(r.ci_low, r.ci_high)}",
                probability(r.p_value),
                MISSING
                if distance is None
                else f"{distance.distance_over_travelled:.2g}",
            )
        )
    return markdown(head, rows)


def progress(parts: Mapping[str, tuple[int, int]]) -> str:
    """How many runs of part A, and how many seeds of the others, are recorded.

    Args:
        parts: (recorded, planned) by name of the part.
    """
    rows = [
        (name, f"{done} of {planned}", _state(done, planned))
        for name, (done, planned) in parts.items()
    ]
    return markdown(("part", "recorded", "state"), rows)


def _state(done: int, planned: int) -> str:
    if not done:
        return "not begun"
    return "complete" if done == planned else "begun"
