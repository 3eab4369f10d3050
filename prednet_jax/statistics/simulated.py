"""How often the rule answers rightly, in simulated studies with a known truth.

Studies are built like part H of the study: every seed has four runs with fixed orders
and four with random orders, and all of them scatter, also those of the ordinary
program. The size of the scatter differs between seeds about as in part C, with a pooled
standard deviation of 2.2 % of the loss. Half of the seeds may not have separated; they
scatter a hundred times less. Effects may differ between the seeds.

There are 2^40 patterns of signs, so random subsets of the seeds stand for them. That is
a valid sign-flip test too, with slightly more random p-values than the exact one.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from prednet_jax.statistics import redraws, scatter
from prednet_jax.statistics.contrasts import MARGIN_FRACTION
from prednet_jax.statistics.sign_flip import Floats

#: Distribution of a run's log loss, and share of the seeds that have separated.
KINDS = (("normal", 1.0), ("skewed", 1.0), ("heavy tails", 1.0), ("normal", 0.5))
#: True effects (the second and third lie exactly at the margin), and standard
#: deviations of the effect over the seeds, relative.
EFFECTS = (0.0, -MARGIN_FRACTION, MARGIN_FRACTION, -0.03, 0.03)
SPREADS = (0.0, 0.0065, 0.02)
SEEDS = (40, 24)
RUNS = 4
ANSWERS = (redraws.LOWERS, redraws.NO_EFFECT, redraws.RAISES, redraws.CANNOT_TELL)
_SCATTER, _SIGMA = 0.0218, 0.8
_SUBSETS = 999
#: Seeds and runs per group of a repetition, for the coverage of its prediction; and the
#: number of studies that are repeated.
_AGAIN, _REPEATED = (3, 2), 200


class Truth(NamedTuple):
    """What is true in a simulated study.

    Attributes:
        effect: relative change of the loss by a random order.
        spread: standard deviation of the effect over the seeds, of the log loss.
        shape: distribution of a run's log loss; see `deviations`.
        separated: share of the seeds whose runs separated.
    """

    effect: float = 0.0
    spread: float = 0.0
    shape: str = "normal"
    separated: float = 1.0


TRUTHS = tuple(
    Truth(effect, spread, *kind)
    for effect, spread, kind in itertools.product(EFFECTS, SPREADS, KINDS)
)


def simulate(
    studies: int,
    *,
    truths: Sequence[Truth] = TRUTHS,
    seeds: Sequence[int] = SEEDS,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Rates of the answers, and coverage of the intervals, in [0, 1].

    The coverages of `redraw_interval` and `predicted` are of fewer studies, and only
    for truths without an effect; None elsewhere.

    Args:
        studies: simulated studies per record, >= 1.
        truths: what is true in the studies.
        seeds: numbers of seeds.
        seed: seed of the random numbers; each record has a generator of its own.
    """
    records = []
    for index, truth in enumerate(truths):
        for n in seeds:
            rng = np.random.default_rng([seed, index, n])
            treatment, control = draw(rng, truth, (studies, n), RUNS)
            records.append(
                truth._asdict()
                | {"seeds": n, "studies": studies, "right": right_answer(truth.effect)}
                | _rates(rng, truth, treatment, control)
                | _single_runs(rng, truth, treatment, control)
            )
    return records


def right_answer(effect: float) -> str:
    """The right answer for a true effect; exactly at the margin it is `cannot tell`."""
    if abs(effect) == MARGIN_FRACTION:
        return redraws.CANNOT_TELL
    if abs(effect) < MARGIN_FRACTION:
        return redraws.NO_EFFECT
    return redraws.LOWERS if effect < 0 else redraws.RAISES


def draw(
    rng: np.random.Generator, truth: Truth, size: tuple[int, int], runs: int
) -> tuple[Floats, Floats]:
    """Log losses of random and of fixed orders, `[studies, seeds, runs]` each."""
    sizes = rng.lognormal(-(_SIGMA**2), _SIGMA, (*size, 1))  # mean square 1
    apart = rng.random((*size, 1)) < truth.separated
    # The pooled scatter stays the same if only some seeds have separated.
    sizes *= _SCATTER * np.where(apart, truth.separated**-0.5, 0.01)
    treatment, control = (
        sizes * deviations(rng, truth.shape, (*size, runs)) for _ in range(2)
    )
    effects = math.log1p(truth.effect) + truth.spread * rng.normal(size=(*size, 1))
    return treatment + effects, control


def deviations(rng: np.random.Generator, shape: str, size: tuple[int, ...]) -> Floats:
    """Deviations with mean 0 and standard deviation 1.

    `skewed` is a lognormal variable of log-sd 1 with the sign changed: most values are
    a little high and a few are very low. `heavy tails` is Student's t with three
    degrees of freedom.
    """
    if shape == "normal":
        return rng.normal(size=size)
    if shape == "skewed":
        mean, sd = math.exp(0.5), math.sqrt(math.expm1(1) * math.e)
        return (mean - rng.lognormal(0, 1, size)) / sd
    return rng.standard_t(3, size) / math.sqrt(3)


def _rates(
    rng: np.random.Generator, truth: Truth, treatment: Floats, control: Floats
) -> dict[str, float]:
    """Rates of the answers and of the intervals that hold the truth."""
    d = treatment.mean(axis=2) - control.mean(axis=2)
    low, low_90, high_90, high = _ends(_subset_means(rng, d))
    true = math.log1p(truth.effect)
    below, above = math.log1p(-MARGIN_FRACTION), math.log1p(MARGIN_FRACTION)
    lowers, raises = high < below, low > above
    inside = (low_90 > below) & (high_90 < above)
    runs = treatment.shape[2]
    explained = (treatment.var(axis=2, ddof=1) + control.var(axis=2, ddof=1)) / runs
    upper = scatter.spread(d, explained)[1]
    answered = (lowers, inside, raises, ~(lowers | inside | raises))
    return dict(zip(ANSWERS, map(float, map(np.mean, answered)), strict=True)) | {
        "coverage": float(np.mean((low <= true) & (true <= high))),
        "spread_coverage": float(np.mean(upper >= truth.spread)),
    }


def _single_runs(
    rng: np.random.Generator, truth: Truth, treatment: Floats, control: Floats
) -> dict[str, float | None]:
    """How often a new pair of runs, and a small repetition, fall where they should."""
    if truth.effect:
        return {"redraw_coverage": None, "predicted_coverage": None}
    count, n, _ = treatment[:_REPEATED].shape
    pairs = abs(np.diff(draw(rng, truth, (count, 200), 2)[1])[..., 0])
    seeds, runs = _AGAIN
    again = draw(rng, truth, (count, seeds), runs)
    repeated = (again[0] - again[1]).mean(axis=(1, 2))
    held, inside = [], []
    for index in range(count):
        both = redraws.Redraws(
            seeds=tuple(map(str, range(n))),
            treatment=tuple(np.exp(treatment[index])),
            control=tuple(np.exp(control[index])),
        )
        limit = scatter.redraw_interval(both.control).limit
        held.append(np.mean(np.expm1(pairs[index]) <= limit))
        low, high = scatter.predicted(
            both, seeds=seeds, treatment=runs, control=runs, resamples=1000
        )
        inside.append(low <= math.expm1(repeated[index]) <= high)
    return {
        "redraw_coverage": float(np.mean(held)),
        "predicted_coverage": float(np.mean(inside)),
    }


def _subset_means(rng: np.random.Generator, d: Floats) -> Floats:
    """Means of random non-empty subsets of the seeds, `[studies, subsets]`."""
    flipped = rng.integers(0, 2, (2 * _SUBSETS, d.shape[1])).astype(np.float64)
    flipped = flipped[flipped.any(axis=1)][:_SUBSETS]
    return d @ (flipped / flipped.sum(axis=1, keepdims=True)).T


def _ends(means: Floats) -> tuple[Floats, ...]:
    """Lower ends of the 95 and 90 % intervals, then upper ends of the 90 and 95 %."""
    patterns = means.shape[1] + 1
    low, low_90 = (round(alpha / 2 * patterns) - 1 for alpha in (0.05, 0.1))
    ranks = (low, low_90, patterns - 2 - low_90, patterns - 2 - low)
    ends = np.partition(means, ranks, axis=1)
    return tuple(ends[:, rank] for rank in ranks)
