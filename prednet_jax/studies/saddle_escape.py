"""Escape from known saddles: runs, predictions, tests, and what they show.

A case is a function, an optimiser, a form and a precision. A group is all runs of a
case, one per seed, under one noise; its twin is the group of the same case without
noise. All runs start where exact arithmetic would never leave the saddle.

The data flow is: `measure` (one program per function, precision and noise) -> `compare`
(medians and log-rank tests against the twin, Holm over all tests) -> the table and the
findings.
"""

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd
from scipy import stats

from prednet_jax import escape, noise, saddles, statistics
from prednet_jax.errors import UserError
from prednet_jax.report.documents import columns
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


def optimizer(name: str, function: SaddleFunction, *, adam_rate: float) -> saddles.Rule:
    """One of `OPTIMIZERS`; the rate of all but Adam is 1 / (2 L), L the smoothness."""
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
        adam_rate: learning rate of Adam, above 0.

    Returns:
        One group per optimiser and form, as JSON objects.
    """
    gradient = noisy_gradient(saddles.rotated_gradient(function), spec)
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
    for i, name in enumerate(optimizers):
        for j, form in enumerate(forms):
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


def noisy_gradient(gradient: Callable, spec: noise.NoiseSpec) -> Callable:
    """`gradient` under noise of its computation, of its result or both; key first."""
    inject = noise.inject(gradient, noise.at(spec, "computation") or noise.Identity())
    on_gradient = noise.at(spec, "gradient")

    def noisy(key: jax.Array, *inputs: Any) -> Any:
        inner, outer = jax.random.split(key)
        found = inject(inner, *inputs)
        if on_gradient is None:
            return found
        return noise.perturb_tree(on_gradient, outer, found)

    return noisy


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


def compare(groups: list[Group]) -> list[Group]:
    """Adds to each group its medians and the log-rank tests against its twin.

    Args:
        groups: the results of `measure`, including those without noise.

    Returns:
        New groups with `predicted_median`; and for each event with `<event>_median`
        (infinite for a run in which it did not happen), `<event>_p` and
        `<event>_p_holm` (corrected over all tests of this call).
    """
    twins = {_case(group): group for group in groups if group["noise"] == QUIET}
    compared, tested = [], []
    for old in groups:
        expected = [p for p in old["predicted_steps"] if p is not None]
        group = old | {
            "predicted_median": float(np.median(expected)) if expected else None
        }
        for event, happened in EVENTS.items():
            times = np.where(group[happened], group[f"{event}_steps"], math.inf)
            group[f"{event}_median"] = float(np.median(times))
            group[f"{event}_p"] = group[f"{event}_p_holm"] = None
            if group["noise"] != QUIET:
                twin = twins[_case(group)]
                group[f"{event}_p"] = logrank_p(group, twin, event)
                tested.append((group, event))
        compared.append(group)
    corrected = statistics.holm_p_values([g[f"{event}_p"] for g, event in tested])
    for (group, event), p in zip(tested, corrected, strict=True):
        group[f"{event}_p_holm"] = p
    return compared


def _case(group: Group) -> tuple[str, ...]:
    return tuple(group[name] for name in CASE)


def _censored(group: Group, event: str) -> stats.CensoredData:
    """Times of an event; a run in which it did not happen counts as lasting longer.

    To leave such a run out, or to count its length as its time, would bias every mean.
    """
    times = np.asarray(group[f"{event}_steps"], np.float64)
    known = np.asarray(group[EVENTS[event]], bool)
    return stats.CensoredData(uncensored=times[known], right=times[~known])


def logrank_p(group: Group, twin: Group, event: str) -> float:
    """P-value of the log-rank test (Mantel 1966, Cancer Chemother. Rep. 50:163).

    It is 1 if the groups cannot differ: if the event happened in no run, or in all runs
    at the same step.
    """
    happened = group[EVENTS[event]] + twin[EVENTS[event]]
    steps = group[f"{event}_steps"] + twin[f"{event}_steps"]
    if not any(happened) or (all(happened) and np.ptp(steps) == 0):
        return 1.0
    return float(stats.logrank(_censored(group, event), _censored(twin, event)).pvalue)


def _star(group: Any, event: str) -> str:
    """Marks a group whose times differ from its twin's, after Holm's correction."""
    p = group[f"{event}_p_holm"]
    return "*" if p is not None and p < _ALPHA else ""


def text_table(groups: list[Group]) -> str:
    """One row per case: when the runs leave, and how many pass every saddle."""
    noises = list(dict.fromkeys(g["noise"] for g in groups))
    tests = sum(g[f"{event}_p"] is not None for g in groups for event in EVENTS)
    legend = (
        f"Medians of {len(groups[0]['escaped'])} runs, in steps. Left: the first "
        f"saddle, in brackets what theory expects from the projection after {SETTLE} "
        "steps. Passed: runs past every saddle. *: differs from the same runs without "
        f"noise (log-rank, Holm over {tests} tests, .05)."
    )
    lines = textwrap.wrap(legend, 100)
    lines += [f"  {i} = {name}" for i, name in enumerate(noises)]
    rows = [
        list(CASE)
        + [f"{w} {i}" for w in ("left", "passed") for i in range(len(noises))]
    ]
    by_case: dict[tuple[str, ...], dict[str, Group]] = {}
    for group in groups:
        by_case.setdefault(_case(group), {})[group["noise"]] = group
    for case, same in by_case.items():
        left = [_left(same[name]) for name in noises]
        passed = [
            f"{sum(same[name]['arrived'])}{_star(same[name], 'arrival')}"
            for name in noises
        ]
        rows.append([*case, *left, *passed])
    return "\n".join([*lines, "", columns(rows)])


def _left(group: Group) -> str:
    median, expected = group["escape_median"], group["predicted_median"]
    cell = _steps(median)
    if expected is not None and math.isfinite(min(expected, median)):
        cell += f" ({_steps(expected)})"
    return cell + _star(group, "escape")


def _steps(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.0f}"


def findings(groups: list[Group]) -> list[str]:
    """What the runs show, each a sentence; what was not run is left out.

    Args:
        groups: the result of `compare`.
    """
    frame = pd.DataFrame(groups).assign(
        left=lambda f: f.escaped.map(sum),
        runs=lambda f: f.escaped.map(len),
        differs=[bool(_star(group, "escape")) for group in groups],
    )
    quiet, noisy = frame[frame.noise == QUIET], frame[frame.noise != QUIET]
    said = []
    for form, what in (
        ("aligned", "determinism at a saddle that rounding cannot reach"),
        ("rotated", "rounding alone"),
    ):
        counts = quiet[quiet.form == form].groupby("precision", sort=False)
        parts = [
            f"{leave} of {runs} leave in {precision}"
            for precision, leave, runs in counts[["left", "runs"]].sum().itertuples()
        ]
        if parts:
            said.append(f"{form}, no noise ({what}): {', '.join(parts)}.")
    for (name, form), cases in noisy.groupby(["noise", "form"], sort=False):
        said.append(
            f"{name}, {form}: {cases.left.sum()} of {cases.runs.sum()} runs leave; in "
            f"{cases.differs.sum()} of {len(cases)} cases at other times than without "
            "noise."
        )
    lists = ["predicted_steps", "escape_steps", "escaped"]
    descent = frame[frame.optimizer.isin(["gradient_descent", "heavy_ball"])]
    runs = descent.explode(lists, ignore_index=True).dropna(subset="predicted_steps")
    expected = runs.predicted_steps.astype(float)
    error = (runs.escape_steps.astype(float) - expected).abs()
    error = error[runs.escaped.astype(bool) & np.isfinite(expected)]
    if len(error):
        near = error <= np.maximum(2.0, 0.05 * expected[error.index])
        said.append(
            f"theory, gradient descent and heavy ball: {len(error)} escapes, median "
            f"error {error.median():.1f} steps; {near.mean():.0%} within 2 steps or "
            "5 %."
        )
    return said
