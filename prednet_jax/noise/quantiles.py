"""Computes quantiles and bounds for small samples; SciPy is imported when used."""

import math
from statistics import NormalDist


def two_sided(tail: float) -> float:
    """Returns the size that a standard normal exceeds with probability `tail`."""
    return -NormalDist().inv_cdf(tail / 2)


def spread_bound(draws: float, confidence: float) -> float:
    """Returns the upper bound of the ratio of the true to the sample deviation."""
    from scipy.special import chdtri

    free = draws - 1
    return math.sqrt(free / float(chdtri(free, confidence)))


def interval(count: int, total: int) -> tuple[float, float]:
    """Returns the 95 % interval of Clopper and Pearson for a binomial probability."""
    from scipy.stats import binomtest

    ends = binomtest(int(count), int(total)).proportion_ci(method="exact")
    return float(ends.low), float(ends.high)


def student(tail: float, free: float) -> float:
    """Returns the value that Student's t exceeds with probability `tail`."""
    from scipy.special import stdtrit

    return -float(stdtrit(free, tail))
