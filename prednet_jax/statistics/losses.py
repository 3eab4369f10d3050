"""Computes every contrast from the losses that a verdict file holds.

`losses` is the JSON object `{model: {arm: {seed: [metric of each noise draw]}}}`. The
draws of a seed are averaged first. A contrast uses the seeds that both arms have. A
seed whose loss is not finite (null in JSON) in one of the arms is left out of that
contrast and counted.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prednet_jax import errors
from prednet_jax.statistics.margins import MARGIN_FRACTION, Margin, margin
from prednet_jax.statistics.paired import PairedResult, holm, paired

Draws = Sequence[float | None]
Losses = Mapping[str, Mapping[str, Mapping[str, Draws]]]


class Matched(NamedTuple):
    """Two arms on their common seeds.

    Attributes:
        treatment: metric of each kept seed, mean over the draws, `[n]`.
        control: the same for the control.
        seeds: the kept seeds, ascending.
        excluded: common seeds that were left out because a loss is not finite.
    """

    treatment: NDArray[np.float64]
    control: NDArray[np.float64]
    seeds: tuple[str, ...]
    excluded: tuple[str, ...]


def contrasts_from_losses(
    losses: Losses,
    pairs: Sequence[tuple[str, str]],
    margins: Mapping[str, float],
    *,
    metric: str | None = None,
) -> list[PairedResult]:
    """All contrasts of all models, corrected by Holm within each model.

    Args:
        losses: see the module's docstring.
        pairs: (treatment, control); a model in which they are not `comparable` skips
            the pair.
        margins: the margin of each model, in units of the loss.
        metric: name of the metric, for the record.

    Returns:
        Models in the order of `losses`, pairs in the order given.

    Raises:
        UserError: a model has no margin.
    """
    found = []
    for model, arms in losses.items():
        errors.one_of("model", model, tuple(margins))
        labels = {"model": model} | ({} if metric is None else {"metric": metric})
        results = []
        for treatment, control in pairs:
            if not comparable(arms, treatment, control):
                continue
            matched = match(arms, treatment, control)
            result = paired(matched.treatment, matched.control, margin=margins[model])
            results.append(
                result.labelled(treatment=treatment, control=control, **labels)
            )
        found += holm(results, f"all {len(results)} contrasts of {model}")
    return found


def margins_from_losses(
    losses: Losses, control: str, fraction: float = MARGIN_FRACTION
) -> dict[str, Margin]:
    """The margin of each model: a fraction of the mean loss of its control.

    Args:
        losses: see the module's docstring.
        control: name of the control arm.
        fraction: fraction of the control's mean loss, fixed beforehand, in (0, 1).

    Raises:
        UserError: a model lacks the arm, or no seed of it is finite.
    """
    found = {}
    for model, arms in losses.items():
        errors.one_of("control", control, tuple(arms))
        found[model] = margin(match(arms, control, control).control, fraction)
    return found


def comparable(
    arms: Mapping[str, Mapping[str, Draws]], treatment: str, control: str
) -> bool:
    """Whether at least one seed has a finite loss in both arms."""

    def finite(arm: str) -> set[str]:
        draws_of = arms.get(arm, {}).items()
        return {seed for seed, draws in draws_of if np.isfinite(_mean(draws))}

    return bool(finite(treatment) & finite(control))


def match(
    arms: Mapping[str, Mapping[str, Draws]], treatment: str, control: str
) -> Matched:
    """Two arms on their common seeds, draws averaged within each seed.

    Raises:
        UserError: no common seed is finite in both arms.
    """
    common = sorted(set(arms[treatment]) & set(arms[control]), key=seed_order)
    means = {
        arm: {seed: _mean(arms[arm][seed]) for seed in common}
        for arm in (treatment, control)
    }
    kept = [s for s in common if all(np.isfinite(means[arm][s]) for arm in means)]
    if not kept:
        raise errors.UserError(
            f"{treatment} - {control}: no seed with a finite loss in both arms; "
            "expected at least one"
        )
    return Matched(
        np.asarray([means[treatment][seed] for seed in kept]),
        np.asarray([means[control][seed] for seed in kept]),
        tuple(kept),
        tuple(seed for seed in common if seed not in kept),
    )


def _mean(draws: Draws) -> float:
    if not len(draws) or any(value is None for value in draws):
        return float("nan")
    return float(np.mean(np.asarray(draws, np.float64)))


def seed_order(seed: str) -> tuple[bool, int, str]:
    """Sorts seeds, whole numbers that JSON keeps as text: 10 comes after 9."""
    return (not seed.isdigit(), int(seed) if seed.isdigit() else 0, seed)
