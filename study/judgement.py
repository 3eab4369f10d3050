"""Judges the long trainings: contrasts of every part, and the answers of some.

There is no answer (`statistics.redraws`) before the last seed is recorded.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from prednet_jax import errors, statistics
from prednet_jax.statistics.redraws import CANNOT_TELL
from study import parts, scatter
from study.endpoints import PARITY_WIDTH
from study.parts import CONTROL, FIXED, FIXED_ORDERS, NULL, RANDOM, STALE, Part
from study.seed_records import Run, SeedRecord

#: Records of the seeds of a part, of `seed_records.read`.
Records = Sequence[SeedRecord]

MODEL = "prednet"
PRIMARY = "last_frame_loss"
#: The endpoints. A part's own has a verdict. `MOMENTS` are numbers of updates.
ENDPOINTS = (PRIMARY, "window_loss", "over_copy", "held_out_loss")
MOMENTS = ("plateau_left", "parity")
# Fields that records of one seed in two parts must share to be compared.
_SHARED = ("initial_params_sha256", "data_order_sha256", "versions", "xla_flags")
#: What the rule asks about.
QUESTION = (RANDOM, FIXED_ORDERS.name)
#: All orders but the ordinary one.
OTHER_ORDERS = statistics.Group("other_orders", (NULL, FIXED, RANDOM))
#: Contrasts that are described in units of the loss, in families of Holm's correction:
#: those in question before the rule of 23 November 2026, the A/A null, and the others.
DESCRIBED = (
    ((RANDOM, CONTROL), (FIXED, CONTROL), (RANDOM, FIXED)),
    ((NULL, CONTROL),),
    ((STALE, CONTROL), ("float64", CONTROL)),
)


def losses(seeds: Records, endpoint: str) -> statistics.Arms:
    """Returns an endpoint by arm, seed and draw, or None where the run diverged.

    A run that ended without reaching one of `MOMENTS` counts as reaching it at the
    update after its last, as in part A. A part that is too short for `parity` has none.
    """
    by_arm: dict[str, dict[str, list[float | None]]] = {}
    for seed in seeds:
        late = endpoint in MOMENTS
        late &= endpoint != "parity" or seed.updates > PARITY_WIDTH
        for run in seed.runs:
            value = getattr(run, endpoint)
            diverged = run.diverged_at is not None or run.control_diverged
            if value is None and late and not diverged:
                value = seed.updates + 1
            by_arm.setdefault(run.arm, {}).setdefault(str(seed.seed), []).append(value)
    return by_arm


def manipulation(
    seeds: Records, treatment: str, *controls: str
) -> statistics.Manipulation | None:
    """Measures whether the runs of two groups separated, averaged within a seed.

    Runs without noise have a recorded distance only from float32; other pairs of such
    runs are left out. A seed that lacks one of the arms, or in which one of their runs
    diverged, is left out too. The result is None if no seed is left.
    """
    differ, distances = [], []
    for seed in seeds:
        treated = [run for run in seed.runs if run.arm == treatment]
        other = [run for run in seed.runs if run.arm in controls]
        runs = treated + other
        # Some arms are trained on the first seeds of the part only.
        missing = {treatment, *controls} - {run.arm for run in runs}
        if missing or any(run.diverged_at is not None for run in runs):
            continue
        prints = {run.final_params_sha256 for run in other}
        differ += [all(run.final_params_sha256 not in prints for run in treated)]
        pairs = [_relative_weight_distance(a, b) for a in treated for b in other]
        known = [distance for distance in pairs if distance is not None]
        if not known:
            raise errors.UserError(
                f"no distance between {treatment} and {', '.join(controls)} is "
                "recorded; expected "
                "runs of both arms"
            )
        distances += [float(np.mean(known))]
    return statistics.manipulation(differ, distances) if differ else None


def _relative_weight_distance(a: Run, b: Run) -> float | None:
    """Returns two runs' final distance over the control's, or None if unrecorded."""
    if b.arm == b.control:
        return a.distance_over_travelled[max(a.distance_over_travelled, key=int)]
    # A run holds its distances from itself and from the runs made before it.
    for run, other in ((a, b), (b, a)):
        if (name := f"{other.arm}.{other.draw}") in run.final_distance_from:
            return run.final_distance_from[name]
    return None


def contrasts(
    seeds: Records, endpoint: str, pairs: Sequence[tuple[str, str]]
) -> list[statistics.Contrast]:
    """Computes the contrasts of one endpoint, corrected by Holm over all of them.

    The margin comes from the control. A pair is left out if no seed has the endpoint in
    both arms, and every pair is if no run of the control has it.
    """
    measured = losses(seeds, endpoint)
    if all(value is None for draws in measured[CONTROL].values() for value in draws):
        return []
    margin = statistics.margin_from_losses(measured, CONTROL).value
    return statistics.contrasts_from_losses(
        measured, pairs, margin, model=MODEL, metric=endpoint
    )


def answer(
    seeds: Records, endpoint: str = PRIMARY, treatment: str = RANDOM
) -> statistics.Answered:
    """Returns the answer about random orders, or another arm, against fixed orders."""
    measured = losses(seeds, endpoint)
    fixed = [name for name in measured if name in FIXED_ORDERS.arms]
    check = manipulation(seeds, treatment, *(n for n in fixed if n != treatment))
    return statistics.evaluate_claim(
        MODEL, measured, check, treatment=treatment, control=FIXED_ORDERS
    )


def judge(part: Part, seeds: Records) -> dict[str, Any]:
    """Returns the verdict.json of a part, from all its seeds."""
    answered = answer(seeds, part.endpoint)
    measured = losses(seeds, part.endpoint)
    claims = (
        statistics.noise_claim(answered),
        statistics.stale_claim(MODEL, measured, STALE, FIXED_ORDERS),
        own_order_claim(measured),
    )
    secondary = scatter.secondary_statistics(answered.effect.runs)
    names = {"treatment": answered.treatment, "control": answered.control.name}
    words = {"verdict": statistics.verdict([answered]), "answer": answered.answer}
    details = {**names, **words, **scatter.effect_record(answered.effect), **secondary}
    details["status"] = part.status
    if part.positive_controls:
        details["known_answers"] = known = known_answers(part, seeds)
        if failed := [row["arm"] for row in known if not row["holds"]]:
            details["status"] += f"; unconfirmed, by {', '.join(failed)}"
        elif answered.answer != CANNOT_TELL:
            details["status"] += "; confirmed by its controls"
    return describe(seeds, part.endpoint, answered) | {
        "verdict": {MODEL: details["verdict"]},
        "claims": [claim.to_json() for claim in claims],
        "details": {MODEL: details},
    }


def own_order_claim(measured: statistics.Arms) -> statistics.Claim:
    """Returns the claim that the ordinary order of sums differs from all others."""
    runs = statistics.collect_redraws(measured, CONTROL, OTHER_ORDERS)
    effect = statistics.effect(runs)
    answer = statistics.Answer.CANNOT_TELL
    if effect.contrast.tost_p < effect.contrast.alpha:
        answer = statistics.Answer.NO
    elif effect.low > effect.margin or effect.high < -effect.margin:
        answer = statistics.Answer.YES
    return statistics.Claim(
        kind=statistics.Kind.FLOAT32,
        model=MODEL,
        answer=answer,
        found=effect.measured,
    )


def endpoints(part: Part) -> list[str]:
    """Returns all endpoints, the part's own first."""
    return sorted((*ENDPOINTS, *MOMENTS), key=lambda name: name != part.endpoint)


def merge_arms(seeds: Records, others: Records) -> list[SeedRecord]:
    """Returns the seeds of both records, and adds the arms that only `others` have.

    A seed with other frames, initial weights or versions in `others` is a UserError.
    """
    added = {seed.seed: seed for seed in others}
    made = []
    for seed in seeds:
        if seed.seed not in added:
            continue
        other = added[seed.seed]
        if any(seed.about.get(name) != other.about.get(name) for name in _SHARED):
            raise errors.UserError(f"seed {seed.seed} differs in one of {_SHARED}")
        known = {run.arm for run in seed.runs}
        more = [run for run in other.runs if run.arm not in known]
        made.append(dataclasses.replace(seed, runs=(*seed.runs, *more)))
    return made


def same_bits(seeds: Records, others: Records, arm: str) -> int:
    """Counts the seeds where the runs of an arm have the same final weights in both."""
    first, second = (
        {
            (seed.seed, run.draw): run.final_params_sha256
            for seed in records
            for run in seed.runs
            if run.arm == arm
        }
        for records in (seeds, others)
    )
    return len(first.items() & second.items())


def known_answers(part: Part, seeds: Records) -> list[dict[str, Any]]:
    """Checks whether each of the part's arms with a known answer has this answer."""
    rows = []
    for arm, expected in part.positive_controls.items():
        answered = answer(seeds, part.endpoint, arm)
        above = bool(answered.effect.low > 0)
        holds = above if expected == parts.ABOVE_ZERO else answered.answer == expected
        row = {"arm": arm, "expected": expected, "answer": answered.answer}
        rows.append({**row, **answered.effect.measured.to_json(), "holds": holds})
    return rows


def describe(
    seeds: Records, endpoint: str, answered: statistics.Answered | None = None
) -> dict[str, Any]:
    """Returns what verdict_<endpoint>.json holds: contrasts and losses.

    `answered` is the answer by the endpoint, or None before all seeds are recorded.
    """
    answered = answered or answer(seeds, endpoint)
    checks = {" - ".join(QUESTION): answered.check}
    checks |= {" - ".join(pair): manipulation(seeds, *pair) for pair in DESCRIBED[0]}
    moved = {name: check and check._asdict() for name, check in checks.items()}
    about = [seed.about for seed in seeds]
    return {
        "manipulation": {MODEL: moved[" - ".join(QUESTION)]},
        "manipulations": moved,
        "contrasts": [
            answered.contrast(f"log of {endpoint}").to_json(),
            *(
                contrast.to_json()
                for pairs in DESCRIBED  # Holm within each family.
                for contrast in contrasts(seeds, endpoint, pairs)
            ),
        ],
        "losses": {MODEL: losses(seeds, endpoint)},
        "design": {
            "seeds": [seed.seed for seed in seeds],
            "metric": {MODEL: endpoint},
            "git_commits": sorted({record["git_commit"] for record in about}),
            "processors": sorted({record["device"]["processor"] for record in about}),
            "versions": about[0]["versions"],
        },
    }
