"""Tables and verdict files of docs/study, from committed records.

A part that is not complete has no result; its tables say how much is recorded.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from prednet_jax import records
from prednet_jax.report.documents import markdown, spread
from prednet_jax.report.numbers import change, probability, significant
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


def verdict_files(folder: Path) -> dict[str, dict[str, Any]]:
    """The study's verdict files by name, from the records of part C.

    Each endpoint has a file verdict_<endpoint>.json with its contrasts. verdict.json
    has the answer as well.

    Args:
        folder: the directory results/study.
    """
    found = judgement.read(PARTS["C"], folder / "C")
    contrasts_of = {
        endpoint: judgement.all_contrasts(found, endpoint)
        for endpoint in (*judgement.ENDPOINTS, *judgement.MOMENTS)
    }
    judged = judgement.judge(found, contrasts_of[judgement.PRIMARY])
    return {"verdict.json": judged} | {
        f"verdict_{endpoint}.json": judgement.describe(found, endpoint, contrasts)
        for endpoint, contrasts in contrasts_of.items()
    }


def verdict(record: Record) -> str:
    """The answer, and what is reported beside it, in percent of the loss.

    Args:
        record: the study's verdict.json.
    """
    of = record["details"][judgement.MODEL]
    mixed, ratio, seeds = of["mixed_model"], of["scatter_ratio"], of["seed_spread"]
    apart = record["manipulation"][judgement.MODEL]["distance_over_travelled"]

    def shown(of: Record, *names: str) -> str:
        mean, low, high = (100 * of[name] for name in names)
        return change(mean, low, high)

    ends = ("estimate", "low", "high")
    rows = {
        "random against fixed orders": shown(of, *ends),
        "the same, 90 % interval of the equivalence test": shown(
            of, "estimate", "low_90", "high_90"
        ),
        "the same, difference of the mean losses": shown(
            of, "raw", "raw_low", "raw_high"
        ),
        "the same, mixed model": shown(mixed, *ends),
        "p: sign flip; permutation within seeds; equivalence": "; ".join(
            probability(of[name]) for name in ("p_value", "permutation_p", "tost_p")
        ),
        **{
            f"{claim['claim']}: {claim['answer']}": shown(claim, *ends)
            for claim in record["claims"][1:]
        },
        "effect from seed to seed, standard deviation; at most": (
            f"{100 * seeds['sd']:.2f} %; {100 * seeds['upper']:.2f} %"
        ),
        "scatter of a seed's runs, standard deviation": f"{100 * of['scatter']:.2f} %",
        "scatter of random over that of fixed orders": (
            f"{ratio['ratio']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}], "
            f"p {probability(ratio['p_value'])}"
        ),
        "two runs of a new seed differ by less than, in 95 of 100": (
            f"{100 * of['redraw_interval']['limit']:.1f} %"
        ),
        "distance / travelled": significant(apart, 2),
    }
    table = markdown(pd.DataFrame(list(rows.items()), columns=["what", "found"]))
    return f"**{of['answer']}** (`{of['verdict']}`; {of['status']})\n\n{table}"


def contrasts(record: Record) -> str:
    """Contrasts of the primary endpoint, in units of the loss.

    Args:
        record: verdict.json or verdict_<endpoint>.json.
    """
    return markdown(
        contrasts_frame(raw(record)),
        CONTRAST
        | {
            "p (Holm)": "{p_holm:prob}",
            "p (equivalence)": "{tost_p:prob}",
            "finding": "{verdict}",
        },
    )


def raw(record: Record) -> list[Record]:
    """The contrasts in units of the loss, without those of its logarithm."""
    return [one for one in record["contrasts"] if one.get("scale") != "log"]


def other_contrasts(record: Record) -> str:
    """Contrasts of another endpoint: intervals alone, since it decides nothing."""
    return markdown(contrasts_frame(raw(record)), CONTRAST)


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
