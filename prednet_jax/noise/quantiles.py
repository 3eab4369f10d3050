"""Quantiles and bounds that few runs allow, without SciPy."""

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np


def two_sided(tail: float) -> float:
    """The size that a standard normal number exceeds with probability `tail`."""
    return -NormalDist().inv_cdf(tail / 2)


def crossing(grows: Callable[[float], float], level: float, high: float) -> float:
    """Where in (0, high) a growing function reaches a level, by bisection."""
    low = 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if grows(middle) < level else (low, middle)
    return (low + high) / 2


def chi_squared(probability: float, degrees: float) -> float:
    """The lower quantile of the chi-squared distribution.

    By bisection of P(a, x) = x^a e^-x / Gamma(a + 1) sum_k x^k / ((a+1) ... (a+k)),
    a = degrees / 2 (NIST Digital Library of Mathematical Functions, 8.11.4).
    """
    a = degrees / 2

    def lower_gamma(x: float) -> float:
        term = total = 1.0
        k = 0
        while term > 1e-17 * total:
            k += 1
            term *= x / (a + k)
            total += term
        return total * math.exp(a * math.log(x) - x - math.lgamma(a + 1))

    return 2 * crossing(lower_gamma, probability, a + 20 * math.sqrt(degrees) + 20)


def spread_bound(draws: float, confidence: float) -> float:
    """By what factor the standard deviation may exceed that of a normal sample."""
    free = draws - 1
    return math.sqrt(free / chi_squared(1 - confidence, free))


def tail(x: np.ndarray) -> np.ndarray:
    """P(N(0, 1) > x) for x >= 0, to 0.6 %, and no less; 1 for others.

    P. O. Börjesson & C.-E. Sundberg, IEEE Trans. Commun. 27, 1979, eq. 13.
    """
    below_mean, x = x < 0, np.maximum(x, 0)
    root = np.sqrt(np.square(x) + 2 * math.pi)
    below = (1 - 1 / math.pi) * x + root / math.pi
    found = np.exp(-np.square(x) / 2) / (below * math.sqrt(2 * math.pi))
    return np.where(below_mean, 1.0, found)


def interval(count: int, total: int) -> tuple[float, float]:
    """The interval of 95 % of a binomial probability.

    C. J. Clopper & E. S. Pearson, Biometrika 26, 1934.
    """

    def at_least(p: float, least: int) -> float:
        """P(X >= least), which grows with p."""
        terms = range(least, total + 1)
        return sum(math.comb(total, i) * p**i * (1 - p) ** (total - i) for i in terms)

    low = crossing(lambda p: at_least(p, count), 0.025, 1) if count else 0.0
    if count == total:
        return low, 1.0
    return low, crossing(lambda p: at_least(p, count + 1), 0.975, 1)
