"""Judges the long trainings: contrasts of every part, and the answer of part C.

There is no answer (`statistics.redraws`) before the last seed is recorded.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prednet_jax import errors, statistics
from prednet_jax.studies.endpoints import PARITY_WIDTH
from prednet_jax.studies.parts import CONTROL, FIXED, NULL, RANDOM, STALE

#: Records of the seeds of a part, of `seed_records.read`.
Records = Sequence[Mapping[str, Any]]

MODEL = "prednet"
PRIMARY = "last_frame_loss"
#: The endpoints. Only the primary one has a verdict. `MOMENTS` are numbers of updates.
ENDPOINTS = (PRIMARY, "window_loss", "over_copy", "held_out_loss")
MOMENTS = ("plateau_left", "parity")
#: What the rule asks about.
QUESTION = (RANDOM, statistics.FIXED_ORDERS)
#: Contrasts that are described in units of the loss, in families of Holm's correction:
#: those in question before the rule of 23 November 2026, the A/A null, and the others.
DESCRIBED = (
    ((RANDOM, CONTROL), (FIXED, CONTROL), (RANDOM, FIXED)),
    ((NULL, CONTROL),),
    ((STALE, CONTROL), ("float64", CONTROL)),
)
#: Part C was seen before the rule was fixed.
STATUS = "after looking: part C"


def losses(found: Records, endpoint: str) -> statistics.Arms:
    """An endpoint by arm, seed and draw; None: the run diverged.

    A run that ended without reaching one of `MOMENTS` counts as reaching it at the
    update after its last, as in part A. A part that is too short for `parity` has none.
    """
    by_arm: dict[str, dict[str, list[float | None]]] = {}
    for record in found:
        late = endpoint in MOMENTS and not (
            endpoint == "parity" and record["updates"] <= PARITY_WIDTH
        )
        for run in record["runs"]:
            value = run.get(endpoint)
            diverged = run["diverged_at"] is not None or run.get("control_diverged")
            if value is None and late and not diverged:
                value = record["updates"] + 1
            of_arm = by_arm.setdefault(run["arm"], {})
            of_arm.setdefault(str(record["seed"]), []).append(value)
    return by_arm


def manipulation(
    found: Records, treatment: str, *controls: str
) -> statistics.Manipulation | None:
    """Whether the runs of two groups separated; pairs are averaged within a seed.

    Runs without noise have a recorded distance from float32 alone; other pairs of them
    are left out. So is a seed that lacks one of the arms or in which one of their runs
    diverged. None: no seed is left.
    """
    differ, distances = [], []
    for record in found:
        mine = [run for run in record["runs"] if run["arm"] == treatment]
        other = [run for run in record["runs"] if run["arm"] in controls]
        runs = mine + other
        # Some arms are trained on the first seeds of the part only.
        missing = {treatment, *controls} - {run["arm"] for run in runs}
        if missing or any(run["diverged_at"] is not None for run in runs):
            continue
        prints = {run["final_params_sha256"] for run in other}
        differ += [all(run["final_params_sha256"] not in prints for run in mine)]
        apart = [_apart(a, b) for a in mine for b in other]
        known = [distance for distance in apart if distance is not None]
        if not known:
            raise errors.UserError(
                f"no distance between {treatment} and {', '.join(controls)} is recorded"
            )
        distances += [float(np.mean(known))]
    return statistics.manipulation(differ, distances) if differ else None


def _apart(a: Mapping[str, Any], b: Mapping[str, Any]) -> float | None:
    """Final distance of two runs over the control's way; None: it is not recorded."""
    if b["arm"] == b["control"]:
        found = a["distance_over_travelled"]
        return found[max(found, key=int)]
    # A run holds its distances from itself and from the runs made before it.
    for one, other in ((a, b), (b, a)):
        name = f"{other['arm']}.{other['draw']}"
        if name in one["final_distance_from"]:
            return one["final_distance_from"][name]
    return None


def contrasts(
    found: Records, endpoint: str, pairs: Sequence[tuple[str, str]]
) -> list[statistics.PairedResult]:
    """Contrasts of one endpoint, corrected by Holm over all of them.

    The margin comes from the control. A pair is left out if no seed has the endpoint in
    both arms, and every pair is if no run of the control has it.
    """
    measured = losses(found, endpoint)
    if all(value is None for draws in measured[CONTROL].values() for value in draws):
        return []
    margin = statistics.margin_from_losses(measured, CONTROL)["value"]
    return statistics.contrasts_from_losses(
        measured, pairs, margin, model=MODEL, metric=endpoint
    )


def ask(found: Records, endpoint: str = PRIMARY) -> statistics.Answered:
    """The answer about random orders of sums, from all seeds of a part."""
    measured = losses(found, endpoint)
    check = manipulation(found, RANDOM, *statistics.fixed_orders(measured))
    return statistics.ask(MODEL, measured, check, treatment=RANDOM)


def judge(found: Records) -> dict[str, Any]:
    """The study's verdict.json, from all seeds of part C."""
    answered = ask(found)
    measured = losses(found, PRIMARY)
    claims = (
        statistics.noise_claim(answered),
        statistics.stale_claim(MODEL, measured, STALE),
        statistics.float32_claim(MODEL, measured),
    )
    details = answered.as_dict() | statistics.beside(answered.effect.runs)
    details["sentence"] += " This is about emulated noise only: no GPU was used."
    return _described(found, PRIMARY, answered) | {
        "verdict": {MODEL: details["verdict"]},
        "claims": [claim.as_dict() for claim in claims],
        "details": {MODEL: details | {"emulated_only": True, "status": STATUS}},
    }


def describe(found: Records, endpoint: str) -> dict[str, Any]:
    """What verdict_<endpoint>.json holds: contrasts and losses, without a verdict."""
    return _described(found, endpoint, ask(found, endpoint))


def _described(
    found: Records, endpoint: str, answered: statistics.Answered
) -> dict[str, Any]:
    checks = {" - ".join(QUESTION): answered.check}
    checks |= {" - ".join(pair): manipulation(found, *pair) for pair in DESCRIBED[0]}
    moved = {name: check and check._asdict() for name, check in checks.items()}
    return {
        "manipulation": {MODEL: moved[" - ".join(QUESTION)]},
        "manipulations": moved,
        "contrasts": [
            answered.contrast(f"log of {endpoint}"),
            *(
                one.as_dict()
                for pairs in DESCRIBED  # Holm within each family.
                for one in contrasts(found, endpoint, pairs)
            ),
        ],
        "losses": {MODEL: losses(found, endpoint)},
        "design": {
            "seeds": [record["seed"] for record in found],
            "metric": {MODEL: endpoint},
            "git_commits": sorted({record["git_commit"] for record in found}),
            "processors": sorted({record["device"]["processor"] for record in found}),
            "versions": found[0]["versions"],
        },
    }
