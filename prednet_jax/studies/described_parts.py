"""The parts without a verdict: arms against their controls, and the dose of part B."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from prednet_jax import statistics
from prednet_jax.studies.judgement import (
    FIXED,
    MODEL,
    PRIMARY,
    RANDOM,
    contrasts,
    losses,
    manipulation,
)


class AgainstControl(NamedTuple):
    """An arm of a part compared with its control, or with another arm.

    Attributes:
        treatment: name of the arm.
        control: name of what it is compared with.
        result: arm minus control, not corrected for the number of arms; None: no seed
            ended in both.
        ratios: the arm's loss over the control's, of each seed that ended in both. One
            seed with a high loss decides both means, but only one of these.
        manipulation: how far the two separated.
        over_copy: mean over the arm's runs of the endpoint `over_copy`; None: all
            diverged.
        diverged: number of runs of the arm whose loss was not finite.
    """

    treatment: str
    control: str
    result: statistics.PairedResult | None
    ratios: tuple[float, ...]
    manipulation: statistics.Manipulation | None
    over_copy: float | None
    diverged: int


def pairs(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Every arm of a part and its control; random and fixed order if both were run."""
    controls = {run["arm"]: run["control"] for run in found[0]["runs"]}
    made = [(arm, control) for arm, control in controls.items() if arm != control]
    if RANDOM in controls and FIXED in controls:
        made.append((RANDOM, FIXED))
    return made


def against_control(found: Sequence[Mapping[str, Any]]) -> list[AgainstControl]:
    """The two arms of each of `pairs` compared."""
    measured = losses(found, PRIMARY)[MODEL]
    made = []
    for arm, control in pairs(found):
        # One at a time: there is no correction for the number of arms.
        result = next(iter(contrasts(found, PRIMARY, [(arm, control)])), None)
        if result is not None:
            result = dataclasses.replace(result, p_holm=None, p_holm_family=None)
        runs = [run for one in found for run in one["runs"] if run["arm"] == arm]
        ratios = ()
        if result is not None:
            both = statistics.match(measured, arm, control)
            ratios = tuple((both.treatment / both.control).tolist())
        ended = [run["over_copy"] for run in runs if run["diverged_at"] is None]
        made.append(
            AgainstControl(
                treatment=arm,
                control=control,
                result=result,
                ratios=ratios,
                manipulation=manipulation(found, arm, control),
                over_copy=float(np.mean(ended)) if ended else None,
                diverged=len(runs) - len(ended),
            )
        )
    return made


class FirstRung(NamedTuple):
    """From which factor on a kind of amplified noise changes an endpoint.

    Attributes:
        control: arm without noise, one for each optimiser.
        kind: one of `dose.KINDS`.
        endpoint: what is changed.
        factor: smallest factor from which on every factor changes the endpoint in the
            same direction, p below .05 after Holm's correction over the factors of this
            kind and optimiser; None: the largest does not change it.
        direction: -1: lower or earlier, 1: higher or later; 0: no change.
    """

    control: str
    kind: str
    endpoint: str
    factor: float | None
    direction: int


def first_rung(
    found: Sequence[Mapping[str, Any]], control: str, kind: str, endpoint: str
) -> FirstRung:
    """Looks for the margin of safety of a kind of amplified noise.

    A factor with which a run diverged counts as raising the endpoint.

    Args:
        found: records of part B.
        control: arm without noise.
        kind: one of `dose.KINDS`.
        endpoint: one of `judgement.ENDPOINTS` or `judgement.MOMENTS`.
    """
    factors = {
        run["arm"]: run["dose"][0]
        for run in found[0]["runs"]
        if run["dose"] and run["dose"][1] == kind and run["control"] == control
    }
    made = {
        one.treatment: one
        for one in contrasts(found, endpoint, [(arm, control) for arm in factors])
    }
    diverged = {
        run["arm"]
        for record in found
        for run in record["runs"]
        if run["diverged_at"] is not None
    }
    first, direction = None, 0
    for arm in sorted(factors, key=factors.__getitem__, reverse=True):
        changed = 1 if arm in diverged else _changed(made.get(arm))
        if not changed or direction not in (0, changed):
            break
        first, direction = factors[arm], changed
    return FirstRung(control, kind, endpoint, first, direction)


def _changed(result: statistics.PairedResult | None) -> int:
    if result is None:  # The control diverged in every seed.
        return 0
    p = result.p_value if result.p_holm is None else result.p_holm
    return int(np.sign(result.mean_difference)) if p < result.alpha else 0


def against_isotropic(
    found: Sequence[Mapping[str, Any]], control: str
) -> list[statistics.PairedResult]:
    """Each kind against isotropic noise of the same norm, at each factor of part B.

    Holm corrects over all of them. What differs is due to the structure of the noise,
    not to its norm.

    Args:
        found: records of part B.
        control: arm without noise, one for each optimiser.
    """
    arms = {
        tuple(run["dose"]): run["arm"]
        for run in found[0]["runs"]
        if run["dose"] and run["control"] == control
    }
    pairs = [
        (arm, arms[factor, "isotropic"])
        for (factor, kind), arm in arms.items()
        if kind != "isotropic"
    ]
    return contrasts(found, PRIMARY, pairs)
