"""Tables of the parts without a verdict, and how far the runs of any part separate."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from prednet_jax.report.documents import markdown
from prednet_jax.report.numbers import MISSING, change, interval, significant
from prednet_jax.statistics.redraws import SEPARATED
from prednet_jax.studies import described_parts, judgement
from prednet_jax.studies.dose import KINDS
from prednet_jax.studies.judgement import ENDPOINTS, MOMENTS, PRIMARY

Records = Sequence[Mapping[str, Any]]


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


def against_control(found: Records, dead: Mapping[str, int]) -> str:
    """Every arm of a part against its control, without a verdict.

    Args:
        found: records of the part's seeds.
        dead: the result of `seed_records.without_gradient`.
    """
    names = ("mean_difference", "over", "median", "p_value", "distance")
    rows = []
    for one in described_parts.against_control(found):
        row = dict.fromkeys(names) | one._asdict() | {"n": 0}
        row |= {"dead": dead.get(one.treatment, 0)}
        row |= {"dead_control": dead.get(one.control, 0)}
        if one.result is not None:
            result = one.result.as_dict()
            over = result["treatment_mean"] / result["control_mean"]
            row |= result | {"over": over}
            row |= {"median": np.median(one.ratios)}
            row |= {"low": min(one.ratios), "high": max(one.ratios)}
        if one.manipulation is not None:
            row |= {"distance": one.manipulation.distance_over_travelled}
        rows.append(row)
    cells = {
        "arm": "{treatment} - {control}",
        "n": "{n}",
        "diverged": "{diverged}",
        "runs without gradient at the end: arm, control": "{dead}, {dead_control}",
        "loss over the control's": "{over:.3f}",
        "median of the seeds (lowest to highest)": "{median:.3f} ({low:.3f} to "
        "{high:.3f})",
        "difference [95 %]": difference,
        "p, uncorrected": "{p_value:prob}",
        "arm's loss over copying": "{over_copy:sig}",
        "distance / travelled": "{distance:.2g}",
    }
    return markdown(pd.DataFrame(rows), cells)


def other_endpoints(found: Records) -> str:
    """The endpoints that do not decide, in percent of the control's mean.

    Args:
        found: records of the part's seeds.
    """
    pairs = described_parts.pairs(found)
    table = pd.DataFrame({"arm": [" - ".join(pair) for pair in pairs]})
    for name in (*ENDPOINTS, *MOMENTS):
        if name != PRIMARY:
            made = {
                (one.treatment, one.control): in_percent(one.as_dict())
                for one in judgement.contrasts(found, name, pairs)
            }
            table[name] = [made.get(pair, MISSING) for pair in pairs]
    return markdown(table)


def in_percent(one: Mapping[str, Any]) -> str:
    """A contrast's difference and interval in percent of the control's mean."""
    scale = 100 / one["control_mean"]
    low, high = (
        None if one[end] is None else scale * one[end] for end in ("ci_low", "ci_high")
    )
    return change(scale * one["mean_difference"], low, high)


def separation(found: Records) -> str:
    """How far each arm is from its control along the training; medians over seeds.

    Args:
        found: records of the part's seeds.
    """
    frame = pd.DataFrame(
        {"arm": run["arm"]} | run["distance_over_travelled"]
        for record in found
        for run in record["runs"]
        if run["arm"] != run["control"]
    )
    updates = sorted(frame.columns.drop("arm"), key=int)
    least = SEPARATED
    by_arm = frame.groupby("arm", sort=False)
    table = by_arm[updates].median()
    table["runs"] = by_arm.size()
    table["apart"] = (frame[updates[-1]] >= least).groupby(frame.arm).sum()
    cells = {"arm": "{arm}"} | {update: f"{{{update}:sig2}}" for update in updates}
    cells[f"runs at {least:g} or more at the end"] = "{apart} of {runs}"
    return markdown(table.reset_index(), cells)


def doses(found: Records) -> str:
    """Part B: from which factor on noise matters, and whether its structure does.

    Args:
        found: records of part B.
    """
    controls = dict.fromkeys(run["control"] for run in found[0]["runs"])
    words = {-1: "lower or earlier", 0: MISSING, 1: "higher or later"}
    rungs = [
        described_parts.first_rung(found, control, kind, endpoint)
        for control in controls
        for kind in KINDS
        for endpoint in (PRIMARY, "plateau_left")
    ]
    structure = [
        one.as_dict()
        for control in controls
        for one in described_parts.against_isotropic(found, control)
    ]
    columns = {
        "control": "{control}",
        "kind": "{kind}",
        "endpoint": "{endpoint}",
        "changes from factor": lambda row: (
            "none" if pd.isna(row["factor"]) else f"{row['factor']:g}"
        ),
        "direction": lambda row: words[row["direction"]],
    }
    return (
        markdown(pd.DataFrame(rungs), columns)
        + "\n\nAt equal norm, against isotropic noise:\n\n"
        + markdown(contrasts_frame(structure), CONTRAST | {"p (Holm)": "{p_holm:prob}"})
    )
