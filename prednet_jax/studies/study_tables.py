"""Tables and verdict files of docs/study, from committed records.

A part that is not complete has no result; its tables say how much is recorded.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from prednet_jax import records, statistics
from prednet_jax.report.documents import markdown, spread
from prednet_jax.statistics import Check
from prednet_jax.studies import (
    described_tables,
    judgement,
    seed_records,
    symmetric_findings,
)
from prednet_jax.studies.described_tables import CONTRAST, contrasts_frame
from prednet_jax.studies.parts import PARTS, Part

SADDLE = "A"
#: Parts with the tables of `described`. (Part C has a verdict, part F its own tables.)
DESCRIBED = ("B", "C-digits", "C-noise", "D", "E")
# Two programs x (three arms at six deltas, two more at delta 0) x five seeds.
SADDLE_RUNS = 2 * (3 * 6 + 2) * 5
Record = Mapping[str, Any]


def blocks(folder: Path, verdicts: Mapping[str, Record]) -> dict[str, str]:
    """All tables of docs/study, by the name in their mark `<!-- table: NAME -->`.

    Args:
        folder: the directory results/study.
        verdicts: the result of `verdict_files`.
    """
    rows = symmetric_findings.read(folder / SADDLE / "runs.csv")
    coarse = symmetric_findings.read(folder / f"{SADDLE}-blocks" / "runs.csv")
    parts = {
        name: judgement.read(part, folder / name)
        for name, part in PARTS.items()
        if name in ("C", *DESCRIBED)
    }
    done = {name: (len(found), len(PARTS[name].seeds)) for name, found in parts.items()}
    effects = symmetric_findings.effects(rows)
    made = {
        "study-progress": progress({SADDLE: (len(rows), SADDLE_RUNS)} | done),
        "study-saddle": saddle(effects),
        "study-saddle-checks": saddle_checks(symmetric_findings.checks(rows)),
        "study-saddle-theory": saddle_theory(
            records.read_json(folder / SADDLE / "theory.json"), effects
        ),
        "study-saddle-blocks": saddle(symmetric_findings.effects(coarse)),
        "study-dose": described_tables.doses(parts["B"]),
        "study-verdict": verdict(verdicts["verdict.json"]),
        "study-contrasts": contrasts(verdicts["verdict.json"]),
        "study-endpoints": "\n\n".join(
            f"`{endpoint}`{_reached(endpoint, parts['C'])}\n\n"
            + other_contrasts(verdicts[f"verdict_{endpoint}.json"])
            for endpoint in (*judgement.ENDPOINTS[1:], *judgement.MOMENTS)
        ),
        "study-separation": described_tables.separation(parts["C"]),
    }
    for name in DESCRIBED:
        made |= described(PARTS[name], parts[name], folder / name)
    return made


def described(part: Part, found: Sequence[Record], folder: Path) -> dict[str, str]:
    """The three tables of a part without a verdict."""
    names = [f"study-{part.name}{end}" for end in ("", "-endpoints", "-separation")]
    if len(found) < len(part.seeds):
        said = f"Part {part.name}: {len(found)} of {len(part.seeds)} recorded."
        return dict.fromkeys(names, f"{said} No result before the last.")
    paths = seed_records.finished(part, folder).values()
    made = (
        described_tables.against_control(found, seed_records.without_gradient(paths)),
        described_tables.other_endpoints(found),
        described_tables.separation(found),
    )
    return dict(zip(names, made, strict=True))


def _reached(endpoint: str, found: Sequence[Record]) -> str:
    if endpoint not in judgement.MOMENTS:
        return ""
    runs = [run for record in found for run in record["runs"]]
    ends = [run[endpoint] for run in runs if run["arm"] == judgement.CONTROL]
    reached = len(ends) - ends.count(None)
    return f", reached by {reached} of {len(ends)} runs of {judgement.CONTROL}"


def verdict_files(folder: Path, small: Record) -> dict[str, dict[str, Any]]:
    """The study's verdict files by name, from the records of parts A, B and C.

    Each endpoint has a file verdict_<endpoint>.json with its contrasts. verdict.json
    has the verdict; the largest Gaussian rung of part B is a control of the rule.

    Args:
        folder: the directory results/study.
        small: verdict.json of the small comparison, which has the controls
            `theory_matched` and `units_separated`.
    """
    found, doses = (judgement.read(PARTS[name], folder / name) for name in "CB")
    contrasts_of = {
        endpoint: judgement.all_contrasts(found, endpoint)
        for endpoint in (*judgement.ENDPOINTS, *judgement.MOMENTS)
    }
    checks = symmetric_findings.checks(
        symmetric_findings.read(folder / SADDLE / "runs.csv")
    )
    controls = {
        "theory_matched": small["controls"]["theory_matched"],
        "units_separated": small["controls"]["units_separated"],
        "noise_can_help": noise_can_help(checks),
    }
    primary = contrasts_of[judgement.PRIMARY]
    return {"verdict.json": judgement.judge(found, doses, controls, primary)} | {
        f"verdict_{endpoint}.json": judgement.describe(found, endpoint, contrasts)
        for endpoint, contrasts in contrasts_of.items()
    }


def noise_can_help(found: Mapping[str, Check]) -> Check:
    """All checks of part A together, as one control of the rule."""
    return Check(
        passed=all(check.passed for check in found.values()),
        figure="; ".join(check.figure for check in found.values()),
    )


def verdict(record: Record) -> str:
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


def contrasts(record: Record) -> str:
    """Contrasts of the primary endpoint, with the tests that the rule uses.

    Args:
        record: verdict.json or verdict_<endpoint>.json.
    """
    frame = contrasts_frame(record["contrasts"])
    frame["excess"] = [
        statistics.excess_upper(
            one.seeds_gaining, one.seeds_losing, one.n, alpha=statistics.Rule().alpha
        )
        for one in frame.itertuples()
    ]
    frame["power"] = [
        statistics.tost_power(
            one.n, margin=one.margin, sd=one.sd_difference, alpha=one.alpha
        )
        for one in frame.itertuples()
    ]
    gains = "gain / lose more than the margin"
    return markdown(
        frame,
        CONTRAST
        | {
            gains: "{seeds_gaining} / {seeds_losing}",
            "excess at most": "{excess:sig2}",
            "p (Holm)": "{p_holm:prob}",
            "p (equivalence)": "{tost_p:prob}",
            "power (equivalence)": "{power:prob}",
            "finding": "{verdict}",
        },
    )


def other_contrasts(record: Record) -> str:
    """Contrasts of another endpoint: intervals alone, since it decides nothing."""
    return markdown(contrasts_frame(record["contrasts"]), CONTRAST)


def progress(parts: Mapping[str, tuple[int, int]]) -> str:
    """How many runs of part A, and how many seeds of the others, are recorded.

    Args:
        parts: (recorded, planned) by name of the part.
    """

    def state(row: Record) -> str:
        if not row["done"]:
            return "not begun"
        return "complete" if row["done"] == row["planned"] else "begun"

    frame = pd.DataFrame.from_dict(parts, orient="index", columns=["done", "planned"])
    return markdown(
        frame.rename_axis("part").reset_index(),
        {"part": "{part}", "recorded": "{done} of {planned}", "state": state},
    )


def saddle(found: Sequence[symmetric_findings.Effect]) -> str:
    """Part A: every arm at every delta of both programs."""
    return markdown(
        pd.DataFrame(found),
        {
            "program": "{program}",
            "delta": "{delta:g}",
            "arm": "{arm}",
            "separated at update": spread("separated_at", "{:.0f}"),
            "loss of the last fifth": spread("losses"),
            "over float32": spread("over_control", "{:.2f}"),
            "separates": "{separation}",
            "loss": "{loss}",
        },
    )


def saddle_checks(found: Mapping[str, Check]) -> str:
    """Part A: its checks."""
    rows = [
        (name, "passed" if check.passed else "**failed**", check.figure)
        for name, check in found.items()
    ]
    return markdown(pd.DataFrame(rows, columns=["check", "outcome", "measured"]))


def saddle_theory(record: Record, found: Sequence[symmetric_findings.Effect]) -> str:
    """Part A: the largest split at which noise matters, by theory and as measured.

    Args:
        record: theory.json.
        found: the result of `symmetric_findings.effects`.
    """
    table = markdown(
        pd.DataFrame(record["seeds"]),
        {
            "seed": "{seed}",
            "growth per update, ln r": "{rate:.4f}",
            "c_sigma": "{c_sigma:.1e}",
            "noise matters below": "{useful:.1e}",
            "asymmetry of random weights": "{initial:.2f}",
            "orders of magnitude between": "{orders:.1f}",
        },
    )
    largest = {
        program: symmetric_findings.largest_delta(found, program)
        for program in ("symmetric", "ordinary")
    }
    said = "; ".join(
        f"{program} program: {'none' if delta is None else f'{delta:g}'}"
        for program, delta in largest.items()
    )
    return f"{table}\n\nLargest delta at which tile order lowered the loss: {said}."
