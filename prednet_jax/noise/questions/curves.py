"""Tests whether two sets of recorded curves differ by more than their own scatter.

An exact permutation test of the log losses (R. A. Fisher, The Design of Experiments,
1935). With D_t the difference of the two means at update t, and s_t the root mean
square of the permuted values, the statistic is the largest of |D_t| / s_t over updates
and of |D| / s of the means over the whole curve and over its last fifth. Exchangeable
curves are relabelled in all ways; for curves that are paired by seed, the differences
change their signs. No relabelling changes s_t, and updates may be correlated.

Five against five curves have 252 relabellings and eight pairs 256 signs, of which two
are as extreme as the observed one: fewer curves cannot reach the level of .01.

The answer is `noise` only if a difference of the size of the margin would have been
found: if the 90 % interval of the difference in the last fifth lies inside the margin
(two one-sided tests of level .05, D. J. Schuirmann, J. Pharmacokinet. Biopharm. 15,
1987).
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from prednet_jax.noise import quantiles
from prednet_jax.noise.errors import NoiseError, flag, open_unit
from prednet_jax.noise.leaves import given_array, real_numbers
from prednet_jax.noise.questions.sampling import reporting, say

LEVEL = 0.01
# Level of the equivalence test, on each side.
EQUIVALENCE = 0.05
# Relabellings that are all tried; of more, so many are drawn.
EXACT = 20_000
# Updates whose statistics are computed at once, and weights that are held at once.
_UPDATES, _WEIGHTS = 256, 1 << 22
# Curves a side, or pairs, with which `noise` can be the answer.
LEAST, LEAST_PAIRS = 5, 8
_ONE_CURVE = (
    "one curve a side has no scatter to compare with: record five a side with other "
    "seeds, or eight pairs; or ask noise.training for the band of one"
)


class CurvesComparison(NamedTuple):
    """Whether two sets of curves differ by more than chance.

    Attributes:
        answer: `noise`, `beyond` or `cannot tell`.
        p_value: probability of so large a difference by chance. None if there is one
            curve a side, which allows no test.
        change: relative change of the loss in the last fifth, b against a.
        low: lower end of the 90 % interval of `change`. None if there is no test.
        high: upper end.
        detectable: smallest change that the test would find in 80 % of cases. None if
            the test can find none.
        note: what would allow an answer, if the answer is `cannot tell`.
    """

    answer: str
    p_value: float | None
    change: float
    low: float | None
    high: float | None
    detectable: float | None
    note: str = ""

    def __str__(self) -> str:
        p = "no test" if self.p_value is None else f"p {self.p_value:.2g}"
        lines = [f"{self.answer}: {p} (level {LEVEL})"]
        if self.low is not None and self.high is not None:
            lines.append(
                f"the loss of the last fifth changes by {self.change:+.2%} "
                f"[{self.low:+.2%}, {self.high:+.2%}]"
            )
        if self.detectable is not None:
            lines.append(
                f"a change of {self.detectable:.2%} would have been found in 80 % of "
                "cases"
            )
        return "\n".join(filter(None, [*lines, self.note]))


def curves(
    a: object, b: object, *, paired: bool = False, margin: float = 0.02
) -> CurvesComparison:
    """Compares two sets of recorded curves, without a program.

    Args:
        a: curves [n, T] of positive numbers, such as losses, one a training.
        b: others [m, T], at the same updates.
        paired: whether a[i] and b[i] share a seed, and so initial weights and data.
            Otherwise all curves are exchangeable, each with a seed of its own.
        margin: relative change of the loss in the last fifth that counts as none, fixed
            before the curves are seen.

    Returns:
        The comparison. With fewer than five curves against five, or eight pairs, it
            never answers `noise`.

    Raises:
        NoiseError: the sets have different lengths or no curve, the numbers are not
            positive and finite, or paired sets have different numbers of curves.

    Example:
        >>> import numpy as np
        >>> from prednet_jax import noise
        >>> rng = np.random.default_rng(0)
        >>> a = np.exp(rng.normal(0, 0.001, (8, 50)))
        >>> noise.curves(a, 1.5 * np.exp(rng.normal(0, 0.001, (8, 50)))).answer
        'beyond'
    """
    flag("paired", paired)
    open_unit("margin", margin)
    x, y = _checked_pair(a, b, paired)
    x, y = map(_with_means, (x, y))
    n, m = len(x), len(y)
    last = float(y[:, -1].mean() - x[:, -1].mean())
    if min(n, m) < 2 and (paired or n + m < 4):
        none = None, _change(last), None, None, None
        return CurvesComparison("cannot tell", *none, _ONE_CURVE)
    with reporting():
        statistics = _of_signs(y - x) if paired else _of_labels(x, y)
    p = float(np.mean(statistics >= statistics[0] * (1 - 1e-9)))
    deviation, error, free = _scatter(x[:, -1], y[:, -1], paired)
    reach = quantiles.student(EQUIVALENCE, free) * error
    low, high = _change(last - reach), _change(last + reach)
    detectable = None
    if 2 / len(statistics) < LEVEL:
        seen = quantiles.student(LEVEL / 2, free) + quantiles.student(0.2, free)
        detectable = _change(seen * error)
    enough = n >= LEAST_PAIRS if paired else min(n, m) >= LEAST
    answer, note = "cannot tell", ""
    if p < LEVEL:
        answer = "beyond"
    elif not enough:
        note = f"{n} against {m} curves are too few: record five a side, or eight pairs"
    elif -margin < low and high < margin:
        answer = "noise"
    else:
        need = max(min(n, m) + 1, _curves_needed(deviation, last, margin, paired))
        what = "pairs" if paired else "curves a side"
        note = f"if the change stays as it is, about {need} {what} decide"
    return CurvesComparison(answer, p, _change(last), low, high, detectable, note)


def _change(logarithm: float) -> float:
    """Returns the relative change of which this is the logarithm of 1 plus it."""
    with np.errstate(over="ignore"):
        return float(np.expm1(logarithm))


def _scatter(x: np.ndarray, y: np.ndarray, paired: bool) -> tuple[float, float, int]:
    """Returns the scatter of the curves' means over their last fifth.

    It consists of the standard deviation of one curve, or of a pair's difference, the
    standard error of the difference of the two sets, and the degrees of freedom.
    """
    n, m = len(x), len(y)
    if paired:
        deviation = float((y - x).std(ddof=1))
        return deviation, deviation / math.sqrt(n), n - 1
    squares = sum(float(z @ z) for z in (x - x.mean(), y - y.mean()))
    deviation = math.sqrt(squares / (n + m - 2))
    return deviation, deviation * math.sqrt(1 / n + 1 / m), n + m - 2


def _checked_pair(a: object, b: object, paired: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns the logarithms of two sets of curves, or raises an error."""
    x, y = (np.log(_checked(name, c)) for name, c in (("a", a), ("b", b)))
    if x.shape[1] != y.shape[1] or (paired and len(x) != len(y)):
        what = "as many curves, one pair a seed" if paired else "curves"
        raise NoiseError(
            f"a of shape {list(x.shape)} and b of shape {list(y.shape)}: expected "
            f"{what} of the same updates"
        )
    return x, y


def _checked(name: str, x: object) -> np.ndarray:
    """Returns curves as an array [n, T], or raises an error."""
    array = real_numbers(given_array(x, name, "curves of one length, [n, T]"), name)
    array = array[None] if array.ndim == 1 else array
    if array.ndim != 2 or not array.size:
        raise NoiseError(
            f"{name} of shape {list(array.shape)}: expected curves [n, T], one or more "
            "of one or more updates"
        )
    wrong = np.argwhere(~np.isfinite(array) | (array <= 0))
    if len(wrong):
        i, t = wrong[0].tolist()
        raise NoiseError(
            f"{name}[{i}] is {array[i, t]:g} at update {t}: expected positive, finite "
            "numbers; compare the updates before it, and ask noise.first_nan where a "
            "NaN comes from"
        )
    return array


def _with_means(logs: np.ndarray) -> np.ndarray:
    """Returns curves and two more columns, the means of all and of the last updates."""
    last = -(-logs.shape[1] // 5)
    return np.column_stack([logs, logs.mean(1), logs[:, -last:].mean(1)])


def _largest(
    relabellings: Iterable[np.ndarray], values: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """Returns the statistic of each relabelling.

    Args:
        relabellings: blocks of the weights that the curves have in the difference of
            means, [relabellings, n].
        values: the curves or their differences [n, T].
        scale: the root mean square of the permuted values [T].
    """
    varying = scale > 1e-12  # Means of equal numbers are equal up to rounding.
    scaled = values[:, varying] / scale[varying]
    statistics, count = [], 0
    for weights in relabellings:
        largest = np.zeros(len(weights))
        # A few updates at once, since there may be many relabellings and updates.
        for start in range(0, scaled.shape[1], _UPDATES):
            means = weights @ scaled[:, start : start + _UPDATES]
            np.maximum(largest, np.max(np.abs(means), 1), out=largest)
        statistics.append(largest)
        count += len(weights)
        say(f"{count} of {EXACT} relabellings")
    return np.concatenate(statistics)


def _drawn(
    observed: np.ndarray, draw: Callable[[np.random.Generator], np.ndarray]
) -> Iterator[np.ndarray]:
    """Yields `EXACT` rows of weights in blocks: `observed`, and what `draw` draws."""
    random, rows = np.random.default_rng(0), max(1, _WEIGHTS // len(observed))
    weights = itertools.chain([observed], (draw(random) for _ in range(EXACT - 1)))
    while block := list(itertools.islice(weights, rows)):
        yield np.stack(block)


def _of_signs(differences: np.ndarray) -> np.ndarray:
    """Returns the statistic for all signs of paired differences, the observed first."""
    n = len(differences)
    relabellings: Iterable[np.ndarray]
    if 2**n <= EXACT:
        relabellings = [np.array(list(itertools.product([1, -1], repeat=n))) / n]
    else:
        signs = np.array([1, -1]) / n
        relabellings = _drawn(np.full(n, 1 / n), lambda random: random.choice(signs, n))
    scale = np.sqrt(np.mean(np.square(differences), 0))
    return _largest(relabellings, differences, scale)


def _of_labels(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns the statistic for all labels of the curves, the observed ones first."""
    every, n, m = np.concatenate([x, y]), len(x), len(y)
    observed = np.repeat([1 / n, -1 / m], [n, m])
    relabellings: Iterable[np.ndarray]
    if math.comb(n + m, n) <= EXACT:
        chosen = np.array(list(itertools.combinations(range(n + m), n)))
        weights = np.full((len(chosen), n + m), -1 / m)
        np.put_along_axis(weights, chosen, 1 / n, 1)
        relabellings = [weights]
    else:
        relabellings = _drawn(observed, lambda random: random.permutation(observed))
    return _largest(relabellings, every - every.mean(0), every.std(0))


def _curves_needed(deviation: float, change: float, margin: float, paired: bool) -> int:
    """Returns how many pairs, or curves a side, decide about a change of the logs.

    They show either that it lies within the margin, or that it is not chance.
    """
    room, change = math.log1p(margin) - abs(change), abs(change)
    within = quantiles.two_sided(2 * EQUIVALENCE) / max(room, 1e-12)
    beyond = quantiles.two_sided(LEVEL) + quantiles.two_sided(0.4)
    size = deviation * min(within, beyond / max(change, 1e-12))
    least = LEAST_PAIRS if paired else LEAST
    return max(least, math.ceil((1 if paired else 2) * size**2))
