"""Tables of the parts without a verdict, and how far the runs of any part separate."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prednet_jax.report.documents import markdown
from prednet_jax.report.numbers import (
    MISSING,
    change,
    interval,
    probability,
    significant,
)
from prednet_jax.statistics import PairedResult, Rule
from prednet_jax.studies import described_parts, judgement
from prednet_jax.studies.dose import KINDS
from prednet_jax.studies.judgement import ENDPOINTS, MOMENTS, PRIMARY

#: Columns that describe a contrast, without a test.
CONTRAST = (
    "contrast",
    "n",
    "mean, control",
    "difference [95 %]",
    "of the control",
    "largest",
)


def contrast_cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    """A contrast, as `PairedResult.as_dict` has it, in the columns `CONTRAST`."""
    return (
        f"{one['treatment']} - {one['control']}",
        str(one["n"]),
        significant(one["control_mean"], 4),
        f"{significant(one['mean_difference'], sign=True)} "
        f"{interval(one['ci_low'], one['ci_high'])}",
        f"{100 * one['mean_difference'] / one['control_mean']:+.2f} %",
        significant(one["max_abs_difference"]),
    )


def against_control(found: Sequence[Mapping[str, Any]], dead: Mapping[str, int]) -> str:
    """Every arm of a part against its control, without a verdict.

    Args:
        found: records of the part's seeds.
        dead: the result of `seed_records.without_gradient`.
    """
    head = (
        "arm",
        "n",
        "diverged",
        "runs without gradient at the end: arm, control",
        "loss over the control's",
        "median of the seeds (lowest to highest)",
        "difference [95 %]",
        "p, uncorrected",
        "arm's loss over copying",
        "distance / travelled",
    )
    rows = []
    for one in described_parts.against_control(found):
        r, distance = one.result, one.manipulation
        lost = (
            str(one.diverged),
            f"{dead.get(one.treatment, 0)}, {dead.get(one.control, 0)}",
        )
        compared = ("0", *lost, *[MISSING] * 4)
        if r is not None:
            compared = (
                str(r.n),
                *lost,
                f"{r.treatment_mean / r.control_mean:.3f}",
                f"{np.median(one.ratios):.3f} "
                f"({min(one.ratios):.3f} to {max(one.ratios):.3f})",
                _difference(r),
                probability(r.p_value),
            )
        rows.append(
            (
                f"{one.treatment} - {one.control}",
                *compared,
                significant(one.over_copy),
                MISSING
                if distance is None
                else f"{distance.distance_over_travelled:.2g}",
            )
        )
    return markdown(head, rows)


def _difference(one: PairedResult) -> str:
    """The mean difference; with its interval, if there are seeds enough for one."""
    said = significant(one.mean_difference, sign=True)
    ends = interval(one.ci_low, one.ci_high)
    return said if ends == MISSING else f"{said} {ends}"


def other_endpoints(found: Sequence[Mapping[str, Any]]) -> str:
    """The endpoints that do not decide, in percent of the control's mean.

    Args:
        found: records of the part's seeds.
    """
    names = [name for name in (*ENDPOINTS, *MOMENTS) if name != PRIMARY]
    pairs = described_parts.pairs(found)
    made = {
        name: {
            (one.treatment, one.control): one
            for one in judgement.contrasts(found, name, pairs)
        }
        for name in names
    }
    rows = [
        (
            " - ".join(pair),
            *(_change(made[name].get(pair)) for name in names),
        )
        for pair in pairs
    ]
    return markdown(("arm", *names), rows)


def _change(one: PairedResult | None) -> str:
    if one is None:
        return MISSING
    return change(
        *(
            100 * value / one.control_mean
            for value in (one.mean_difference, one.ci_low, one.ci_high)
        )
    )


def separation(found: Sequence[Mapping[str, Any]]) -> str:
    """How far each arm is from its control along the training; medians over seeds.

    Args:
        found: records of the part's seeds.
    """
    by_arm: dict[str, list[Mapping[str, float]]] = {}
    for record in found:
        for run in record["runs"]:
            if run["arm"] != run["control"]:
                by_arm.setdefault(run["arm"], []).append(run["distance_over_travelled"])
    longest = max(found[0]["runs"], key=_snapshots)
    updates = sorted(longest["distance_over_travelled"], key=int)
    last, least = updates[-1], Rule().least_distance
    rows = []
    for arm, runs in by_arm.items():
        ends = [run[last] for run in runs if last in run]
        rows.append(
            (
                arm,
                *(_median([run[u] for run in runs if u in run]) for u in updates),
                f"{sum(end >= least for end in ends)} of {len(runs)}",
            )
        )
    head = ("arm", *updates, f"runs at {least:g} or more at the end")
    return markdown(head, rows)


def _snapshots(run: Mapping[str, Any]) -> int:
    return len(run["distance_over_travelled"])


def _median(values: Sequence[float]) -> str:
    return significant(float(np.median(values)), 2) if values else MISSING


def doses(found: Sequence[Mapping[str, Any]]) -> str:
    """Part B: from which factor on noise matters, and whether its structure does.

    Args:
        found: records of part B.
    """
    controls = dict.fromkeys(run["control"] for run in found[0]["runs"])
    words = {-1: "lower or earlier", 0: MISSING, 1: "higher or later"}
    firsts = [
        described_parts.first_rung(found, control, kind, endpoint)
        for control in controls
        for kind in KINDS
        for endpoint in (PRIMARY, "plateau_left")
    ]
    margins = [
        (
            one.control,
            one.kind,
            one.endpoint,
            "none" if one.factor is None else f"{one.factor:g}",
            words[one.direction],
        )
        for one in firsts
    ]
    structure = [
        (*contrast_cells(one.as_dict()), probability(one.p_holm))
        for control in controls
        for one in described_parts.against_isotropic(found, control)
    ]
    return (
        markdown(
            ("control", "kind", "endpoint", "changes from factor", "direction"), margins
        )
        + "\n\nAt equal norm, against isotropic noise:\n\n"
        + markdown((*CONTRAST, "p (Holm)"), structure)
    )
