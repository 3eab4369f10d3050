"""The scatter of redraws, and its consequences for single runs and small repetitions.

All functions work on log losses and show relative changes of the loss. Intervals
resample whole seeds, with a random generator of a fixed seed. `redraws` defines the
effect itself; functions that take `Redraws` take the result of `collect_redraws`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from prednet_jax import errors
from prednet_jax.statistics.redraws import Redraws
from prednet_jax.statistics.sign_flip import Floats

_RESAMPLES = 20_000


class Limit(NamedTuple):
    """How far two runs of one seed may differ; relative changes of the loss.

    At least 95 in 100 pairs of runs of a new seed differ by less than `limit`, which is
    infinite for too few seeds; 95 in 100 pairs at hand by less than `observed`.
    `seeds` is the number of seeds with two runs or more.
    """

    limit: float
    observed: float
    seeds: int


def redraw_interval(runs: Sequence[ArrayLike], confidence: float = 0.95) -> Limit:
    """Returns the largest difference of two runs of one seed that rounding explains.

    The limit holds for two runs of a seed that is not among those given, whatever the
    distribution of the scatter: every seed has equal weight, and the new one counts as
    the widest (Lee, Barber & Willett 2023, arXiv 2306.06342, hierarchical conformal
    prediction). So 95 % needs 19 seeds.

    Args:
        runs: losses of runs that differ in nothing but their order of sums, one array
            `[runs]` per seed. `Redraws.together` has this form.
        confidence: share of the pairs that the limit holds for, in (0, 1).

    Example:
        >>> import numpy as np
        >>> from prednet_jax import statistics
        >>> losses = np.exp(np.random.default_rng(0).normal(0, 0.01, (100, 3)))
        >>> round(statistics.redraw_interval(losses).limit, 2)
        0.03
    """
    errors.open_unit("confidence", confidence)
    pairs, weights = [], []
    for losses in runs:
        losses = np.asarray(losses, np.float64)
        if not ((losses > 0) & (losses < np.inf)).all():
            raise errors.UserError(f"losses={losses}: expected finite ones, above 0")
        logs = np.log(losses)
        i, j = np.triu_indices(logs.size, 1)
        if i.size:
            pairs.append(np.abs(logs[i] - logs[j]))
            weights.append(np.full(i.size, 1 / i.size))
    if not pairs:
        raise errors.UserError(
            "redraw_interval: no seed has two runs; expected at least one"
        )
    distance = np.concatenate(pairs)
    order = np.argsort(distance)
    mass = np.cumsum(np.concatenate(weights)[order])

    def quantile(of: float) -> float:
        rank = int(np.searchsorted(mass, of - 1e-9))
        return math.expm1(distance[order][rank]) if rank < mass.size else math.inf

    n = len(pairs)
    return Limit(quantile(confidence * (n + 1)), quantile(confidence * n), n)


def predicted(
    study: Redraws, *, seeds: int, treatment: int, control: int
) -> tuple[float, float]:
    """Predicts the 95 % interval of the effect in a small repetition of a study.

    The repetition has `seeds` new seeds, with `treatment` and `control` runs per seed.
    It is simulated by drawing whole seeds of the study with replacement, and runs of
    each seed without replacement (with, if more are needed than exist). The error of
    the study itself is added in the same way, and the percentiles are expanded for few
    seeds (Hesterberg 2015, Am. Stat. 69:371). A study of one seed predicts nothing: -1
    to infinity.
    """
    rng = np.random.default_rng(0)
    n = len(study.seeds)
    if n < 2:
        return -1.0, math.inf
    chosen = rng.integers(0, n, (_RESAMPLES, seeds))
    repeated = np.empty(chosen.shape)
    for index in range(n):
        places = chosen == index
        count = int(places.sum())
        repeated[places] = _means(study.treatment[index], treatment, count, rng)
        repeated[places] -= _means(study.control[index], control, count, rng)
    first, second = study.logs
    d = first - second
    again = d[rng.integers(0, n, (_RESAMPLES, n))].mean(axis=1)
    effects = d.mean() + repeated.mean(axis=1) - again
    reach = special.stdtrit(n - 1, 0.975) * math.sqrt(n / (n - 1))
    tail = float(special.ndtr(-reach))
    low, high = np.expm1(np.quantile(effects, (tail, 1 - tail)))
    return float(low), float(high)


def _means(runs: Floats, size: int, count: int, rng: np.random.Generator) -> Floats:
    """Returns the mean log losses of `count` random subsets of `size` runs."""
    logs = np.log(runs)
    if size > logs.size:
        return logs[rng.integers(0, logs.size, (count, size))].mean(axis=1)
    order = np.argsort(rng.random((count, logs.size)), axis=1)[:, :size]
    return logs[order].mean(axis=1)
