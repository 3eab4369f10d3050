"""Paired contrasts, treatment minus control, with the seed as the unit.

The difference of a seed is taken after averaging over the draws of the noise. A
contrast has their mean, and from the exact sign-flip test (`sign_flip`) an interval and
the p-values of no difference and of equivalence. The metric is a loss: a negative
difference is an improvement. Arms are `{arm: {seed: [metric of each draw]}}`, as in
`losses` of a verdict file, from which every contrast can be computed again; a seed
whose loss is not finite (null in JSON) in one of the arms is left out and counted.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from prednet_jax import errors
from prednet_jax.records.verdict import Arms, Contrast, Margin
from prednet_jax.statistics import sign_flip
from prednet_jax.statistics.sign_flip import Floats

#: A difference below this fraction of the control's loss counts as none; a study may
#: choose less. It is fixed beforehand: from the size of another explanation it would be
#: circular, from the differences' spread a matter of the sample size.
MARGIN_FRACTION = 0.02


def paired(
    treatment: ArrayLike,
    control: ArrayLike,
    *,
    margin: float,
    below: float | None = None,
) -> Contrast:
    """Compares two arms seed by seed, without Holm's correction.

    With fewer than six seeds the 95 % interval is unbounded, since no pattern of signs
    is rare enough; with fewer than five no equivalence can be shown.

    Args:
        treatment: metric of the treatment, `[n]` or `[n, draws]`, one row per seed.
            Draws are averaged.
        control: metric of the control, for the same seeds in the same order.
        margin: largest difference that is negligible, in units of the metric, > 0,
            fixed before the results exist.
        below: margin for differences below 0. Defaults to `margin`.

    Raises:
        UserError: a shape, a value or the margin is invalid, or not finite.

    Example:
        >>> from prednet_jax import statistics
        >>> treated, control = [1.2, 1.3, 1.1, 1.2, 1.25, 1.15], [1.0] * 6
        >>> found = statistics.paired(treated, control, margin=0.05)
        >>> found.verdict, found.p_value
        ('higher loss', 0.03125)
    """
    errors.positive("margin", margin)
    a, b = _per_seed("treatment", treatment), _per_seed("control", control)
    d = _differences(a, b)
    low, high = sign_flip.interval(d, Contrast.confidence)
    exact = d.size <= sign_flip.EXACT_LIMIT
    how = f"exact, all 2^{d.size} patterns" if exact else "on a grid, never too small"
    return Contrast(
        n=d.size,
        mean_difference=float(d.mean()),
        ci_low=low,
        ci_high=high,
        p_value=sign_flip.two_sided(d),
        tost_p=sign_flip.equivalence(d, -(margin if below is None else below), margin),
        margin=float(margin),
        max_abs_difference=float(np.abs(d).max()),
        treatment_mean=float(a.mean()),
        control_mean=float(b.mean()),
        p_method=f"sign flip ({how})",
        ci_method=f"sign-flip test inverted ({how})",
        tost_method=f"two one-sided sign-flip tests ({how})",
    ).judged()


def _differences(treatment: Floats, control: Floats) -> Floats:
    """Returns differences `[n]`; ones that differ only by rounding become equal."""
    if treatment.size != control.size:
        raise errors.UserError(
            f"treatment has {treatment.size} seeds and control {control.size}; "
            "expected the same seeds in the same order"
        )
    d = treatment - control
    largest = max(np.abs(treatment).max(), np.abs(control).max())
    rounding = 4 * np.finfo(np.float64).eps * largest
    return np.full_like(d, d[0]) if 0 < np.ptp(d) <= rounding else d


def _per_seed(name: str, values: ArrayLike) -> Floats:
    """Returns one number per seed, `[n]`, from `[n]` or `[n, draws]`."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in (1, 2) or array.size == 0:
        raise errors.UserError(
            f"{name} has shape {array.shape}; expected [n] or [n, draws] with at least "
            "one seed"
        )
    if not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))[0].tolist()
        raise errors.UserError(
            f"{name}{bad} is {array[tuple(bad)]}; expected finite values: leave a "
            "diverged seed out of both arms and report it as an exclusion"
        )
    return array if array.ndim == 1 else array.mean(axis=1)


def holm(results: Sequence[Contrast], family: str | None = None) -> list[Contrast]:
    """Corrects the p-values of a family of contrasts, and their verdicts.

    The p-values of equivalence need no correction: "every contrast is equivalent" is an
    intersection of tests (Berger 1982, Technometrics 24).
    """
    corrected = holm_p_values([r.p_value for r in results])
    return [
        r.judged(p_holm=p, p_holm_family=family)
        for r, p in zip(results, corrected, strict=True)
    ]


def holm_p_values(p_values: Sequence[float]) -> list[float]:
    """Returns the corrected p-values `[m]` of one family of tests, in order.

    Holm 1979, Scand. J. Stat. 6:65: with p_(1) <= ... <= p_(m), the corrected value is
    max over j <= i of min(1, (m - j + 1) p_(j)). `multipletests` of statsmodels takes
    0.1 s for the same: it collects all garbage at each call.
    """
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.minimum(1.0, p[order] * np.arange(p.size, 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.maximum.accumulate(stepped)
    return corrected.tolist()


class Matched(NamedTuple):
    """Means of two arms over the draws of each common seed, `[n]`, seeds ascending.

    `excluded` are common seeds that were left out because a loss is not finite.
    """

    treatment: Floats
    control: Floats
    seeds: tuple[str, ...]
    excluded: tuple[str, ...]


def pair_by_seed(arms: Arms, treatment: str, control: str) -> Matched:
    """Returns two arms on their common seeds; at least one must be finite in both."""
    first, second = arms.get(treatment, {}), arms.get(control, {})
    seeds = sorted(first.keys() & second.keys(), key=seed_order)
    # None becomes NaN.
    means = {
        seed: [float(np.mean(np.asarray(arm[seed], float))) for arm in (first, second)]
        for seed in seeds
    }
    kept = [seed for seed in seeds if math.isfinite(sum(means[seed]))]
    if not kept:
        raise errors.UserError(
            f"{treatment} - {control}: no seed with a finite loss in both arms; "
            "expected at least one"
        )
    treated, controls = np.asarray([means[seed] for seed in kept]).T
    excluded = tuple(seed for seed in seeds if seed not in kept)
    return Matched(treated, controls, tuple(kept), excluded)


def comparable(arms: Arms, treatment: str, control: str) -> bool:
    """Returns whether at least one seed has a finite loss in both arms."""
    try:
        return bool(pair_by_seed(arms, treatment, control).seeds)
    except errors.UserError:
        return False


def seed_order(seed: str) -> tuple[bool, int, str]:
    """Sorts seeds, whole numbers that JSON keeps as text: 10 comes after 9."""
    return (not seed.isdecimal(), int(seed) if seed.isdecimal() else 0, seed)


def contrasts_from_losses(
    arms: Arms,
    pairs: Sequence[tuple[str, str]],
    margin: float,
    *,
    model: str,
    metric: str | None = None,
) -> list[Contrast]:
    """Returns all contrasts of a model, corrected by Holm over all of them.

    `pairs` are (treatment, control); pairs that are not `comparable` are left out;
    `margin` is in units of the loss.
    """
    results = [
        dataclasses.replace(
            paired(*pair_by_seed(arms, *pair)[:2], margin=margin),
            model=model,
            treatment=pair[0],
            control=pair[1],
            metric=metric,
        )
        for pair in pairs
        if comparable(arms, *pair)
    ]
    return holm(results, f"all {len(results)} contrasts of {model}")


def margin_from_losses(
    arms: Arms, control: str, fraction: float = MARGIN_FRACTION
) -> Margin:
    """Returns the margin of a model, a fraction of its control's mean loss.

    `value` is in units of the loss. A UserError is raised for an unknown arm, an arm
    without a finite seed or with a mean that is not positive, or a fraction out of
    range.
    """
    errors.open_unit("fraction", fraction)
    errors.one_of("control", control, tuple(arms))
    kept = pair_by_seed(arms, control, control).control
    mean = float(kept.mean())
    errors.positive("mean loss of the control", mean)
    return Margin(
        value=fraction * mean,
        fraction=fraction,
        control_mean=mean,
        n_control=kept.size,
        origin=f"{100 * fraction:g} % of the control's mean loss ({mean:.4g}, "
        f"{kept.size} seeds)",
    )
