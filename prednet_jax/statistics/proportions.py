"""Bounds on a share of seeds, and on the difference of two shares of the same seeds.

The bounds of one share are exact (Clopper & Pearson 1934, Biometrika 26:404). For a
difference the bounds of both shares are combined like standard deviations, with the
correlation of two outcomes that exclude each other (Newcombe 1998, Statistics in
Medicine 17:2635, method 10, with exact bounds instead of Wilson's).
"""

import math

from prednet_jax import errors


def share_upper(count: int, n: int, *, alpha: float = 0.05) -> float:
    """One-sided upper confidence bound of a share observed `count` times in `n`.

    It is the largest share q with P(at most `count` of n | q) >= alpha. For count = 0
    it is 1 - alpha^(1/n): 0.26 for 10 seeds, 0.072 for 40, 0.050 for 59.

    Raises:
        UserError: count is not in 0..n, or alpha not in (0, 1).
    """
    from scipy import special

    _check(count, n, alpha)
    if count == n:
        return 1.0
    return float(special.betaincinv(count + 1, n - count, 1 - alpha))


def share_lower(count: int, n: int, *, alpha: float = 0.05) -> float:
    """One-sided lower confidence bound of a share observed `count` times in `n`.

    Raises:
        UserError: count is not in 0..n, or alpha not in (0, 1).
    """
    return 1 - share_upper(n - count, n, alpha=alpha)


def excess_upper(gained: int, lost: int, n: int, *, alpha: float = 0.05) -> float:
    """One-sided upper bound of the excess: share that gains minus share that loses.

    Args:
        gained: number of seeds that gain.
        lost: number of seeds that lose; no seed does both.
        n: number of all seeds.
        alpha: level of the bound.

    Raises:
        UserError: the counts do not fit n, or alpha is not in (0, 1).
    """
    _check(gained + lost, n, alpha)
    up = share_upper(gained, n, alpha=alpha) - gained / n
    down = lost / n - share_lower(lost, n, alpha=alpha)
    others = (n - gained) * (n - lost)
    correlation = -math.sqrt(gained * lost / others) if gained and lost else 0.0
    width = math.sqrt(up**2 - 2 * correlation * up * down + down**2)
    return min(1.0, (gained - lost) / n + width)


def excess_seeds(
    bound: float, *, gained: int = 0, lost: int = 0, alpha: float = 0.05
) -> int:
    """Fewest seeds with which the upper bound of the excess is below `bound`.

    Args:
        bound: in (0, 1). For 0.11, 26 seeds are needed if none gains or loses.
        gained: as in `excess_upper`.
        lost: as in `excess_upper`.
        alpha: level of the one-sided bound.

    Raises:
        UserError: bound or alpha is not in (0, 1), or a count is negative.
    """
    errors.open_unit("bound", bound)
    errors.whole("gained", gained, 0)
    errors.whole("lost", lost, 0)
    errors.open_unit("alpha", alpha)
    n = gained + lost + 1
    while excess_upper(gained, lost, n, alpha=alpha) >= bound:
        n += 1
    return n


def _check(count: int, n: int, alpha: float) -> None:
    errors.whole("n", n, 1)
    errors.whole("count", count, 0, n)
    errors.open_unit("alpha", alpha)
