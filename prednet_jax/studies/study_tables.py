"""Tables and verdict files of docs/study, from committed records.

A part that is not complete has no result; its tables say how much is recorded.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prednet_jax import records, statistics
from prednet_jax.report.documents import markdown
from prednet_jax.report.numbers import probability, significant
from prednet_jax.statistics import Check
from prednet_jax.studies import (
    described_tables,
    judgement,
    seed_records,
    symmetric_findings,
    symmetric_tables,
)
from prednet_jax.studies.described_tables import CONTRAST, contrast_cells
from prednet_jax.studies.parts import PARTS, Part

SADDLE = "A"
# Two programs x (three arms at six deltas, two more at delta 0) x five seeds.
SADDLE_RUNS = 2 * (3 * 6 + 2) * 5
# Two arms of the symmetric program at delta 0 x five seeds.
BLOCKS_RUNS = 2 * 5


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
    made["study-saddle-blocks"] = _saddle_with_part_c_noise(folder)
    for name, found in parts.items():
        if name != "C":
            made |= _described(PARTS[name], found, folder / name)
    doses = parts["B"] if done["B"][0] == done["B"][1] else []
    made["study-dose"] = (
        described_tables.doses(doses) if doses else waiting("B", *done["B"])
    )
    if not verdicts:
        names = ("verdict", "contrasts", "endpoints", "separation")
        missing = waiting("C", *done["C"])
        return made | {f"study-{name}": missing for name in names}
    described = {
        endpoint: verdicts[f"verdict_{endpoint}.json"]
        for endpoint in (*judgement.ENDPOINTS, *judgement.MOMENTS)
    }
    judged = verdicts.get("verdict.json")
    return made | {
        "study-verdict": "No verdict yet. A control of the rule is a rung of part B. "
        + waiting("B", *done["B"])
        if judged is None
        else verdict(judged),
        "study-contrasts": contrasts(described.pop(judgement.PRIMARY)),
        "study-endpoints": "\n\n".join(
            f"`{endpoint}`{_reached(endpoint, parts['C'])}\n\n{other_contrasts(record)}"
            for endpoint, record in described.items()
        ),
        "study-separation": described_tables.separation(parts["C"]),
    }


def _described(
    part: Part, found: Sequence[Mapping[str, Any]], folder: Path
) -> dict[str, str]:
    """The three tables of a part without a verdict."""
    names = [f"study-{part.name}{end}" for end in ("", "-endpoints", "-separation")]
    if len(found) < len(part.seeds):
        return dict.fromkeys(names, waiting(part.name, len(found), len(part.seeds)))
    paths = seed_records.finished(part, folder).values()
    made = (
        described_tables.against_control(found, seed_records.without_gradient(paths)),
        described_tables.other_endpoints(found),
        described_tables.separation(found),
    )
    return dict(zip(names, made, strict=True))


def _reached(endpoint: str, found: Sequence[Mapping[str, Any]]) -> str:
    if endpoint not in judgement.MOMENTS:
        return ""
    runs = [run for record in found for run in record["runs"]]
    ends = [run[endpoint] for run in runs if run["arm"] == judgement.CONTROL]
    reached = len(ends) - ends.count(None)
    return f", reached by {reached} of {len(ends)} runs of {judgement.CONTROL}"


def _saddle_blocks(folder: Path, rows: list[symmetric_findings.Row]) -> dict[str, str]:
    names = ("study-saddle", "study-saddle-checks", "study-saddle-theory")
    if len(rows) < SADDLE_RUNS:
        return dict.fromkeys(names, waiting(SADDLE, len(rows), SADDLE_RUNS))
    found = symmetric_findings.effects(rows)
    path = folder / SADDLE / "theory.json"
    measured = "Not measured yet."
    if path.exists():
        measured = symmetric_tables.theory(records.read_json(path), found)
    made = (
        symmetric_tables.saddle(found),
        symmetric_tables.checks(symmetric_findings.checks(rows)),
        measured,
    )
    return dict(zip(names, made, strict=True))


def _saddle_with_part_c_noise(folder: Path) -> str:
    name = f"{SADDLE}-blocks"
    path = folder / name / "runs.csv"
    rows = symmetric_findings.read(path) if path.exists() else []
    if len(rows) < BLOCKS_RUNS:
        return waiting(name, len(rows), BLOCKS_RUNS)
    return symmetric_tables.saddle(symmetric_findings.effects(rows))


def verdict_files(folder: Path, small: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The study's verdict files by name; none before part C is complete.

    Each endpoint has a file verdict_<endpoint>.json with its contrasts. verdict.json
    has the verdict; it waits for part B, whose largest Gaussian rung is a control of
    the rule.

    Args:
        folder: the directory results/study.
        small: verdict.json of the small comparison, which has the controls
            `theory_matched` and `units_separated`.
    """
    part = PARTS["C"]
    found = judgement.read(part, folder / part.name)
    if len(found) < len(part.seeds):
        return {}
    contrasts_of = {
        endpoint: judgement.all_contrasts(found, endpoint)
        for endpoint in (*judgement.ENDPOINTS, *judgement.MOMENTS)
    }
    made = {
        f"verdict_{endpoint}.json": judgement.describe(found, endpoint, contrasts)
        for endpoint, contrasts in contrasts_of.items()
    }
    doses = judgement.read(PARTS["B"], folder / "B")
    if len(doses) < len(PARTS["B"].seeds):
        return made
    rows = symmetric_findings.read(folder / SADDLE / "runs.csv")
    helps = None
    if len(rows) == SADDLE_RUNS:
        helps = noise_can_help(symmetric_findings.checks(rows))
    controls = {
        "theory_matched": small["controls"]["theory_matched"],
        "units_separated": small["controls"]["units_separated"],
        "noise_can_help": helps,
    }
    primary = contrasts_of[judgement.PRIMARY]
    return {"verdict.json": judgement.judge(found, doses, controls, primary)} | made


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
    """The verdict; an inconclusive one with what `refuted` and `supported` lack.

    Args:
        record: the study's verdict.json.
    """
    details = record["details"][judgement.MODEL]
    if details["verdict"] != "inconclusive":
        return f"**{details['verdict']}**. {details['sentence']}"
    lines = ["**inconclusive**"]
    for wanted, which in (
        ("refuted", ""),
        ("supported", ", in the contrast that lacks least"),
    ):
        lines += ["", f"What `{wanted}` lacks{which}:", ""]
        lines += [f"- {one}" for one in details[f"unmet_for_{wanted}"]]
    # What the sentence says after the two lists: seeds needed, limits.
    unmet = ", ".join(details["unmet_for_supported"])
    rest = details["sentence"].partition(f"Not supported because {unmet}.")[2]
    return "\n".join([*lines, "", rest.strip()])


def contrasts(record: Mapping[str, Any]) -> str:
    """Contrasts of the primary endpoint, with the tests that the rule uses.

    Args:
        record: verdict.json or verdict_<endpoint>.json.
    """
    head = (
        *CONTRAST,
        "gain / lose more than the margin",
        "excess at most",
        "p (Holm)",
        "p (equivalence)",
        "power (equivalence)",
        "finding",
    )
    rule = statistics.Rule()
    rows = [
        (
            *contrast_cells(one),
            f"{one['seeds_gaining']} / {one['seeds_losing']}",
            significant(
                statistics.excess_upper(
                    one["seeds_gaining"],
                    one["seeds_losing"],
                    one["n"],
                    alpha=rule.alpha,
                ),
                2,
            ),
            probability(one["p_holm"]),
            probability(one["tost_p"]),
            probability(
                statistics.tost_power(
                    one["n"],
                    margin=one["margin"],
                    sd=one["sd_difference"],
                    alpha=one["alpha"],
                )
            ),
            one["verdict"],
        )
        for one in record["contrasts"]
    ]
    return markdown(head, rows)


def other_contrasts(record: Mapping[str, Any]) -> str:
    """Contrasts of another endpoint: intervals alone, since it decides nothing."""
    return markdown(CONTRAST, [contrast_cells(one) for one in record["contrasts"]])


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
