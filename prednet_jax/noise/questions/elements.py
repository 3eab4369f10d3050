"""Estimates the noise of each element of a leaf, pooled over similar elements.

A leaf often has elements of very different noise: the gradient of one feature may be a
thousand times smaller than the gradient of another. A difference is therefore judged by
the largest deviation that noise made in elements of the same decade of noise (RMS over
the runs) and of the next, never by the largest of the whole leaf. It is also compared
with the noise of each element itself (`own_ratios`).
"""

import math
from typing import NamedTuple

import numpy as np

from prednet_jax.noise import compat
from prednet_jax.noise.actions import has_floats
from prednet_jax.noise.plan import Step
from prednet_jax.noise.questions.sampling import BoundCall
from prednet_jax.noise.tables import joined
from prednet_jax.noise.types import Atom

# Elements that noise never moved may differ by so many units in the last place.
_QUIET = 1.0
# Primitives that decide something of floats although their results are floats.
STEPS = frozenset({"floor", "ceil", "round", "sign", "select_and_scatter_add"})
# Primitives whose results are exact if they are given whole numbers.
_COUNTS = frozenset({"convert_element_type", "add", "sub"})
# If decisions may flip, or elements are judged by their own noise, a share of the
# elements of a decade has to be outside. A jump that none of 8 runs showed is seen in
# fewer: q (1 - q)^8 < 1 / 20 for every chance q.
_SHARE = 0.05
# The smallest normal float32 and bfloat16: a GPU may have zeros for smaller numbers.
_NORMAL = 2.0**-126
# The least number of elements that `own_ratios` judges; how many of them are several;
# and the largest quotient within noise, of several elements and of fewer. The values of
# an H200 without a fault have 2.7 at most. A convolution has 8.0 in six of 1024
# elements, since its short sums have fewer orders in the noise than on the card
# (python -m tests.accuracy.small_parts h200).
_LEAST, _SEVERAL, _OWN_LIMIT, _FEWER_LIMIT = 8, 3, 5.0, 15.0
# Differences of so much of the largest within noise are mentioned: H200s have .54.
_NEAR = 0.6


def decides(step: Step) -> bool:
    """Returns whether a step takes a discrete decision about floating-point numbers."""
    atoms = step.equation.invars, step.equation.outvars
    floats_in, floats_out = ([has_floats([a.aval]) for a in group] for group in atoms)
    discrete = not all(floats_out) and step.name != "is_finite" and not step.bodies
    return any(floats_in) and (discrete or step.name in STEPS or step.name == "sort")


def takes_decisions(call: BoundCall) -> bool:
    """Returns whether a function takes discrete decisions about its numbers.

    Noise cannot flip a comparison of counts, such as the one in `jnp.var`, a search for
    NaN or infinity, as in a softplus, or what nothing reads, such as the sign in a
    logsumexp.
    """
    counts: set[Atom] = set()
    for step in call.equations():
        used = any(id(x) not in call.unread for x in step.equation.outvars)
        inputs = [x for x in step.equation.invars if not compat.is_literal(x)]
        counted = all(x in counts or not has_floats([x.aval]) for x in inputs)
        if counted and step.name in _COUNTS:
            counts.update(step.equation.outvars)
        elif used and decides(step) and not (counted or _finds_infinity(step)):
            return True
    return False


def _finds_infinity(step: Step) -> bool:
    """Returns whether a step compares a number with infinity, or NaN with itself."""
    inputs = step.equation.invars
    same = len(inputs) == 2 and inputs[0] is inputs[1]
    return same or any(compat.is_literal(x) and np.isinf(x.val).all() for x in inputs)


class Outside(NamedTuple):
    """Elements of a leaf that differ by more than noise, or are not resolved.

    Attributes:
        number: how many differ by more than noise.
        unresolved: the remark that the function `unresolved` makes about the others.
    """

    number: int
    unresolved: str


def unresolved(ratios: np.ndarray, difference: np.ndarray) -> str:
    """Returns a remark about elements of which noise does not tell if they are right.

    `ratios` are those of `ElementNoise.ratios`. The remark is "" if there are none.
    Where others are beyond noise, those near the limit are not mentioned.
    """
    zeros = np.count_nonzero(np.isnan(ratios) & (difference != 0))
    near = np.count_nonzero(ratios > _NEAR) * (not np.any(ratios > 1))
    return joined(
        f"elements that are zero in all runs, not resolved: {zeros}" if zeros else "",
        f"elements close to the limit, not resolved: {near} of {ratios.size}"
        if near
        else "",
    )


class ElementNoise:
    """Deviations of the elements of one leaf, over runs under noise.

    Attributes:
        runs: number of runs.
        broken: bool, shape of the leaf: elements that a run made NaN or infinite, or
            finite where they are not without noise.
    """

    def __init__(
        self,
        clean: np.ndarray,
        epsilon: float,
        others: np.ndarray | None = None,
        least: np.ndarray | float = 0.0,
    ) -> None:
        """Prepares for runs.

        Args:
            clean: the leaf without noise.
            epsilon: distance from 1 to the next number of the type; 0 if it is not a
                floating-point type.
            others: of parts of complex numbers, the other parts. A part smaller than a
                rounding of its number is what roundings left, and may differ by one.
            least: smaller elements are rounded like elements of this size.
        """
        self.runs = 0
        self._inexact = epsilon > 0
        self.broken = np.zeros(clean.shape, bool)
        self._finite = np.isfinite(clean)
        self._size = np.abs(np.where(self._finite, clean, 0))
        self._steps = _QUIET * epsilon * np.maximum(self._size, least)
        # A part far below this is no rest, but such as the one of f(x + 1e-20i).
        rest = 0 * self._steps if others is None else epsilon * np.abs(others)
        is_rest = (self._size == 0) | (self._size >= epsilon * rest)
        self._rests = np.where((self._size <= rest) & is_rest, rest, 0)
        self._roots = np.zeros(clean.shape)
        self._largest = np.zeros(clean.shape)

    def see(self, deviation: np.ndarray) -> None:
        """Adds the deviation of one run from the result without noise."""
        size = np.abs(deviation)
        self.see_sums(1, size, size)

    def see_sums(self, runs: int, roots: np.ndarray, largest: np.ndarray) -> None:
        """Adds runs: the roots of the sums of squared deviations, and the largest."""
        self.runs += runs
        finite = np.isfinite(roots) & np.isfinite(largest)
        self.broken |= ~finite
        self._roots = np.hypot(self._roots, np.where(finite, roots, 0))
        self._largest = np.maximum(self._largest, np.where(finite, largest, 0))

    @property
    def _grid(self) -> np.ndarray:
        """Returns how far an element that does not move may differ."""
        known = (self._size > 0) | (self._roots > 0)
        return np.maximum(self._steps, np.where(known, self._rests, 0))

    def limits(self) -> np.ndarray:
        """Returns for each element the largest deviation among similar elements.

        Elements without any noise have the distance to the next number of their type.
        """
        return np.maximum(self._pooled(self._largest), self._grid)

    def within_effect(
        self, difference: np.ndarray, effect: np.ndarray, factor: float
    ) -> bool:
        """Returns whether each element differs by no more than a format's effect.

        Args:
            difference: the difference, with the shape of the leaf.
            effect: the format's effect on each element. Similar elements share the
                largest of their effects.
            factor: how many times that an element may differ.
        """
        allowed = self._pooled(np.abs(effect)) + self.limits()
        return not np.any(np.abs(difference) > factor * allowed)

    def _pooled(self, values: np.ndarray) -> np.ndarray:
        """Returns for each element the largest value among similar elements.

        These have noise of the same decade or the next, since a few runs may show too
        little of one element. Elements that never moved are like the moved ones of
        about their size, and otherwise like each other.
        """
        values = np.where(np.isfinite(values), values, 0)
        level = self._roots / math.sqrt(max(self.runs, 1))
        moved = level > 0
        pooled = np.where(moved, 0, np.max(values[~moved], initial=0))
        decade = _bins(level, 10)
        largest = _largest(decade[moved], values[moved])
        pooled[moved] = np.maximum(largest, _shifted(largest, -1))[decade[moved]]
        size = _bins(self._size, 2)
        largest = _largest(size, np.where(moved, values, 0))
        near = np.maximum(largest, _shifted(largest, -1))
        near = np.maximum(near, _shifted(largest, 1))[size]
        unmoved = ~moved & (self._size > 0)
        pooled[unmoved] = np.maximum(pooled, near)[unmoved]
        return pooled

    def outside(self, difference: np.ndarray, margin: float, flips: bool) -> Outside:
        """Returns how many elements differ by more than noise, or are not resolved.

        Args:
            difference: finite, of the shape of the leaf.
            margin: how many times the limit of an element it may reach.
            flips: whether the function takes decisions. Then elements of a decade
                count only if more than a few of them are outside.
        """
        ratios = self.ratios(difference, margin)
        unknown = np.isnan(ratios)
        decades = np.where(self._roots > 0, 1 + _bins(self._roots, 10), 0)
        counts, resolved = (
            np.bincount(decades[x].ravel()) for x in (ratios > 1, ~unknown)
        )
        if flips:
            # One of several is a few, also in a decade of few elements.
            few = np.maximum(_SHARE * resolved, min(1, int(_SHARE * resolved.sum())))
            counts[counts <= few[: counts.size]] = 0
        return Outside(int(counts.sum()), unresolved(ratios, difference))

    def own(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns each element's own noise, and how far its farthest run was.

        The noise is the RMS over the runs, at least `_grid`; infinite for elements that
        never moved, which say nothing about their noise. The distance is in units of
        the noise of the other runs, at least 1.
        """
        moved = self._roots > 0
        share = np.square(self._largest / np.where(moved, self._roots, 1))
        others = np.maximum(1 - share, 0) / max(self.runs - 1, 1)
        of_others = self._roots * np.sqrt(others)
        farthest = np.full(moved.shape, np.inf)
        of_others = np.maximum(of_others, self._grid)
        np.divide(self._largest, of_others, where=moved & (of_others > 0), out=farthest)
        level = self._roots / math.sqrt(max(self.runs, 1))
        noise = np.where(moved, np.maximum(level, self._grid), np.inf)
        return noise, np.maximum(farthest, 1)

    def ratios(self, difference: np.ndarray, margin: float) -> np.ndarray:
        """Returns for each element its difference over the largest one within noise.

        This is `margin` times the element's limit, or less if many elements differ by
        more than their own noise (`own_ratios`). NaN stands for elements whose noise is
        not known: they are zero in all runs. If a share of all elements is zero in all
        runs, and here larger than a rounding of the largest element, these have
        infinity.
        """
        size, limits = np.abs(difference), margin * self.limits()
        unlimited = np.where(size > 0, np.nan if self._inexact else np.inf, 0.0)
        ratios = np.divide(size, limits, out=unlimited, where=limits > 0)
        # A smaller number may be the rounding error of a difference that is zero here.
        least = max(_NORMAL, np.max(self._grid, initial=0))
        jumps = np.isnan(ratios) & (size > least)
        if np.count_nonzero(jumps) >= max(_SEVERAL, _SHARE * size.size):
            ratios[jumps] = np.inf
        return np.maximum(ratios, own_ratios(size, *self.own(), self._size))


def own_ratios(
    difference: np.ndarray, noise: np.ndarray, farthest: np.ndarray, size: np.ndarray
) -> np.ndarray:
    """Returns how far elements differ by their own noise; single ones count for less.

    A few runs tell the noise of one element badly, so that a difference may be many
    times larger. But then some run is also far from the others, in this element or in
    another. The ratios of difference and noise are therefore compared in order: the
    tenth largest is divided by the tenth largest ratio that a run has to the others.

    Args:
        difference: magnitudes of the differences.
        noise: the noise of each element; infinite where it is not known.
        farthest: how far the farthest run of each element was (`ElementNoise.own`).
        size: magnitudes of the elements. All are compared, and those of each decade.

    Returns:
        For each element the largest quotient of ratios up to its own, over the largest
        one that is within noise. It is 0 where the noise is not known, and may be 0
        where it is less than 1.
    """
    result = np.zeros(noise.shape)
    finite = np.isfinite(noise)
    ratios, runs = difference[finite] / noise[finite], farthest[finite]
    # The ratios of runs are at least 1, so that no other quotient is beyond noise.
    large = ratios > _OWN_LIMIT
    if not large.any():
        return result
    decades = _bins(size[finite], 10)
    quotients = np.zeros(ratios.shape)
    for group in [decades >= 0, *(decades == i for i in np.unique(decades[large]))]:
        index, count = np.flatnonzero(large & group), np.count_nonzero(group)
        if count < _LEAST:
            continue
        index = index[np.argsort(ratios[index])]
        least = count - index.size
        ordered = ratios[index] / np.sort(np.partition(runs[group], least)[least:])
        # Two infinite ratios say nothing.
        ordered[np.isnan(ordered)] = 0
        fewest = max(_SEVERAL, math.ceil(_SHARE * count))
        ordered[max(index.size - fewest + 1, 0) :] *= _OWN_LIMIT / _FEWER_LIMIT
        together = np.maximum.accumulate(ordered)
        quotients[index] = np.maximum(quotients[index], together)
    result[finite] = quotients / _OWN_LIMIT
    return result


def _bins(values: np.ndarray, base: float) -> np.ndarray:
    """Returns the exponent of each value to a base, from 0; 0 for the value 0."""
    positive = values > 0
    bins = np.zeros(values.shape, int)
    if positive.any():
        exponents = np.floor(np.log(values[positive]) / np.log(base)).astype(int)
        bins[positive] = exponents - exponents.min()
    return bins


def _largest(bins: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns the largest of the values of each bin."""
    largest = np.zeros(int(bins.max(initial=0)) + 1)
    np.maximum.at(largest, bins, values)
    return largest


def _shifted(x: np.ndarray, by: int) -> np.ndarray:
    """Returns an array moved by one position, with a zero at its end."""
    return np.append(x[1:], 0) if by < 0 else np.append(0, x[:-1])


def small_elements(expected: np.ndarray, atol: float, limits: np.ndarray) -> int:
    """Returns how many elements an absolute tolerance hides.

    An element counts if it is not zero, smaller than `atol`, and its own noise is less
    than a tenth of `atol`: an error as large as the element itself would pass.
    """
    size = np.abs(expected)
    hidden = (size > 0) & (size < atol) & (10 * np.asarray(limits) < atol)
    return int(np.count_nonzero(hidden & np.isfinite(size)))
