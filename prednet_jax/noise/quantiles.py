"""Quantiles and bounds that few runs allow; SciPy is loaded where it is needed."""

import math
from statistics import NormalDist


def two_sided(tail: float) -> float:
    """The size that a standard normal number exceeds with probability `tail`."""
    return -NormalDist().inv_cdf(tail / 2)


def spread_bound(draws: float, confidence: float) -> float:
    """Returns how far a standard deviation may exceed that of a normal sample."""
    from scipy.special import chdtri

    free = draws - 1
    return math.sqrt(free / float(chdtri(free, confidence)))


def interval(count: int, total: int) -> tuple[float, float]:
    """The interval of 95 % of a binomial probability, of Clopper and Pearson."""
    from scipy.stats import binomtest

    ends = binomtest(int(count), int(total)).proportion_ci(method="exact")
    return float(ends.low), float(ends.high)


def student(tail: float, free: float) -> float:
    """Returns what Student's t exceeds with probability `tail`."""
    from scipy.special import stdtrit

    return -float(stdtrit(free, tail))
