"""Quantiles and bounds that few runs allow; SciPy is loaded where it is needed."""

import math
from statistics import NormalDist


def two_sided(tail: float) -> float:
    """The size that a standard normal number exceeds with probability `tail`."""
    return -NormalDist().inv_cdf(tail / 2)


def spread_bound(draws: float, confidence: float) -> float:
    """By what factor the standard deviation may exceed that of a normal sample."""
    from scipy.special import chdtri

    free = draws - 1
    return math.sqrt(free / float(chdtri(free, confidence)))


def interval(count: int, total: int) -> tuple[float, float]:
    """The interval of 95 % of a binomial probability.

    C. J. Clopper & E. S. Pearson, Biometrika 26, 1934.
    """
    from scipy.special import betaincinv

    low = betaincinv(count, total - count + 1, 0.025) if count else 0.0
    high = betaincinv(count + 1, total - count, 0.975) if count < total else 1.0
    return float(low), float(high)
