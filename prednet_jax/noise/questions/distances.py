"""Measures the distance of two recorded values, and the distance that noise causes.

For each value v of the program, its difference d from the recorded value r, and the
differences e_k under noise, k = 1 .. draws, three sizes are compared:

    |d| / |r|      Euclidean norms over the value, one number for each execution in a
                   loop; of integers and booleans the fraction that differs. If |v| is
                   larger than |r|, it takes its place
    |<d, u>| / |r| the part that all elements have in common, a factor (u along v) or a
                   shift (u constant), of which noise of many elements has little
    |d_i|          of each element, against the largest e_ki of similar elements
                   (`elements`)

Of the first two, a difference is beyond noise if

    x > max(RATIO_LIMIT q(e, f), WORST_DRAW_FACTOR max(e, f))

q is the upper quartile over the draws: of one number, few draws tell the noise badly,
hence the wide limit. Rare jumps (a later rounding to a narrow format that goes the
other way) are in the largest alone. f is a floor: one element moved by an ulp, or of
integers one in a thousand; and a common part smaller than `COMMON` times the RMS of
the noise is what another implementation of a function may make in all elements. Two
values *agree* only if a draw is as far, or `COMMON` times the RMS of the draws: that
they are not beyond noise does not yet show that they are the same.
"""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from prednet_jax.noise.questions.elements import ElementNoise, unresolved
from prednet_jax.noise.questions.recording import WHOLE, Recorded

# An H200's values without a fault differed by at most 1.4 times the RMS over 8 draws
# (190 values of the recordings of tests/golden/h200 at the highest precision).
RATIO_LIMIT, WORST_DRAW_FACTOR = 5.0, 2.0
# The least common part of a difference, and up to where values of many elements agree,
# in units of the RMS of the noise.
COMMON = 1.5
# The largest difference of an element, in units of the largest of similar elements.
ELEMENT_LIMIT = 3.0
# The fraction of elements of a discrete value that any noise may flip.
FLIPS = 1e-3


class Judged(NamedTuple):
    """A value's difference from another, in each of its executions: arrays [n].

    Attributes:
        over: the difference over the largest one that is within noise.
        agrees: whether a draw of the noise, or `COMMON` times their RMS, is as far.
        note: how the difference was found, if it is not large in the whole value.
    """

    over: np.ndarray
    agrees: np.ndarray
    note: str


class NoiseEffect:
    """The effect of noise on one value, in each of its n executions."""

    def __init__(
        self,
        values: np.ndarray,
        epsilon: float,
        norms: Any = None,
        largest: Any = None,
        sample: np.ndarray | None = None,
        others: np.ndarray | None = None,
        size: int = 0,
    ) -> None:
        """Prepares for runs under noise.

        Args:
            values: [n, m], the elements without noise, or sums of them.
            epsilon: distance from 1 to the next number of the type; 0 if it is not a
                floating-point type.
            norms: Euclidean norms [n]. Defaults to the norms of `values`.
            largest: the largest magnitudes [n]. Defaults to the ones of `values`.
            sample: [n, k], some elements, if `values` are sums with random signs.
            others: of complex numbers, the other part of each element.
            size: number of elements, if the other program rounds what these come from
                to the type, and this one does not. Defaults to 0: it does not.
        """
        if norms is None:
            norms = np.linalg.norm(values, axis=1)
            largest = np.abs(values).max(1, initial=0)
        self._values, self._norms = values, np.where(norms > 0, norms, 1)
        self._sketched = sample is not None
        apart = [values]
        if sample is not None:
            # Sums of many elements have errors of the size of the whole value.
            apart = [np.broadcast_to(norms[:, None], values.shape), sample]
        parts = zip(apart, [None, others][-len(apart) :], strict=True)
        least = (norms / math.sqrt(size))[:, None] if size else 0.0
        self._elements = [
            ElementNoise(x, epsilon, y, least) for x, y in parts if epsilon
        ]
        self._ends = np.cumsum([x.shape[1] for x in apart])[:-1]
        floor = FLIPS / RATIO_LIMIT * (values.shape[1] > 1)
        self._floor = epsilon * largest / self._norms if epsilon else floor
        self._drawn: list[np.ndarray] = []

    def see(
        self,
        relative: np.ndarray,
        away: np.ndarray,
        compared: bool | np.ndarray = True,
    ) -> None:
        """Adds a run under noise: its relative distances [n], differences [n, m + k].

        `compared` are the executions that the run has: a loop may end earlier.
        """
        drawn = np.stack([relative, *self._common(relative, away)])
        self._drawn.append(np.where(compared, drawn, np.nan))
        for noise, part in zip(self._elements, self._apart(away), strict=False):
            noise.see(part)

    @property
    def expected(self) -> np.ndarray:
        """Returns the RMS of the relative distance over the draws, [n]."""
        squares = np.square([relative for relative, *_ in self._drawn])
        runs = np.maximum(np.sum(~np.isnan(squares), 0), 1)
        none = np.zeros(len(self._values))
        return np.sqrt(np.nansum(squares, 0) / runs) if self._drawn else none

    def judge(
        self, relative: np.ndarray, away: np.ndarray, flipped: bool = False
    ) -> Judged:
        """Compares a difference with the ones under noise.

        Args:
            relative: its relative distances [n].
            away: its elements [n, m + k].
            flipped: whether a decision before it differs, which moves elements far.
        """
        if not self._drawn:
            # A value that noise never made (a part of a longer sum) is not judged.
            never = "not judged: noise makes no such value"
            return Judged(np.zeros(len(away)), np.ones(len(away), bool), never)
        drawn = np.array(self._drawn)
        # Executions that no noisy run has, since its loop ended, are not judged.
        unseen = np.isnan(drawn[:, 0]).all(0)
        drawn[..., unseen] = 0
        floors = np.zeros(drawn.shape[1:])
        floors[0] = self._floor
        floors[1:] = COMMON / RATIO_LIMIT * np.maximum(self.expected, self._floor)
        levels = np.maximum(drawn, floors)
        ordered, runs = np.sort(levels, 0), np.sum(~np.isnan(levels), 0)  # NaN is last.
        lower = (0.75 * (runs - 1)).astype(int)
        quartile = np.take_along_axis(ordered, lower[None], 0)[0]
        largest = np.nanmax(levels, 0)
        bounds = np.maximum(RATIO_LIMIT * quartile, WORST_DRAW_FACTOR * largest)
        distances = np.stack([relative, *self._common(relative, away)])
        distances[np.isinf(bounds)] = 0  # Noise alone makes an infinity, or a NaN.
        over = np.divide(
            distances, bounds, out=np.where(distances > 0, np.inf, 0), where=bounds > 0
        )
        over[:, unseen] = 0
        # Noise of many elements has nearly the same norm in all draws.
        limit = np.maximum(largest[0], COMMON * self.expected)
        note, agrees = "", (relative <= limit) | unseen
        if not self._elements or flipped:
            return Judged(over[0], agrees, note)
        parts = list(zip(self._elements, self._apart(away), strict=True))
        raw = [noise.ratios(x, ELEMENT_LIMIT) for noise, x in parts]
        pairs = zip(raw, parts, strict=True)
        ratios = np.concatenate([_resolved(r, *part) for r, part in pairs], axis=1)
        ratios = np.where(unseen[:, None], 0, ratios)
        count = np.count_nonzero(ratios > 1)
        if not count:  # What noise did not move has the steps of its type as limits.
            moved = np.where((self.expected > 0)[:, None], raw[-1], 0)
            note = unresolved(moved, parts[-1][1])
        if not (over[0] > 1).any():
            for kind, x in zip(("factor", "shift"), over[1:], strict=False):
                note = f"all elements by a common {kind}" if (x > 1).any() else note
            if count:
                note = f"{count} of {ratios.size} numbers"
        over = np.max([*over, ratios.max(1, initial=0)], axis=0)
        return Judged(over, agrees & (over <= 1), note)

    def _common(self, relative: np.ndarray, away: np.ndarray) -> list[np.ndarray]:
        """Returns the relative size of what all elements have in common, [n] each."""
        away = self._apart(away)[0]
        lengths = np.linalg.norm(away, axis=1)
        # The whole may be divided by the other value's norm, and so are its parts.
        valid = (lengths > 0) & np.isfinite(relative)
        scale = np.divide(relative, lengths, out=np.zeros_like(lengths), where=valid)
        parts = [np.sum(away * self._values, 1) / self._norms]
        if not self._sketched:
            parts.append(away.sum(1) / math.sqrt(max(1, away.shape[1])))
        return [np.abs(part) * scale for part in parts]

    def _apart(self, away: np.ndarray) -> list[np.ndarray]:
        """Returns the differences of the values, and those of the sample, if any."""
        return np.split(away, self._ends, axis=1)


def _resolved(ratios: np.ndarray, noise: ElementNoise, away: np.ndarray) -> np.ndarray:
    """Returns ratios, also where the noise is not known (NaN in `ratios`)."""
    # An element without noise of its own may differ like the noisiest of the value.
    widest = max(np.max(noise.limits(), initial=0), np.finfo(float).tiny)
    with np.errstate(over="ignore"):
        unknown = np.abs(away) / widest / ELEMENT_LIMIT
    return np.where(np.isnan(ratios), unknown, ratios)


class Distance(NamedTuple):
    """The distance of a value from another, in each execution of the second.

    Attributes:
        relative: [n], 0 for equal bits, and where the first has no such execution.
        compared: bool [n], which executions were compared.
        away: [n, m + k], the differences of the values and of the sample; 0 if one of
            the values has another sample, or none.
    """

    relative: np.ndarray
    compared: np.ndarray
    away: np.ndarray


def effect_of_noise(value: Recorded, rounded: bool = False) -> NoiseEffect:
    """Returns the effect of noise on a value, before any run under noise.

    `rounded` is whether the other program alone rounds what it comes from to its type.
    """
    epsilon = 0.0 if is_discrete(value) else float(jax.numpy.finfo(value.dtype).eps)
    facts = value.values, epsilon, value.norms, value.largest
    sample = value.sample if value.size > WHOLE else None
    return NoiseEffect(*facts, sample, value.others, rounded * value.size)


def distance(a: Recorded, b: Recorded) -> Distance:
    """Returns the distance of `a` from `b`, in each execution of `b`."""
    index = {tuple(step): i for i, step in enumerate(a.steps.tolist())}
    theirs = np.array([index.get(tuple(step), -1) for step in b.steps.tolist()], int)
    rows = np.flatnonzero(theirs >= 0)
    mine = theirs[rows]
    distances, compared = np.zeros(len(b.steps)), np.zeros(len(b.steps), bool)
    sums = b.values.shape[1]
    away = np.zeros((len(b.steps), sums + b.sample.shape[1]))
    compared[rows] = True
    if a.shape != b.shape:
        distances[rows] = math.inf
        return Distance(distances, compared, away)
    x, y = b.values[rows], a.values[mine]
    discrete = is_discrete(a) and is_discrete(b)
    with np.errstate(all="ignore"):
        if discrete:
            ratio = np.sum(x != y, 1)
            if b.size > x.shape[1]:
                # A sketch holds sums. Where few differ, their number counts; else their
                # sum of squares, since whole numbers differ by 1 or more.
                many = np.minimum(np.sum(np.square(x - y), 1), b.size)
                ratio = np.where(ratio > x.shape[1] // 32, many, ratio)
            ratio = ratio / max(1, b.size)
        else:
            scale = np.maximum(b.norms[rows], a.norms[mine])
            ratio = np.sqrt(np.sum(np.square(x - y), 1)) / np.where(scale > 0, scale, 1)
    ratio = np.where(a.unbounded[mine] == b.unbounded[rows], ratio, math.inf)
    # Numbers that a sketch does not hold differ where their bits do. -0 is 0, and the
    # sign of NaN means nothing. A large argument may differ in one element by little.
    kinds, sketched = b.unbounded[rows], b.size > b.values.shape[1]
    argument = sketched and b.primitive == "argument"
    hidden = (x != y).any(1) | (kinds & 1023 > 0) | (kinds >> 20 > 0)
    hidden |= discrete | (argument & (b.norms[rows] > 0))
    ratio = np.where(hidden, np.maximum(ratio, np.finfo(float).tiny), ratio)
    differs = a.hashes[mine] != b.hashes[rows]
    distances[rows] = np.where(differs, ratio, 0.0)
    away[rows, :sums] = np.where(differs[:, None], y - x, 0)
    if a.sample.shape[1] == b.sample.shape[1]:
        sampled = a.sample[mine] - b.sample[rows]
        away[rows, sums:] = np.where(differs[:, None], sampled, 0)
    return Distance(distances, compared, away)


def is_discrete(value: Recorded) -> bool:
    """Returns whether a value holds integers, booleans or keys."""
    return not value.dtype.startswith(("float", "bfloat", "complex"))
