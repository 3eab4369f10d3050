"""Tables of docs/study, and numbers in its sentences, from committed records.

What they show of part C is judged; the parts of `DESCRIBED` have no verdict.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from prednet_jax import records, statistics
from prednet_jax.report import numbers
from prednet_jax.report.documents import markdown, spread
from prednet_jax.report.numbers import MISSING, change, significant
from prednet_jax.statistics.redraws import SEPARATED
from prednet_jax.studies import judgement, seed_records, symmetric
from prednet_jax.studies.judgement import (
    CONTROL,
    ENDPOINTS,
    FIXED,
    MODEL,
    MOMENTS,
    NULL,
    PRIMARY,
    RANDOM,
    STALE,
    Records,
    contrasts,
    losses,
    manipulation,
)
from prednet_jax.studies.parts import PARTS

#: Parts without a verdict.
DESCRIBED = ("B", "C-digits", "C-noise", "D", "E")
Record = Mapping[str, Any]


def load(folder: Path) -> dict[str, Records]:
    """The records of each part that is shown, from the directory results/study."""
    names = ("C", *DESCRIBED)
    return {name: seed_records.read(PARTS[name], folder / name) for name in names}


def judged(found: Records) -> dict[str, dict[str, Any]]:
    """Part C by endpoint: what verdict.json holds, and verdict_<endpoint>.json."""
    others = (*ENDPOINTS[1:], *MOMENTS)
    return {PRIMARY: judgement.judge(found)} | {
        endpoint: judgement.describe(found, endpoint) for endpoint in others
    }


def blocks(
    folder: Path, parts: Mapping[str, Records], endpoints: Mapping[str, Record]
) -> dict[str, str]:
    """All tables of docs/study, by the name in their mark `<!-- table: NAME -->`.

    `folder` is results/study, `parts` the result of `load`, `endpoints` of `judged`.
    """
    rows = symmetric.read(folder / "A" / "runs.csv")
    coarse = symmetric.read(folder / "A-blocks" / "runs.csv")
    made = {
        "study-saddle": saddle(symmetric.effects(rows)),
        "study-saddle-checks": saddle_checks(symmetric.checks(rows)),
        "study-saddle-blocks": saddle(symmetric.effects(coarse)),
        "study-verdict": verdict(endpoints[PRIMARY]),
        "study-contrasts": markdown(_in_units(endpoints[PRIMARY]), CONTRAST | _TESTS),
        "study-endpoints": "\n\n".join(
            f"`{endpoint}`{_reached(endpoint, parts['C'])}\n\n"
            + markdown(_in_units(endpoints[endpoint]), CONTRAST)
            for endpoint in [*endpoints][1:]
        ),
        "study-separation": separation(parts["C"]),
    }
    for name in DESCRIBED:
        dead = without_gradient(folder / name, parts[name])
        made[f"study-{name}"] = against_control(parts[name], dead)
        made[f"study-{name}-endpoints"] = other_endpoints(parts[name])
        made[f"study-{name}-separation"] = separation(parts[name])
    return made


def values(
    parts: Mapping[str, Records], endpoints: Mapping[str, Record]
) -> dict[str, str]:
    """Numbers in sentences, by the name in their mark: the part, and what it is."""
    claim = endpoints[PRIMARY]["claims"][0]
    ends = (100 * claim[name] for name in ("estimate", "low", "high"))
    made = {"C.noise": "{:+.2f} % [{:+.2f}, {:+.2f}]".format(*ends)}
    for part, arm, name in (
        ("B", "order_10000", "B.order_1e4"),
        ("B", "order_1e+06", "B.order_1e6"),
        ("C-digits", RANDOM, "C-digits.random"),
        ("D", RANDOM, "D.random"),
    ):
        (one,) = contrasts(parts[part], PRIMARY, [(arm, CONTROL)])
        made[name] = in_percent(one.as_dict())
    runs = pd.json_normalize(
        [{"seed": record["seed"]} | r for record in parts["C"] for r in record["runs"]]
    )
    alone = runs.pivot(index="seed", columns=["arm", "draw"], values=PRIMARY)
    control, stale = alone[CONTROL, 0], alone[STALE, 0]
    moves = 100 * alone[[RANDOM, FIXED, NULL]].sub(control, axis=0) / control.mean()
    parity = runs[runs.arm == CONTROL].parity
    return made | {
        "C.stale": "{:.1f} to {:.1f} times".format(*(stale / control).agg([min, max])),
        "C.furthest": f"{moves.abs().max().max():.0f} %",
        "C.behind": f"{parity.isna().sum()} of the {len(parity)}",
    }


def difference(one: Record) -> str:
    """The mean difference of a contrast; with its interval, if seeds give one."""
    if pd.isna(one["mean_difference"]):
        return MISSING
    said = significant(one["mean_difference"], sign=True)
    ends = numbers.interval(one["ci_low"], one["ci_high"])
    return said if ends == MISSING else f"{said} {ends}"


#: Columns that describe a contrast without a test, and those of its tests.
CONTRAST = {
    "contrast": "{treatment} - {control}",
    "n": "{n}",
    "mean, control": "{control_mean:sig4}",
    "difference [95 %]": difference,
    "of the control": "{percent:+.2f} %",
    "largest": "{max_abs_difference:sig}",
}
_TESTS = {
    "p (Holm)": "{p_holm:prob}",
    "p (equivalence)": "{tost_p:prob}",
    "finding": "{verdict}",
}


def _in_units(record: Record) -> pd.DataFrame:
    """Contrasts of a verdict file but those of a logarithm, also in percent."""
    raw = [one for one in record["contrasts"] if one.get("scale") != "log"]
    frame = pd.DataFrame(raw)
    return frame.assign(percent=100 * frame.mean_difference / frame.control_mean)


def in_percent(one: Record) -> str:
    """A contrast's difference and interval in percent of the control's mean."""
    scale = 100 / one["control_mean"]
    low, high = (
        None if one[end] is None else scale * one[end] for end in ("ci_low", "ci_high")
    )
    return change(scale * one["mean_difference"], low, high)


def _reached(endpoint: str, found: Records) -> str:
    runs = [run for record in found for run in record["runs"]]
    ends = [run.get(endpoint) for run in runs if run["arm"] == CONTROL]
    if endpoint not in MOMENTS:
        return ""
    return (
        f", reached by {len(ends) - ends.count(None)} of {len(ends)} runs of {CONTROL}"
    )


def verdict(record: Record) -> str:
    """The answer of verdict.json, and what stands beside it, in percent of the loss."""
    of = record["details"][MODEL]
    mixed, ratio, seeds = of["mixed_model"], of["scatter_ratio"], of["seed_spread"]
    apart = record["manipulation"][MODEL]["distance_over_travelled"]

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
            numbers.probability(of[p]) for p in ("p_value", "permutation_p", "tost_p")
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
            f"p {numbers.probability(ratio['p_value'])}"
        ),
        "two runs of a new seed differ by less than, in 95 of 100": (
            f"{100 * of['redraw_interval']['limit']:.1f} %"
        ),
        "distance / travelled": significant(apart, 2),
    }
    table = markdown(pd.DataFrame(list(rows.items()), columns=["what", "found"]))
    return f"**{of['answer']}** (`{of['verdict']}`; {of['status']})\n\n{table}"


def saddle(found: list[dict[str, Any]]) -> str:
    """Part A: every arm at every delta of both programs, of `symmetric.effects`."""
    cells = {
        "program": "{program}",
        "delta": "{delta:g}",
        "arm": "{arm}",
        "separated at update": spread("separated_at", "{:.0f}"),
        "loss of the last fifth": spread("losses"),
        "over float32": spread("over_control", "{:.2f}"),
        "separates": "{separation}",
        "loss": "{loss}",
    }
    return markdown(pd.DataFrame(found), cells)


def saddle_checks(found: Mapping[str, symmetric.Check]) -> str:
    """Part A: its checks."""
    rows = [
        (name, "passed" if check.passed else "**failed**", check.figure)
        for name, check in found.items()
    ]
    return markdown(pd.DataFrame(rows, columns=["check", "outcome", "measured"]))


def pairs(found: Records) -> list[tuple[str, str]]:
    """Every arm of a part and its control; random and fixed order if both were run."""
    controls = {run["arm"]: run["control"] for run in found[0]["runs"]}
    made = [(arm, control) for arm, control in controls.items() if arm != control]
    return made + [(RANDOM, FIXED)] * ({RANDOM, FIXED} <= controls.keys())


def compared(found: Records) -> list[dict[str, Any]]:
    """The two arms of each of `pairs`, without correction for the number of arms.

    Each has the fields of a contrast (missing if no seed ended in both); `ratios`, the
    arm's loss over the control's in each seed that ended in both (a seed with a high
    loss decides both means, but only one of these); `over`, the same of the means;
    `distance`; `over_copy`, mean over the arm's runs; and `diverged`, their number.
    """
    measured = losses(found, PRIMARY)
    rows = []
    for arm, control in pairs(found):
        runs = [run for record in found for run in record["runs"] if run["arm"] == arm]
        ended = [run["over_copy"] for run in runs if run["diverged_at"] is None]
        moved = manipulation(found, arm, control)
        row: dict[str, Any] = {
            "treatment": arm,
            "control": control,
            "n": 0,
            **dict.fromkeys(("mean_difference", "over", "p_value")),
            "ratios": (),
            "distance": moved and moved.distance_over_travelled,
            "over_copy": float(np.mean(ended)) if ended else None,
            "diverged": len(runs) - len(ended),
        }
        for result in contrasts(found, PRIMARY, [(arm, control)]):
            row |= result.as_dict()
            row["over"] = result.treatment_mean / result.control_mean
            both = statistics.match(measured, arm, control)
            row["ratios"] = tuple((both.treatment / both.control).tolist())
        rows.append(row)
    return rows


def without_gradient(folder: Path, found: Records) -> Counter[str]:
    """Number of runs of each arm whose gradient is exactly 0 in the last row.

    Such a network is dead. Noise of the order of sums is 0 there too.
    """
    dead: Counter[str] = Counter()
    for record in found:
        rows = records.read_csv(folder / f"seed_{record['seed']}.csv")
        last = {(row["arm"], row["draw"]): row["grad_norm"] for row in rows}
        dead.update(arm for (arm, _), norm in last.items() if norm and not float(norm))
    return dead


def against_control(found: Records, dead: Mapping[str, int]) -> str:
    """Every arm of a part against its control; `dead` is of `without_gradient`."""

    def middle(row: Record) -> str:
        of = row["ratios"]
        return (
            f"{np.median(of):.3f} ({min(of):.3f} to {max(of):.3f})" if of else MISSING
        )

    def still(row: Record) -> str:
        return f"{dead.get(row['treatment'], 0)}, {dead.get(row['control'], 0)}"

    cells = {
        "arm": "{treatment} - {control}",
        "n": "{n}",
        "diverged": "{diverged}",
        "runs without gradient at the end: arm, control": still,
        "loss over the control's": "{over:.3f}",
        "median of the seeds (lowest to highest)": middle,
        "difference [95 %]": difference,
        "p, uncorrected": "{p_value:prob}",
        "arm's loss over copying": "{over_copy:sig}",
        "distance / travelled": "{distance:.2g}",
    }
    return markdown(pd.DataFrame(compared(found)), cells)


def other_endpoints(found: Records) -> str:
    """The endpoints that do not decide, in percent of the control's mean."""
    table = pd.DataFrame(index=pd.Index(pairs(found)))
    table["arm"] = [" - ".join(pair) for pair in table.index]
    for name in (*ENDPOINTS[1:], *MOMENTS):
        made = [one.as_dict() for one in contrasts(found, name, list(table.index))]
        cells = {(one["treatment"], one["control"]): in_percent(one) for one in made}
        table[name] = [cells.get(pair, MISSING) for pair in table.index]
    return markdown(table)


def separation(found: Records) -> str:
    """How far each arm is from its control along the training; medians over seeds."""
    frame = pd.DataFrame(
        {"arm": run["arm"]} | run["distance_over_travelled"]
        for record in found
        for run in record["runs"]
        if run["arm"] != run["control"]
    )
    updates = sorted(frame.columns.drop("arm"), key=int)
    by_arm = frame.groupby("arm", sort=False)
    table = by_arm[updates].median()
    table["runs"] = by_arm.size()
    table["apart"] = (frame[updates[-1]] >= SEPARATED).groupby(frame.arm).sum()
    cells = {"arm": "{arm}"} | {update: f"{{{update}:sig2}}" for update in updates}
    cells[f"runs at {SEPARATED:g} or more at the end"] = "{apart} of {runs}"
    return markdown(table.reset_index(), cells)
