"""What the scatter of redraws makes a small repetition of a study find.

The interval resamples whole seeds, with a random generator of a fixed seed. `redraws`
defines the effect itself.
"""

import math

import numpy as np
from scipy import special

from prednet_jax.statistics.redraws import Redraws
from prednet_jax.statistics.sign_flip import Floats

_RESAMPLES = 20_000


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
