"""Measures the distance of two recorded values, and the distance that noise causes.

For each value v of the program, its difference from the recorded value r, and the
differences under noise,

    d = |v - r| / |r|,     e_k = |v_k - v| / |v|,    k = 1 .. draws,

Euclidean norms over the value, one number for each execution in a loop; of integers and
booleans the fraction that differs. v_k is the value under noise. A difference is beyond
noise if

    d > max(RATIO_LIMIT q(e, f), WORST_DRAW_FACTOR max(e, f))

q is the upper quartile over the draws: of one number, few draws tell the noise badly,
hence the wide limit. Rare jumps (a later rounding to a narrow format that goes the
other way) are in the largest alone. f is a floor: one element moved by an ulp, or of
integers one in a thousand. Two values *agree* only if a draw is as far: that they are
not beyond noise does not yet show that they are the same.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from prednet_jax.noise.questions.recording import Recorded

# An H200's values without a fault differed by at most 1.4 times the RMS over 8 draws
# (190 values of the recordings of tests/golden/h200 at the highest precision).
RATIO_LIMIT, WORST_DRAW_FACTOR = 5.0, 2.0
# The fraction of elements of a discrete value that any noise may flip.
FLIPS = 1e-3


class NoiseLevel(NamedTuple):
    """The effect of noise on a value, for each of its executions: arrays [executions].

    Attributes:
        bound: a larger difference is beyond noise; infinite if noise makes no such
            value.
        agreement: a smaller difference shows that two values are the same.
        expected: RMS of the difference over the draws.
    """

    bound: np.ndarray
    agreement: np.ndarray
    expected: np.ndarray


def noise_level(value: Recorded, drawn: Sequence[np.ndarray]) -> NoiseLevel:
    """Returns the effect of noise; `drawn` are the value's distances in each draw."""
    count = len(value.steps)
    if not drawn:
        # A value that noise never made (a part of a longer sum) is not judged.
        never = np.full(count, math.inf)
        return NoiseLevel(never, never, np.zeros(count))
    if is_discrete(value):
        floor = np.full(count, FLIPS / RATIO_LIMIT if value.size > 1 else 0.0)
    else:
        norm = np.where(value.norms > 0, value.norms, 1)
        floor = float(jax.numpy.finfo(value.dtype).eps) * value.largest / norm
    levels = np.maximum(drawn, floor)
    quartile = np.quantile(levels, 0.75, axis=0, method="lower")
    largest = levels.max(0)
    bound = np.maximum(RATIO_LIMIT * quartile, WORST_DRAW_FACTOR * largest)
    return NoiseLevel(bound, largest, np.sqrt(np.mean(np.square(drawn), 0)))


def distance(a: Recorded, b: Recorded) -> tuple[np.ndarray, np.ndarray]:
    """Returns the relative distance of two values, 0 where they have the same bits.

    Returns:
        Two arrays over the executions of `b`: the distance, 0 where `a` has no such
            execution, and which executions were compared.
    """
    known = {tuple(step): i for i, step in enumerate(a.steps.tolist())}
    theirs = np.array([known.get(tuple(step), -1) for step in b.steps.tolist()], int)
    rows = np.flatnonzero(theirs >= 0)
    mine = theirs[rows]
    distances, compared = np.zeros(len(b.steps)), np.zeros(len(b.steps), bool)
    compared[rows] = True
    if a.shape != b.shape:
        distances[rows] = math.inf
        return distances, compared
    x, y = b.values[rows], a.values[mine]
    discrete = is_discrete(a) and is_discrete(b)
    with np.errstate(all="ignore"):
        if discrete:
            far = np.sum(x != y, 1)
            if b.size > x.shape[1]:
                # A sketch holds sums. Where few differ, their number counts; else their
                # sum of squares, since whole numbers differ by 1 or more.
                many = np.minimum(np.sum(np.square(x - y), 1), b.size)
                far = np.where(far > x.shape[1] // 32, many, far)
            far = far / max(1, b.size)
        else:
            scale = np.maximum(b.norms[rows], a.norms[mine])
            far = np.sqrt(np.sum(np.square(x - y), 1)) / np.where(scale > 0, scale, 1)
    far = np.where(a.unbounded[mine] == b.unbounded[rows], far, math.inf)
    # Numbers that a sketch does not hold differ where their bits do. -0 is 0, and the
    # sign of NaN means nothing.
    kinds = b.unbounded[rows]
    hidden = (x != y).any(1) | (kinds & 1023 > 0) | (kinds >> 20 > 0) | discrete
    far = np.where(hidden, np.maximum(far, np.finfo(float).tiny), far)
    distances[rows] = np.where(a.hashes[mine] != b.hashes[rows], far, 0.0)
    return distances, compared


def is_discrete(value: Recorded) -> bool:
    """Returns whether a value holds integers, booleans or keys."""
    return not value.dtype.startswith(("float", "bfloat", "complex"))
