"""Exact bounds on a share of seeds (Clopper & Pearson 1934, Biometrika 26:404)."""

from prednet_jax import errors


def share_upper(count: int, n: int, *, alpha: float = 0.05) -> float:
    """Upper confidence bound, one-sided, of a share seen `count` times in `n`.

    The largest share q with P(at most `count` of n | q) >= alpha. With no success it is
    1 - alpha^(1/n): 0.26 at 10 seeds, 0.072 at 40, 0.050 at 59.

    Raises:
        UserError: no count of n, or alpha not in (0, 1).
    """
    from scipy import special

    _check(count, n, alpha)
    if count == n:
        return 1.0
    return float(special.betaincinv(count + 1, n - count, 1 - alpha))


def share_lower(count: int, n: int, *, alpha: float = 0.05) -> float:
    """Lower confidence bound, one-sided, of a share seen `count` times in `n`.

    Raises:
        UserError: no count of n, or alpha not in (0, 1).
    """
    return 1 - share_upper(n - count, n, alpha=alpha)


def share_seeds(bound: float, *, count: int = 0, alpha: float = 0.05) -> int:
    """Fewest seeds at which `count` successes bound the share below `bound`.

    Args:
        bound: in (0, 1); 0.1 needs 29 seeds without a success, 0.05 needs 59.
        count: successes, at least 0.
        alpha: level of the one-sided bound.

    Raises:
        UserError: a bound or level not in (0, 1), or a negative count.
    """
    errors.open_unit("bound", bound)
    errors.whole("count", count, 0)
    errors.open_unit("alpha", alpha)
    n = count + 1
    while share_upper(count, n, alpha=alpha) >= bound:
        n += 1
    return n


def _check(count: int, n: int, alpha: float) -> None:
    errors.whole("n", n, 1)
    errors.whole("count", count, 0, n)
    errors.open_unit("alpha", alpha)
