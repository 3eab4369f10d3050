"""Power of the equivalence test, and the number of seeds that it needs.

The differences are assumed to be normal. Up to seven seeds the power is measured on
20 000 simulated studies, each with all patterns of signs; the formula below is too
optimistic there.

From eight seeds on, two one-sided sign-flip tests have nearly the power of two
one-sided t tests (Lehmann & Romano, Testing Statistical Hypotheses, theorem 15.2.4).
With s^2 ~ sd^2 chi^2_{n-1} / (n - 1), true difference D, margin m and t the upper alpha
quantile of Student's t, that power is (Phillips 1990, J. Pharmacokinet. Biopharm.
18:137)

    E_s[ Phi((m - D) sqrt(n)/sd - t s/sd) - Phi(t s/sd - (m + D) sqrt(n)/sd) ]_+

where s runs over s < m sqrt(n)/t, for which the test can pass. Tests of this module
compare it with simulated studies.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special

from prednet_jax import errors

# Largest number of seeds for which the power is simulated; random seed and number of
# studies of the simulation.
_ENUMERATED, _SEED, _STUDIES = 7, 19870301, 20_000
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)
# Probability mass of s that the integral leaves out at each end.
_TAIL = 1e-13
# For more seeds Student's t is replaced by the normal distribution.
_LARGE = 10**6


def sign_flip_floor(alpha: float = 0.05, contrasts: int = 1) -> int:
    """Fewest seeds n with 2 / 2^n below alpha / contrasts, the level of Holm's step 1.

    Raises:
        UserError: alpha is not in (0, 1), or contrasts is below 1.
    """
    errors.open_unit("alpha", alpha)
    errors.whole("contrasts", contrasts, 1)
    return math.floor(math.log2(2 * contrasts / alpha)) + 1


def _studies(n: int) -> NDArray[np.float64]:
    """Standard normal differences of simulated studies, `[studies, n]`.

    The numbers are the same at every call, so that the power is monotonic in n and in
    the effect.
    """
    draws = np.random.default_rng(_SEED).normal(size=(_STUDIES, _ENUMERATED))
    return draws[:, :n]


def _tails(d: NDArray[np.float64]) -> NDArray[np.float64]:
    """`sign_flip.upper_tail` of every row at 0, `[studies]`."""
    sums = np.zeros((len(d), 1))
    for column in d.T:
        sums = np.concatenate([sums, sums + column[:, None]], axis=1)
    return np.mean(sums <= 0, axis=1)


def tost_power(
    n: int,
    *,
    margin: float,
    sd: float,
    true_difference: float = 0.0,
    alpha: float = 0.05,
) -> float:
    """Power of the paired equivalence test with n seeds.

    Args:
        n: number of seeds, >= 1.
        margin: equivalence margin in units of the loss, > 0.
        sd: standard deviation of the paired differences, in the same units, >= 0.
        true_difference: true mean of the differences.
        alpha: level of each one-sided test, in (0, 1).

    Returns:
        The power, in [0, 1]; 0 if 1 / 2^n is not below alpha.

    Raises:
        UserError: an argument is out of range.
    """
    errors.whole("n", n, 1)
    errors.open_unit("alpha", alpha)
    errors.positive("margin", margin)
    errors.not_negative("sd", sd)
    if 0.5**n >= alpha:
        return 0.0
    if sd == 0:
        return float(abs(true_difference) < margin)
    if n <= _ENUMERATED:
        d = sd * _studies(n) + true_difference
        return float(
            np.mean(np.maximum(_tails(d + margin), _tails(margin - d)) < alpha)
        )
    freedom = n - 1
    root = math.sqrt(n)
    t = special.stdtrit(freedom, 1 - alpha)
    low, high = np.sqrt(special.chdtri(freedom, [1 - _TAIL, _TAIL]) / freedom)
    high = min(high, margin * root / (t * sd))
    if high <= low:
        return 0.0
    s = low + (high - low) * (_NODES + 1) / 2  # s over sd
    room = special.ndtr((margin - true_difference) * root / sd - t * s)
    room = room - special.ndtr(t * s - (margin + true_difference) * root / sd)
    half = freedom / 2
    density = 2 * np.exp(
        half * np.log(half * s**2) - half * s**2 - special.gammaln(half) - np.log(s)
    )
    mass = density * _WEIGHTS * (high - low) / 2
    return float(np.clip(np.sum(mass * np.maximum(room, 0)), 0, 1))


def tost_seeds(
    *, margin: float, sd: float, power: float = 0.9, alpha: float = 0.05
) -> int:
    """Fewest seeds with which equal arms pass the equivalence test with this power.

    Raises:
        UserError: an argument is out of range.
    """
    errors.open_unit("power", power)
    errors.open_unit("alpha", alpha)
    errors.positive("margin", margin)
    reach = special.ndtri(1 - alpha) + special.ndtri((1 + power) / 2)
    return _fewest(
        lambda n: tost_power(n, margin=margin, sd=sd, alpha=alpha),
        power,
        (reach * sd / margin) ** 2,
    )


def _fewest(power_of: Callable[[int], float], wanted: float, normal: float) -> int:
    """Smallest n >= 2 with power_of(n) >= wanted; power_of must grow with n.

    `normal` is the answer for a known standard deviation, which is returned if it is
    large.
    """
    if normal > _LARGE:
        return math.ceil(normal)
    above = 2
    while power_of(above) < wanted:
        above *= 2
    below = above // 2
    while above - below > 1:
        middle = (above + below) // 2
        if power_of(middle) < wanted:
            below = middle
        else:
            above = middle
    return above
