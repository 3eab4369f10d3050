"""Quantiles of the normal and the chi-squared distribution, without SciPy."""

from __future__ import annotations

import math
from statistics import NormalDist


def two_sided(tail: float) -> float:
    """The size that a standard normal number exceeds with probability `tail`.

    Args:
        tail: in (0, 1), however small.
    """
    return -NormalDist().inv_cdf(tail / 2)


def chi_squared(probability: float, degrees: int) -> float:
    """The lower quantile of the chi-squared distribution.

    By bisection of P(a, x) = x^a e^-x / Gamma(a + 1) sum_k x^k / ((a+1) ... (a+k)),
    a = degrees / 2 (NIST Digital Library of Mathematical Functions, 8.11.4).

    Args:
        probability: in (0, 1).
        degrees: of freedom, 1 or more.
    """
    a = degrees / 2
    low, high = 0.0, degrees + 40 * math.sqrt(degrees) + 40
    for _ in range(100):
        middle = (low + high) / 2
        if _lower_gamma(a, middle / 2) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def spread_bound(draws: int, confidence: float) -> float:
    """How far above a sample's standard deviation the true one may be.

    Of normal numbers, sigma <= factor * s with the given confidence.

    Args:
        draws: size of the sample, 2 or more.
        confidence: in (0, 1).
    """
    free = draws - 1
    return math.sqrt(free / chi_squared(1 - confidence, free))


def _lower_gamma(a: float, x: float) -> float:
    """The regularised lower incomplete gamma function P(a, x)."""
    if x <= 0:
        return 0.0
    term = total = 1.0
    k = 0
    while term > 1e-17 * total:
        k += 1
        term *= x / (a + k)
        total += term
    return total * math.exp(a * math.log(x) - x - math.lgamma(a + 1))
