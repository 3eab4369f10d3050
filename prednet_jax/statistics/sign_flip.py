"""The exact sign-flip test: p-values, intervals and equivalence from one function.

If treatment and control are exchangeable, the differences d of n seeds are symmetric
about their centre mu. Then all patterns of signs s in {-1, 1}^n of d - mu are equally
likely (Fisher 1935, The Design of Experiments, section 21), and

    upper_tail(d, mu) = #{s : sum s_i (d_i - mu) >= sum (d_i - mu)} / 2^n
                      = #{subsets A : sum over A of (d_i - mu) <= 0} / 2^n

is a p-value for "the centre is at most mu". A is the set of flipped seeds; the empty
set is the observed pattern, so no p-value is below 1 / 2^n. The interval is the set of
mu that the two-sided test does not reject; its ends are order statistics of the means
of the subsets (Hartigan 1969, J. Am. Stat. Assoc. 64:1303). Equivalence is two
one-sided tests (Schuirmann 1987, J. Pharmacokinet. Biopharm. 15:657). Rates of error
are in study/pages/rule.md.

Counting takes 2^(n/2) steps: the sums of the subsets of each half of the seeds are
sorted, and pairs of small total are counted (Horowitz & Sahni 1974, J. ACM 21:277).
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

#: Up to this number of seeds all 2^n patterns are counted. With more, differences are
#: rounded to a grid of `_GRID` steps, and rounded so that p is never too small.
EXACT_LIMIT = 42
_GRID = 2**18
_EPS = float(np.finfo(np.float64).eps)

Floats = NDArray[np.float64]


def two_sided(d: Floats) -> float:
    """Returns the p-value of "the centre is 0" in (0, 1], for differences `[n]`."""
    return min(1.0, 2 * upper_tail(d if d.sum() > 0 else -d, 0.0))


def equivalence(d: Floats, low: float, high: float) -> float:
    """Returns the p-value of "the centre is not between low and high"."""
    return max(upper_tail(d, low), upper_tail(-d, -high))


def interval(d: Floats, confidence: float) -> tuple[float, float]:
    """Returns the centres that the two-sided test does not reject.

    The differences are `[n]`. The ends are infinite if 2 / 2^n is not below 1 -
    confidence, since then no centre can be rejected.
    """
    level = (1 - confidence) / 2
    ends = _lower_end(d, level), -_lower_end(-d, level)
    # The search ends that close; an end at exactly 0 is common where values are whole.
    close = 2e-9 * float(np.abs(d).max())
    low, high = (0.0 if abs(end) <= close else end for end in ends)
    return low, high


def upper_tail(d: Floats, mu: float) -> float:
    """Returns the p-value, in (0, 1], of "the centre is at most mu"."""
    x = d - mu
    if x.size > EXACT_LIMIT:
        return _on_grid(x)
    # A subset whose exact sum is 0 may differ from it by the rounding of n additions
    # and of the subtraction.
    tie = _EPS * x.size * (float(np.abs(x).sum()) + abs(mu))
    first_half, second_half = (_sorted_subset_sums(half) for half in (x[::2], x[1::2]))
    count = np.searchsorted(second_half, tie - first_half[::-1], side="right").sum()
    return int(count) / 2**x.size


def _sorted_subset_sums(x: Floats) -> Floats:
    sums = np.zeros(1)
    for value in x:
        # Two sorted halves, which a stable sort merges in linear time.
        sums = np.sort(np.concatenate([sums, sums + value]), kind="stable")
    return sums


def _on_grid(x: Floats) -> float:
    """Computes `upper_tail` by adding seed after seed to the sum's distribution."""
    scale = float(np.abs(x).sum())
    if scale == 0:
        return 1.0
    steps = np.rint(x / scale * _GRID).astype(np.int64)
    lowest = int(steps[steps < 0].sum())
    mass = np.zeros(int(np.abs(steps).sum()) + 1)
    mass[-lowest] = 1.0  # the empty subset: the sum 0
    for step in steps[steps != 0]:
        mass /= 2
        if step > 0:
            mass[step:] += mass[:-step].copy()
        else:
            mass[:step] += mass[-step:].copy()
    # The rounding of a difference moved a sum by at most half a step.
    reach = -lowest + math.ceil(x.size / 2)
    return float(max(mass[: reach + 1].sum(), 0.5**x.size))


def _lower_end(d: Floats, level: float) -> float:
    """Returns the smallest mu with upper_tail(d, mu) >= level; -inf if every mu has."""
    if 0.5**d.size >= level:
        return -math.inf
    # Below the smallest difference only the empty set is counted. At the mean at least
    # half of all subsets are, since a subset and its complement add up to 0.
    low, high = float(d.min()), float(d.mean())
    span = high - low
    if span <= 4 * _EPS * max(abs(low), abs(high)):
        return high
    low -= 1e-9 * span

    @functools.cache
    def above(mu: float) -> float:
        # The normal quantile of the tail is nearly a straight line in mu.
        tail = upper_tail(d, mu)
        beyond = float(special.ndtri(min(tail, 1 - 1e-9)) - special.ndtri(level))
        return beyond + (-1e-12 if tail < level else 1e-12)

    if above(low) > 0:  # differences closer together than `upper_tail` tells apart
        return low

    # A t interval is a good first guess, which halves the work.
    reach = special.stdtrit(d.size - 1, 1 - level) * d.std(ddof=1) / math.sqrt(d.size)
    for guess in (high - 1.3 * reach, high - 0.8 * reach):
        if low < guess < high:
            if above(guess) < 0:
                low = guess
            else:
                high = guess
                break
    return float(optimize.brentq(above, low, high, xtol=1e-9 * span, rtol=4 * _EPS))
