"""Judges the long trainings: contrasts of every part, and the verdict of part C.

The data flow is: seed_<n>.json -> losses by arm, seed and draw -> contrasts ->
`statistics.decide`. Part C answers the question of the study. Part B contributes the
Gaussian ladder, and part A the control in which noise can help. There is no verdict
before the last seeds of parts B and C are recorded.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax import errors, records, statistics
from prednet_jax.studies import seed_records
from prednet_jax.studies.endpoints import PARITY_WIDTH
from prednet_jax.studies.parts import CONTROL, Part

MODEL = "prednet"
PRIMARY = "last_frame_loss"
#: The endpoints. Only the primary one has a verdict. `MOMENTS` are numbers of updates.
ENDPOINTS = (PRIMARY, "window_loss", "over_copy", "held_out_loss")
MOMENTS = ("plateau_left", "parity")
RANDOM, FIXED = "reduction_order", "reduction_order_run"
#: The contrasts in question.
QUESTIONS = ((RANDOM, CONTROL), (FIXED, CONTROL), (RANDOM, FIXED))
NULL, STALE = "convolution_im2col", "stale_targets"
#: Further contrasts. The null is a family of its own: Holm's correction over others
#: would make it easier to show nothing.
BESIDE = (((NULL, CONTROL),), ((STALE, CONTROL), ("float64", CONTROL)))


def read(part: Part, folder: Path) -> list[dict[str, Any]]:
    """The records of a part's finished seeds, in the order of the seeds.

    Raises:
        UserError: a record has other runs than the part, or two records were made with
            different arithmetic.
    """
    paths = seed_records.finished(part, folder)
    found = {path: records.read_json(path) for path in paths.values()}
    for seed, path in paths.items():
        wanted = [(t.arm, t.draw) for t in part.of_seed(seed)]
        if [(run["arm"], run["draw"]) for run in found[path]["runs"]] != wanted:
            raise errors.UserError(f"{path}: other runs than {wanted}")
    if found:
        # Some arms are trained on the first seeds of a part only.
        most = max(found, key=lambda path: len(found[path]["programs"]))
        for path, record in found.items():
            seed_records.check(str(path), record, most)
    return list(found.values())


def losses(found: Sequence[Mapping[str, Any]], endpoint: str) -> statistics.Losses:
    """An endpoint by arm, seed and draw; None: the run diverged.

    A run that ended without reaching one of `MOMENTS` counts as reaching it at the
    update after its last, as in part A. A part that is too short for `parity` has none.

    Args:
        found: records of seeds.
        endpoint: one of `ENDPOINTS` or `MOMENTS`.
    """
    by_arm: dict[str, dict[str, list[float | None]]] = {}
    for record in found:
        for run in record["runs"]:
            of_arm = by_arm.setdefault(run["arm"], {})
            value = run.get(endpoint)
            if value is None and _ended(run) and _is_moment(endpoint, record):
                value = record["updates"] + 1
            of_arm.setdefault(str(record["seed"]), []).append(value)
    return {MODEL: by_arm}


def _is_moment(endpoint: str, record: Mapping[str, Any]) -> bool:
    """Whether trainings of this length have the endpoint, and it is of `MOMENTS`."""
    if endpoint == "parity":
        return record["updates"] > PARITY_WIDTH
    return endpoint in MOMENTS


def _ended(run: Mapping[str, Any]) -> bool:
    return run["diverged_at"] is None and not run.get("control_diverged")


def manipulation(
    found: Sequence[Mapping[str, Any]], treatment: str, control: str
) -> statistics.Manipulation | None:
    """Whether the runs of two arms separated; draws are averaged within a seed.

    Args:
        found: records of seeds. A seed is left out if it lacks one of the two arms or
            if one of their runs diverged.
        treatment: the noisy arm.
        control: another noisy arm, or the arm without noise.

    Returns:
        None: no seed is left.
    """
    differ, distances = [], []
    for record in found:
        mine = [run for run in record["runs"] if run["arm"] == treatment]
        other = [run for run in record["runs"] if run["arm"] == control]
        runs = mine + other
        # Some arms are trained on the first seeds of the part only.
        if not (mine and other) or any(run["diverged_at"] is not None for run in runs):
            continue
        prints = {run["final_params_sha256"] for run in other}
        differ += [all(run["final_params_sha256"] not in prints for run in mine)]
        distances += [float(np.mean([_apart(a, b) for a in mine for b in other]))]
    return statistics.manipulation(differ, distances) if differ else None


def _apart(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """Final distance of two runs over the control's distance from its start."""
    if b["arm"] == b["control"]:
        found = a["distance_over_travelled"]
        return found[max(found, key=int)]
    # A run holds its distances from itself and from the runs made before it.
    for one, other in ((a, b), (b, a)):
        name = f"{other['arm']}.{other['draw']}"
        if name in one["final_distance_from"]:
            return one["final_distance_from"][name]
    raise errors.UserError(f"no distance between {a['arm']} and {b['arm']} is recorded")


def contrasts(
    found: Sequence[Mapping[str, Any]],
    endpoint: str,
    pairs: Sequence[tuple[str, str]],
) -> list[statistics.PairedResult]:
    """Contrasts of one endpoint, corrected by Holm over all of them.

    The margin comes from the control. A pair is left out if no seed has the endpoint in
    both arms, and every pair is if no run of the control has it.

    Args:
        found: records of seeds.
        endpoint: one of `ENDPOINTS` or `MOMENTS`.
        pairs: (treatment, control).
    """
    measured = losses(found, endpoint)
    ends = measured[MODEL][CONTROL].values()
    if all(value is None for draws in ends for value in draws):
        return []
    margin = statistics.margins_from_losses(measured, CONTROL)[MODEL].value
    return statistics.contrasts_from_losses(
        measured, pairs, {MODEL: margin}, metric=endpoint
    )


def ladder(found: Sequence[Mapping[str, Any]]) -> tuple:
    """(factor, contrast) of each isotropic Gaussian rung of part B under Adam.

    Empty if the largest diverged in every seed: that one is the control of the rule,
    and no smaller one stands in for it.
    """
    if not found:
        return ()
    rungs = {
        run["arm"]: run["dose"][0]
        for run in found[0]["runs"]
        if run["dose"] and run["dose"][1] == "isotropic" and run["control"] == CONTROL
    }
    made = contrasts(found, PRIMARY, [(arm, CONTROL) for arm in rungs])
    steps = tuple((rungs[str(one.treatment)], one) for one in made)
    largest = max(rungs.values(), default=None)
    return steps if any(factor == largest for factor, _ in steps) else ()


def evidence(
    found: Sequence[Mapping[str, Any]],
    made: Sequence[statistics.PairedResult],
    doses: Sequence[Mapping[str, Any]],
    controls: Mapping[str, Any],
) -> statistics.Evidence:
    """The evidence for the rule of the verdict.

    Args:
        found: records of part C.
        made: the result of `all_contrasts` for the primary endpoint.
        doses: records of part B.
        controls: `theory_matched`, `units_separated` (bool or None) and
            `noise_can_help` (`statistics.Check` or None).
    """
    measured = losses(found, PRIMARY)
    by_pair = {(one.treatment, one.control): one for one in made}
    questions = tuple(
        statistics.Question(
            result=by_pair[pair],
            manipulation=manipulation(found, *pair),
            draws=statistics.contrasts_of_draws(
                measured, MODEL, pair, by_pair[pair].margin
            ),
            fresh=pair == (RANDOM, FIXED),
        )
        for pair in QUESTIONS
    )
    diverged = [
        record["seed"]
        for record in found
        for run in record["runs"]
        if run["diverged_at"] is not None
    ]
    return statistics.Evidence(
        model=MODEL,
        questions=questions,
        nulls=tuple(one for pair, one in by_pair.items() if pair == (NULL, CONTROL)),
        gaussian_ladder=ladder(doses),
        ladder_unit="the order noise",
        stale=by_pair.get((STALE, CONTROL)),
        diverged=len(set(diverged)),
        **controls,
    )


def judge(
    found: Sequence[Mapping[str, Any]],
    doses: Sequence[Mapping[str, Any]],
    controls: Mapping[str, Any],
    made: Sequence[statistics.PairedResult] | None = None,
) -> dict[str, Any]:
    """The study's verdict.json.

    Args:
        found: records of part C, all seeds.
        doses: as in `evidence`.
        controls: as in `evidence`.
        made: `all_contrasts` of the primary endpoint, if it is known; it takes seconds.
    """
    made = all_contrasts(found, PRIMARY) if made is None else made
    verdict = statistics.decide(evidence(found, made, doses, controls)).as_dict()
    return describe(found, PRIMARY, made) | {
        "verdict": {MODEL: verdict["verdict"]},
        "details": {MODEL: verdict},
    }


def all_contrasts(
    found: Sequence[Mapping[str, Any]], endpoint: str
) -> list[statistics.PairedResult]:
    """The contrasts in `QUESTIONS`, then those in `BESIDE`; Holm within each group."""
    return [
        one
        for family in (QUESTIONS, *BESIDE)
        for one in contrasts(found, endpoint, family)
    ]


def describe(
    found: Sequence[Mapping[str, Any]],
    endpoint: str,
    made: Sequence[statistics.PairedResult],
) -> dict[str, Any]:
    """verdict_<endpoint>.json: contrasts and losses of an endpoint, without a verdict.

    Args:
        found: records of part C, all seeds.
        endpoint: one of `ENDPOINTS` or `MOMENTS`.
        made: its `all_contrasts`.
    """
    checks = {pair: manipulation(found, *pair) for pair in QUESTIONS}
    measured = {
        " - ".join(pair): check and dataclasses.asdict(check)
        for pair, check in checks.items()
    }
    return {
        "manipulation": {MODEL: next(iter(measured.values()))},
        "manipulations": measured,
        "contrasts": [one.as_dict() for one in made],
        "losses": losses(found, endpoint),
        "design": {
            "seeds": [record["seed"] for record in found],
            "metric": {MODEL: endpoint},
            "git_commits": sorted({record["git_commit"] for record in found}),
            "processors": sorted({record["device"]["processor"] for record in found}),
            "versions": found[0]["versions"],
        },
    }
