"""What a verdict says, in the words of the page and of the documents."""

from collections.abc import Mapping
from typing import Any

from prednet_jax.report.numbers import MISSING, change, percent, probability
from prednet_jax.report.results import Results, identical, relative

_NAMES = {"prednet": "PredNet", "autoencoder": "Autoencoder"}
_ARMS = {
    "treatment": "Random order of every sum",
    "gpu": "GPU",
    "gpu_deterministic": "GPU, deterministic",
    "stale": "Stale targets",
}


def display_name(model: str) -> str:
    """A model's name as a heading has it."""
    return _NAMES.get(model, model)


def details(results: Results, model: str) -> dict[str, Any]:
    """What the decision rule recorded about a model; empty where it did not."""
    recorded = results.section("details").get(model) or {}
    return dict(recorded) if isinstance(recorded, Mapping) else {}


def facts(results: Results, model: str) -> list[tuple[str, str]]:
    """The few numbers behind a model's verdict, each with its name."""
    chosen = results.contrasts(model)
    found = []
    for role, name in _ARMS.items():
        for one in chosen:
            if one.get("role") == role:
                against = "" if one["control"] == "float32" else f", {one['control']}"
                found.append((name + against, effect(one)))
    if not chosen:
        return found
    first = chosen[0]
    margin = percent(relative(first, "margin"), sign=False)
    if margin != MISSING:
        found.append(("Counts as none", f"within ±{margin}"))
    seeds = f"{first.get('n', MISSING)} seeds"
    power = details(results, model).get("achieved_power")
    if power is not None:
        seeds += f", power {probability(power)}"
    return [*found, ("Sample", seeds)]


def effect(contrast: Mapping[str, Any]) -> str:
    """A difference in percent of the control's loss, with its interval."""
    if identical(contrast):
        return "0, bit for bit"
    mean, low, high = (
        relative(contrast, name) for name in ("mean_difference", "ci_low", "ci_high")
    )
    if mean is None:
        return "not recorded"
    return change(
        100 * mean,
        None if low is None else 100 * low,
        None if high is None else 100 * high,
    )


def gap(contrast: Mapping[str, Any]) -> str:
    """The difference from the control in a few words; the verdict where not known."""
    if identical(contrast):
        return "same bits"
    mean = relative(contrast, "mean_difference")
    if mean is None:
        return contrast["verdict"]
    if 0 < abs(mean) < 1e-5:
        return "under 0.001 %"
    return percent(mean).replace("-", "−")
