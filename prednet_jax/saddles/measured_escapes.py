"""Escape from known saddles: runs, tests, and their table.

A case is a function, an optimiser, a form and a precision. A group is all runs of a
case, one per seed, under one noise; its control is the group of the same case without
noise. All runs start where exact arithmetic would never leave the saddle.

`measure` makes the groups (one program per function, precision and noise), `compare`
adds medians and log-rank tests against the control.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from scipy import stats

from prednet_jax import noise, saddles, statistics
from prednet_jax.report.numbers import probability
from prednet_jax.report.tables import columns
from prednet_jax.saddles import SaddleFunction

OPTIMIZERS = ("gradient_descent", "heavy_ball", "adam")
ADAM_RATE = 0.02
QUIET = "none"
#: The two events, leaving the first saddle and passing all, with the fields that say
#: whether they happened.
EVENTS = {"escape": "escaped", "arrival": "arrived"}
CASE = ("function", "optimizer", "form", "precision")

Group = dict[str, Any]


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
) -> list[Group]:
    """Simulates every optimiser, form and seed under one noise: a group for each pair.

    The noise `spec`, whose name is `text` (`QUIET`: no noise), may not act on weights.
    Adam's learning rate is `ADAM_RATE`; the other optimisers use 1 / (2 L), where L is
    the smoothness. The other arguments are as in `saddles.escape_runs`.
    """
    gradient = noisy_gradient(saddles.rotated_gradient(function), spec)
    rate = 1 / (2 * function.smoothness)
    rules_by_name = {
        "gradient_descent": saddles.gradient_descent(rate),
        "heavy_ball": saddles.heavy_ball(rate),
        "adam": saddles.adam(ADAM_RATE),
    }
    rules = [rules_by_name[name] for name in optimizers]
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
            fresh=getattr(spec, "schedule", "call") == "call",
        )
    measured = {
        "escape_steps": runs.steps,
        "escaped": runs.escaped,
        "arrival_steps": runs.arrival,
        "arrived": runs.arrived,
        "still": runs.still,
    }
    return [
        {"function": function.name, "optimizer": name, "form": form}
        | {"precision": precision, "noise": text}
        | {field: values[i, j].tolist() for field, values in measured.items()}
        for i, name in enumerate(optimizers)
        for j, form in enumerate(forms)
    ]


def noisy_gradient(gradient: Callable, spec: noise.NoiseSpec) -> Callable:
    """Adds noise to the computation of `gradient`, to its result or both; key first."""
    inject = noise.inject(gradient, noise.at(spec, "computation") or noise.Identity())
    on_gradient = noise.at(spec, "gradient")

    def noisy(key: jax.Array, *inputs: Any) -> Any:
        inner, outer = jax.random.split(key)
        result = inject(inner, *inputs)
        if on_gradient is None:
            return result
        return noise.perturb_tree(on_gradient, outer, result)

    return noisy


def compare(groups: list[Group]) -> list[Group]:
    """Adds to each group its medians and the log-rank tests against its control.

    The new groups have for each event `<event>_median` (a run in which it did not
    happen counts as infinite), `<event>_p` and `<event>_p_holm` (corrected over all
    tests of this call). `groups` must include the groups without noise.
    """
    controls = {_case(group): group for group in groups if group["noise"] == QUIET}
    compared, tested = [], []
    for old in groups:
        group = dict(old)
        for event, happened in EVENTS.items():
            times = np.where(group[happened], group[f"{event}_steps"], math.inf)
            group[f"{event}_median"] = float(np.median(times))
            group[f"{event}_p"] = group[f"{event}_p_holm"] = None
            if group["noise"] != QUIET:
                control = controls[_case(group)]
                group[f"{event}_p"] = logrank_p(group, control, event)
                tested.append((group, event))
        compared.append(group)
    corrected = statistics.holm_p_values([g[f"{event}_p"] for g, event in tested])
    for (group, event), p in zip(tested, corrected, strict=True):
        group[f"{event}_p_holm"] = p
    return compared


def _case(group: Group) -> tuple[str, ...]:
    return tuple(group[name] for name in CASE)


def logrank_p(group: Group, control: Group, event: str) -> float:
    """Returns the p-value of the log-rank test.

    A run in which the event did not happen counts as lasting longer. It is 1 if the
    groups cannot differ: if the event happened in no run, or in all at the same step.
    Source: Mantel 1966, Cancer Chemother. Rep. 50:163.
    """
    happened, steps = EVENTS[event], f"{event}_steps"
    both = group[happened] + control[happened]
    if not any(both) or (all(both) and np.ptp(group[steps] + control[steps]) == 0):
        return 1.0

    def sample(of: Group) -> stats.CensoredData:
        times, observed = np.asarray(of[steps], float), np.asarray(of[happened], bool)
        return stats.CensoredData(uncensored=times[observed], right=times[~observed])

    return float(stats.logrank(sample(group), sample(control)).pvalue)


def text_table(groups: list[Group]) -> str:
    """Returns a table with a row per case: times of leaving, and runs that pass all.

    p-values compare with runs without noise.
    """
    rows = [(*CASE, "noise", "left after", "p", "passed all", "p")]
    for group in groups:
        escape_p, arrival_p = (
            probability(group[f"{event}_p_holm"]) for event in EVENTS
        )
        median = group["escape_median"]
        time = "never" if math.isinf(median) else f"{median:.0f}"
        done = f"{sum(group['arrived'])} of {len(group['arrived'])}"
        rows.append((*_case(group), group["noise"], time, escape_p, done, arrival_p))
    return columns(rows)
