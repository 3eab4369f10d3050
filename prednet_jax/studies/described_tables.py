"""Parts without a verdict: each arm against its control, and the doses of part B."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from prednet_jax import statistics
from prednet_jax.report.documents import markdown
from prednet_jax.report.numbers import MISSING, change, interval, significant
from prednet_jax.statistics.redraws import SEPARATED
from prednet_jax.studies.dose import KINDS
from prednet_jax.studies.judgement import (
    ENDPOINTS,
    FIXED,
    MODEL,
    MOMENTS,
    PRIMARY,
    RANDOM,
    Records,
    contrasts,
    losses,
    manipulation,
)


def difference(one: Mapping[str, Any]) -> str:
    """The mean difference of a contrast; with its interval, if seeds give one."""
    if pd.isna(one["mean_difference"]):
        return MISSING
    said = significant(one["mean_difference"], sign=True)
    ends = interval(one["ci_low"], one["ci_high"])
    return said if ends == MISSING else f"{said} {ends}"


#: Columns that describe a contrast, without a test, by the fields of `contrasts_frame`.
CONTRAST = {
    "contrast": "{treatment} - {control}",
    "n": "{n}",
    "mean, control": "{control_mean:sig4}",
    "difference [95 %]": difference,
    "of the control": "{percent:+.2f} %",
    "largest": "{max_abs_difference:sig}",
}


def contrasts_frame(contrasts: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Contrasts as `PairedResult.as_dict` has them, with the difference in percent."""
    frame = pd.DataFrame(list(contrasts))
    return frame.assign(percent=100 * frame.mean_difference / frame.control_mean)


def in_percent(one: Mapping[str, Any]) -> str:
    """A contrast's difference and interval in percent of the control's mean."""
    scale = 100 / one["control_mean"]
    low, high = (
        None if one[end] is None else scale * one[end] for end in ("ci_low", "ci_high")
    )
    return change(scale * one["mean_difference"], low, high)


def pairs(found: Records) -> list[tuple[str, str]]:
    """Every arm of a part and its control; random and fixed order if both were run."""
    controls = {run["arm"]: run["control"] for run in found[0]["runs"]}
    made = [(arm, control) for arm, control in controls.items() if arm != control]
    return made + [(RANDOM, FIXED)] * ({RANDOM, FIXED} <= controls.keys())


def compared(found: Records) -> list[dict[str, Any]]:
    """The two arms of each of `pairs`, without correction for the number of arms.

    Returns:
        For each the fields of a contrast (missing if no seed ended in both); `ratios`,
        the arm's loss over the control's in each seed that ended in both (a seed with a
        high loss decides both means, but only one of these); `over`, the same of the
        means; `distance`; `over_copy`, mean over the arm's runs; and `diverged`, their
        number.
    """
    measured = losses(found, PRIMARY)[MODEL]
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


def against_control(found: Records, dead: Mapping[str, int]) -> str:
    """Every arm of a part against its control.

    Args:
        found: records of the part's seeds.
        dead: the result of `seed_records.without_gradient`.
    """

    def middle(row: Mapping[str, Any]) -> str:
        of = row["ratios"]
        if not of:
            return MISSING
        return f"{np.median(of):.3f} ({min(of):.3f} to {max(of):.3f})"

    def without_gradient(row: Mapping[str, Any]) -> str:
        return f"{dead.get(row['treatment'], 0)}, {dead.get(row['control'], 0)}"

    cells = {
        "arm": "{treatment} - {control}",
        "n": "{n}",
        "diverged": "{diverged}",
        "runs without gradient at the end: arm, control": without_gradient,
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
    rows = {pair: {"arm": " - ".join(pair)} for pair in pairs(found)}
    for name in (*ENDPOINTS[1:], *MOMENTS):
        for row in rows.values():
            row[name] = MISSING
        for one in contrasts(found, name, list(rows)):
            result = one.as_dict()
            rows[result["treatment"], result["control"]][name] = in_percent(result)
    return markdown(pd.DataFrame(rows.values()))


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


def doses(found: Records) -> str:
    """Part B: from which factor on noise matters, and whether its structure does."""
    controls = dict.fromkeys(run["control"] for run in found[0]["runs"])
    words = {-1: "lower or earlier", 0: MISSING, 1: "higher or later"}
    rungs = [
        (control, kind, endpoint, *first_rung(found, control, kind, endpoint))
        for control in controls
        for kind in KINDS
        for endpoint in (PRIMARY, "plateau_left")
    ]
    columns = ("control", "kind", "endpoint", "changes from factor", "direction")
    table = [
        (*row, "none" if first is None else f"{first:g}", words[direction])
        for *row, first, direction in rungs
    ]
    structure = [
        one.as_dict()
        for control in controls
        for one in against_isotropic(found, control)
    ]
    return (
        markdown(pd.DataFrame(table, columns=columns))
        + "\n\nAt equal norm, against isotropic noise:\n\n"
        + markdown(contrasts_frame(structure), CONTRAST | {"p (Holm)": "{p_holm:prob}"})
    )


def first_rung(
    found: Records, control: str, kind: str, endpoint: str
) -> tuple[float | None, int]:
    """From which factor on a kind of amplified noise changes an endpoint of part B.

    Args:
        found: records of part B.
        control: arm without noise, one for each optimiser.
        kind: one of `dose.KINDS`.
        endpoint: what may be changed. A factor with which a run diverged counts as
            raising it.

    Returns:
        The smallest factor from which on every factor changes the endpoint in the same
        direction, p below .05 after Holm's correction over the factors of this kind and
        optimiser (None: the largest does not change it); and the direction, -1: lower
        or earlier, 1: higher or later, 0: no change.
    """
    arms = {factor: arm for (factor, k), arm in _amplified(found, control) if k == kind}
    made = {
        one.treatment: one
        for one in contrasts(found, endpoint, [(a, control) for a in arms.values()])
    }
    diverged = {
        run["arm"]
        for record in found
        for run in record["runs"]
        if run["diverged_at"] is not None
    }
    first, direction = None, 0
    for factor in sorted(arms, reverse=True):
        arm = arms[factor]
        changed = 1 if arm in diverged else _changed(made.get(arm))
        if not changed or direction not in (0, changed):
            break
        first, direction = factor, changed
    return first, direction


def _amplified(found: Records, control: str) -> list[tuple[tuple[float, str], str]]:
    """((factor, kind), arm) of the arms with amplified noise of one optimiser."""
    return list(
        {
            tuple(run["dose"]): run["arm"]
            for run in found[0]["runs"]
            if run["dose"] and run["control"] == control
        }.items()
    )


def _changed(result: statistics.PairedResult | None) -> int:
    if result is None:  # The control diverged in every seed.
        return 0
    p = result.p_value if result.p_holm is None else result.p_holm
    return int(np.sign(result.mean_difference)) if p < result.alpha else 0


def against_isotropic(found: Records, control: str) -> list[statistics.PairedResult]:
    """Each kind against isotropic noise of the same norm, at each factor of part B.

    Holm corrects over all of them. What differs is due to the structure of the noise,
    not to its norm.
    """
    arms = dict(_amplified(found, control))
    return contrasts(
        found,
        PRIMARY,
        [
            (arm, arms[factor, "isotropic"])
            for (factor, kind), arm in arms.items()
            if kind != "isotropic"
        ],
    )
