"""Tables of docs/study, from committed records; what they show of part C is judged.

A part that is not complete has no result; its tables say how much is recorded. Part F
has records of other scripts:

results/study/F/plateau_<seed>.json       of probe_curvature.py, on the plateau
results/study/F/probe_<seed>.json         of probe_curvature.py, after it
results/study/F/divergence_<size>_<seed>.json   of divergence.py
results/study/F/octopus.json              of saddle_escape.py
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from prednet_jax import records
from prednet_jax.report.document_tables import proved
from prednet_jax.report.documents import markdown, spread
from prednet_jax.report.numbers import change, probability, significant
from prednet_jax.studies import (
    described_tables,
    judgement,
    seed_records,
    symmetric_findings,
)
from prednet_jax.studies.described_tables import CONTRAST, contrasts_frame
from prednet_jax.studies.parts import PARTS, Part

SADDLE = "A"
#: Parts without a verdict. (Part F has tables of its own.)
DESCRIBED = ("B", "C-digits", "C-noise", "D", "E")
# Two programs x (three arms at six deltas, two more at delta 0) x five seeds.
SADDLE_RUNS = 2 * (3 * 6 + 2) * 5
SEEDS_PROBED, SEEDS_FOLLOWED = range(8550, 8553), range(8560, 8563)
SIZES = ("16x12", "32x24", "64x48")
Record = Mapping[str, Any]


def judged(folder: Path) -> dict[str, dict[str, Any]]:
    """Part C by endpoint: verdict.json of the primary one, contrasts of the others.

    Args:
        folder: the directory results/study.
    """
    found = seed_records.read(PARTS["C"], folder / "C")
    others = (*judgement.ENDPOINTS[1:], *judgement.MOMENTS)
    return {judgement.PRIMARY: judgement.judge(found)} | {
        endpoint: {
            "contrasts": [
                one.as_dict() for one in judgement.all_contrasts(found, endpoint)
            ]
        }
        for endpoint in others
    }


def blocks(folder: Path, endpoints: Mapping[str, Record]) -> dict[str, str]:
    """All tables of docs/study, by the name in their mark `<!-- table: NAME -->`.

    Args:
        folder: the directory results/study.
        endpoints: the result of `judged`.
    """
    rows = symmetric_findings.read(folder / SADDLE / "runs.csv")
    coarse = symmetric_findings.read(folder / f"{SADDLE}-blocks" / "runs.csv")
    parts = {
        name: seed_records.read(part, folder / name)
        for name, part in PARTS.items()
        if name in ("C", *DESCRIBED)
    }
    done = {name: (len(found), len(PARTS[name].seeds)) for name, found in parts.items()}
    effects = symmetric_findings.effects(rows)
    theory = records.read_json(folder / SADDLE / "theory.json")
    primary, *others = endpoints
    made = {
        "study-progress": progress({SADDLE: (len(rows), SADDLE_RUNS)} | done),
        "study-saddle": saddle(effects),
        "study-saddle-checks": saddle_checks(symmetric_findings.checks(rows)),
        "study-saddle-theory": saddle_theory(theory, effects),
        "study-saddle-blocks": saddle(symmetric_findings.effects(coarse)),
        "study-dose": described_tables.doses(parts["B"]),
        "study-verdict": verdict(endpoints[primary]),
        "study-contrasts": contrasts(endpoints[primary]),
        "study-endpoints": "\n\n".join(
            f"`{endpoint}`{_reached(endpoint, parts['C'])}\n\n"
            + markdown(contrasts_frame(endpoints[endpoint]["contrasts"]), CONTRAST)
            for endpoint in others
        ),
        "study-separation": described_tables.separation(parts["C"]),
        "study-F-curvature": curvature(stops(folder / "F")),
        "study-F-divergence": divergence(
            [
                records.read_json(folder / "F" / f"divergence_{size}_{seed}.json")
                | {"frame": size}
                for size in SIZES
                for seed in SEEDS_FOLLOWED
            ]
        ),
        "study-F-octopus": octopus(
            records.read_json(folder / "F" / "octopus.json")["groups"]
        ),
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
    """Contrasts of verdict.json in units of the loss, without that of its logarithm."""
    raw = [one for one in record["contrasts"] if one.get("scale") != "log"]
    return markdown(
        contrasts_frame(raw),
        CONTRAST
        | {
            "p (Holm)": "{p_holm:prob}",
            "p (equivalence)": "{tost_p:prob}",
            "finding": "{verdict}",
        },
    )


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


def saddle(found: Sequence[Record]) -> str:
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


def saddle_checks(found: Mapping[str, symmetric_findings.Check]) -> str:
    """Part A: its checks."""
    rows = [
        (name, "passed" if check.passed else "**failed**", check.figure)
        for name, check in found.items()
    ]
    return markdown(pd.DataFrame(rows, columns=["check", "outcome", "measured"]))


def saddle_theory(record: Record, found: Sequence[Record]) -> str:
    """Part A: the largest split at which noise matters, by theory and as measured."""
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


def stops(folder: Path) -> pd.DataFrame:
    """Every stop of every training at which curvature was measured.

    Fields are those of `curvature_probe`, their names joined by dots; `seed`; and
    `reach`, for how many lengths of Adam's last step the loss is quadratic.
    """
    rows = [
        {"seed": seed} | row
        for seed in SEEDS_PROBED
        for name in ("plateau", "probe")
        for row in records.read_json(folder / f"{name}_{seed}.json")["rows"]
    ]
    return with_reach(pd.json_normalize(rows))


def with_reach(found: pd.DataFrame) -> pd.DataFrame:
    """Adds the column `reach`; it is missing where differences do not agree."""
    difference = "preconditioned.finite_difference"
    reach = found[f"{difference}.reach"] / found["escape.step_length"]
    return found.assign(reach=reach.where(found[f"{difference}.verdict"] == "agrees"))


def curvature(found: pd.DataFrame) -> str:
    """Every stop of every training, from `stops`."""
    cells = {
        "seed": "{seed}",
        "update": "{update}",
        "loss": "{loss:.3g}",
        "gradient norm": "{grad_norm:.2g}",
        "lowest, highest of H": "{raw.lowest:.2g}, {raw.highest:.2g}",
        "the same under Adam's scale": "{preconditioned.lowest:.2g}, "
        "{preconditioned.highest:.2g}",
        "negative curvature": proved,
        "differences of the loss": "{preconditioned.finite_difference.verdict}",
        "quadratic for so many last steps": "{reach:.1f}",
        "growth per update": "{escape.growth_per_update:.2f}",
        "cosine of the last step with it": "{escape.step_cosine:.3f}",
        "updates that the noise saves": "{escape.updates_saved:.0e}",
    }
    return markdown(found, cells)


def divergence(pairs: Sequence[Mapping[str, Any]]) -> str:
    """Growth of the distance from the clean twin, over the seeds of each `frame`."""
    frame = pd.json_normalize(pairs)
    for name, update in (("early", 50), ("end", -1)):
        frame[name] = frame.distance.str[update] / frame.travelled.str[update]
    frame["change"] = [100 * (noisy / clean - 1) for clean, noisy in frame.mean_losses]

    return markdown(
        frame.groupby("frame", sort=False)
        .agg(lambda v: v.dropna().tolist())
        .reset_index(),
        {
            "frame": "{frame}",
            "growth rate per update": spread("exponent.rate", "{:.3f}"),
            "distance / travelled at update 50": spread("early", "{:.1e}"),
            "at update 250": spread("end", "{:.1e}"),
            "loss of the last fifth, over clean": spread("change", "{:+.3f} %"),
        },
    )


def octopus(groups: Sequence[Mapping[str, Any]]) -> str:
    """How many runs passed every saddle, without noise and under each.

    A run stands still if its last step changed no bit.
    """
    frame = pd.DataFrame(groups)
    events = frame[["escaped", "arrived", "still"]].map(sum)
    return markdown(
        frame.assign(runs=frame.arrived.map(len), **events),
        {
            "noise": "`{noise}`",
            "runs": "{runs}",
            "left the first saddle": "{escaped}",
            "passed all": "{arrived}",
            "stand still": "{still}",
            "p (Holm)": "{arrival_p_holm:prob}",
        },
    )
