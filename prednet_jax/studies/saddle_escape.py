"""Escape from known saddles: runs, predictions and tests.

A case is a function, an optimiser, a form and a precision. A group is all runs of a
case, one per seed, under one noise. The twin of a group is the group of the same case
without noise. All runs start where exact arithmetic would never leave the saddle.

The data flow is: `measure` (one program per function, precision and noise) -> `compare`
(medians and log-rank tests against the twin, Holm over all tests) -> `findings`.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from scipy import stats

from prednet_jax import escape, noise, saddles, statistics
from prednet_jax.errors import UserError
from prednet_jax.saddles import SaddleFunction

OPTIMIZERS = ("gradient_descent", "heavy_ball", "adam", "perturbed")
QUIET = "none"
#: The two events, leaving the first saddle and passing all, with the fields that say
#: whether they happened.
EVENTS = {"escape": "escaped", "arrival": "arrived"}
#: Step at which the projection is read that predicts the escape time.
SETTLE = 10
_ALPHA = 0.05
CASE = ("function", "optimizer", "form", "precision")

Group = dict[str, Any]
#: Steps to an event and whether it happened, as `censored` takes them.
Times = tuple[Sequence[float], Sequence[bool]]


def optimizer(name: str, function: SaddleFunction, *, adam_rate: float) -> saddles.Rule:
    """An optimiser with its learning rate for a function.

    Args:
        name: one of `OPTIMIZERS`.
        function: its smoothness L gives the learning rate 1 / (2 L) of all but Adam.
        adam_rate: learning rate of Adam, above 0.

    Raises:
        UserError: the name is unknown.
    """
    rate = 1 / (2 * function.smoothness)
    if name == "gradient_descent":
        return saddles.gradient_descent(rate)
    if name == "heavy_ball":
        return saddles.heavy_ball(rate)
    if name == "adam":
        return saddles.adam(adam_rate)
    if name == "perturbed":
        return saddles.perturbed_gradient_descent(
            rate, radius=1e-3, threshold=1e-2, wait=50
        )
    raise UserError(f"optimizer={name!r}: expected one of {', '.join(OPTIMIZERS)}")


def measure(
    function: SaddleFunction,
    text: str,
    spec: noise.NoiseSpec,
    *,
    optimizers: Sequence[str],
    forms: Sequence[str],
    seeds: int,
    first_seed: int = 0,
    steps: int,
    precision: str,
    adam_rate: float,
) -> list[Group]:
    """Runs every optimiser, form and seed under one noise, as one compiled program.

    Args:
        function: the function, in its aligned form.
        text: name of the noise; `QUIET`: no noise.
        spec: the noise; it may not act on weights.
        optimizers: some of `OPTIMIZERS`.
        forms: "aligned", "rotated", or both.
        seeds: number of runs per group; a seed fixes start, rotation and noise.
        first_seed: the first seed.
        steps: steps of each run, above `SETTLE`.
        precision: "float32" or "float64".
        adam_rate: learning rate of Adam.

    Returns:
        One group per optimiser and form, as JSON objects.
    """
    gradient = _noisy_gradient(function, spec)
    rules = [optimizer(name, function, adam_rate=adam_rate) for name in optimizers]
    with jax.enable_x64(precision == "float64"):
        runs = saddles.escape_runs(
            gradient,
            function,
            rules,
            forms=tuple(forms),
            seeds=seeds,
            first_seed=first_seed,
            steps=steps,
            dtype=precision,
            settle=SETTLE,
            fresh=getattr(spec, "schedule", "call") == "call",
        )
    groups = []
    for (i, name), (j, form) in itertools.product(
        enumerate(optimizers), enumerate(forms)
    ):
        group = {
            "function": function.name,
            "optimizer": name,
            "form": form,
            "precision": precision,
            "noise": text,
            "escape_steps": runs.steps[i, j].tolist(),
            "escaped": runs.escaped[i, j].tolist(),
            "arrival_steps": runs.arrival[i, j].tolist(),
            "arrived": runs.arrived[i, j].tolist(),
            "still": runs.still[i, j].tolist(),
        }
        group["predicted_steps"] = [
            _predict(function, group, rules[i], *pair)
            for pair in runs.early[i, j].astype(float)
        ]
        groups.append(group)
    return groups


def _noisy_gradient(function: SaddleFunction, spec: noise.NoiseSpec) -> Callable:
    """`gradient(key, x, rotation)` under a noise."""
    inside = noise.at(spec, "computation") or noise.Identity()
    inject = noise.inject(saddles.rotated_gradient(function), inside)
    on_gradient = noise.at(spec, "gradient")

    def gradient(key: jax.Array, x: jax.Array, rotation: jax.Array) -> jax.Array:
        inner, outer = jax.random.split(key)
        found = inject(inner, x, rotation)
        if on_gradient is None:
            return found
        return noise.perturb_tree(on_gradient, outer, found)

    return gradient


def _predict(
    function: SaddleFunction,
    group: Group,
    rule: saddles.Rule,
    before: float,
    now: float,
) -> float | None:
    """Escape time by theory; inf: never; None: the theory does not apply."""
    if not function.strict or group["optimizer"] == "perturbed":
        return None
    quiet = group["noise"] == QUIET
    if group["form"] == "aligned":
        # The start is exact here, so a projection as small as the rounding error of its
        # own measurement counts as 0. Without noise it stays 0.
        eps = np.finfo(group["precision"]).eps
        if now <= 8 * eps * np.linalg.norm(function.saddle):
            return math.inf if quiet else None
    if group["optimizer"] == "adam":
        # The steps of a fresh Adam have size eta while the gradient keeps its sign.
        # Noise that is larger than the gradient changes the sign.
        if not quiet:
            return None
        return escape.fresh_adam_time(
            function.radius, learning_rate=float(rule.learning_rate)
        )
    growth = escape.growth(
        function.curvature,
        learning_rate=float(rule.learning_rate),
        momentum=float(rule.momentum),
    )
    left = escape.escape_time(now, function.radius, growth, step=now - before)
    # A projection that is zero by chance does not stay zero under rounding errors.
    return SETTLE + left if math.isfinite(left) else None


def case(group: Group) -> tuple[str, ...]:
    """The case of a group, which it shares with its twin."""
    return tuple(group[name] for name in CASE)


def cases(groups: list[Group]) -> dict[tuple[str, ...], dict[str, Group]]:
    """Groups by case and noise, in the given order."""
    found: dict[tuple[str, ...], dict[str, Group]] = {}
    for group in groups:
        found.setdefault(case(group), {})[group["noise"]] = group
    return found


def compare(groups: list[Group]) -> list[Group]:
    """Adds to each group its medians and the log-rank tests against its twin.

    Args:
        groups: the results of `measure`, including those without noise.

    Returns:
        New groups with `predicted_median` and a `reading` in words; and for each event
        with `<event>_median` (infinite for a run in which it did not happen),
        `<event>_p` and `<event>_p_holm` (corrected over all tests of this call).
    """
    twins = {case(group): group for group in groups if group["noise"] == QUIET}
    found, tested = [], []
    for old in groups:
        group = dict(old)
        expected = [p for p in group["predicted_steps"] if p is not None]
        group["predicted_median"] = float(np.median(expected)) if expected else None
        twin = twins[case(group)]
        for event, happened in EVENTS.items():
            times = np.where(group[happened], group[f"{event}_steps"], math.inf)
            group[f"{event}_median"] = float(np.median(times))
            group[f"{event}_p"] = group[f"{event}_p_holm"] = None
            if group["noise"] == QUIET:
                continue
            group[f"{event}_p"] = logrank_p(
                (group[f"{event}_steps"], group[happened]),
                (twin[f"{event}_steps"], twin[happened]),
            )
            tested.append((group, event))
        found.append(group)
    corrected = statistics.holm_p_values([g[f"{event}_p"] for g, event in tested])
    for (group, event), p in zip(tested, corrected, strict=True):
        group[f"{event}_p_holm"] = p
    for same in cases(found).values():
        for group in same.values():
            group["reading"] = _reading(group, same[QUIET])
    return found


def censored(steps: Sequence[float], happened: Sequence[bool]) -> stats.CensoredData:
    """Times of an event; a run in which it did not happen counts as lasting longer.

    To leave such a run out, or to count its length as its time, would bias every mean.

    Args:
        steps: steps to the event, or the length of a run without it, `[n]`, > 0.
        happened: `[n]`; False: the run ended without the event.
    """
    times, known = np.asarray(steps, np.float64), np.asarray(happened, bool)
    return stats.CensoredData(uncensored=times[known], right=times[~known])


def logrank_p(first: Times, second: Times) -> float:
    """P-value of the log-rank test (Mantel 1966, Cancer Chemother. Rep. 50:163).

    It is 1 if the groups cannot differ: if the event happened in no run, or in all runs
    at the same step.
    """
    steps, happened = (np.concatenate(both) for both in zip(first, second, strict=True))
    if not np.any(happened) or (np.all(happened) and np.ptp(steps) == 0):
        return 1.0
    return float(stats.logrank(censored(*first), censored(*second)).pvalue)


def differs(group: Group, event: str) -> bool:
    """Whether a group's times differ from its twin's, after Holm's correction."""
    p = group[f"{event}_p_holm"]
    return p is not None and p < _ALPHA


def _reading(group: Group, twin: Group) -> str:
    """What a group shows, in words."""
    if group is twin:
        if not any(group["escaped"]):
            return "determinism never leaves"
        stalled = len(group["arrived"]) - sum(group["arrived"])
        stop = f", {stalled} stop on the way" if stalled else ""
        return f"rounding alone leaves{stop}"
    found = []
    for event, verb in (("escape", "leaves"), ("arrival", "passes all")):
        if not differs(group, event):
            continue
        happened = EVENTS[event]
        ours, theirs = sum(group[happened]), sum(twin[happened])
        if not theirs:
            how = "where determinism does not"
        elif ours != theirs:
            how = "more often" if ours > theirs else "less often"
        else:
            medians = group[f"{event}_median"], twin[f"{event}_median"]
            how = "sooner" if medians[0] < medians[1] else "later"
        found.append(f"{verb} {how}")
    return ", ".join(found) or "no effect of randomness detected"
