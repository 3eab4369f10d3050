"""Pairs weights with a block of a larger weight, or with the sum of two.

One framework keeps gates, or the projections of attention, in one array and another in
several; one adds the two biases of a recurrent cell that another keeps.
"""

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from prednet_jax.noise.questions import layouts, weight_pairs
from prednet_jax.noise.questions.weight_pairs import Found, Weights


def blocks(small: Weights, large: Weights) -> list[Found]:
    """Takes the weights that are a block of a larger one; the other blocks stay."""
    pairs: list[Found] = []
    cuts: dict[str, list[_Cut]] = {}

    @functools.cache
    def rows_of(t: str, axis: int) -> np.ndarray:
        return weight_pairs.extremes_of(large[t], axis)

    for n in [n for n, v in small.items() if v.size]:
        v = small[n]
        larger = [t for t, r in large.items() if r.size > v.size]
        places = [
            (t, cut)
            for t in sorted(larger, key=lambda t: -weight_pairs.similarity(n, t))
            for cut in _places(
                v, large[t], cuts.get(t, []), functools.partial(rows_of, t)
            )
        ]
        if places:
            t, cut = min(
                places, key=lambda x: weight_pairs.millionths(v, x[1].of(large[x[0]]))
            )
            pairs.append((n, cut.label(t, large[t]), v, cut.of(large[t])))
            cuts[t] = [*cuts.get(t, []), cut]
            del small[n]
    for t, taken in cuts.items():
        r = large.pop(t)
        large |= {cut.label(t, r): cut.of(r) for cut in _rest(r, taken)}
    return pairs


def sums(whole: Weights, parts: Weights) -> list[Found]:
    """Takes the weights that are the sum of two vectors, or a block of such a sum.

    The names of the two, such as `bias_ih_l0` and `bias_hh_l0`, differ in one word.
    """
    alike: dict[tuple, list[str]] = {}
    for t, r in parts.items():
        is_vector = r.ndim == 1 and r.size > 1
        words = re.split(r"[^a-zA-Z\d]+", t) if is_vector else []
        for i, word in enumerate(words):
            if not re.search(r"\d", word) and r.dtype.kind not in "biu":
                others = *words[:i], i, *words[i + 1 :]
                alike.setdefault((r.size, *others), []).append(t)
    added = {
        f"({a} + {b})": (a, b)
        for group in alike.values()
        for a, b in itertools.combinations(group, 2)
    }
    sums = {name: parts[a] + parts[b] for name, (a, b) in added.items()}
    pairs = weight_pairs.pairs_of(whole, sums, content=True) + blocks(whole, sums)
    for name in added.keys() - sums.keys():
        for part in added[name]:
            parts.pop(part, None)
    parts |= {name: x for name, x in sums.items() if name not in added}
    return pairs


class _Cut(NamedTuple):
    """A block of an array: the rows `start` to `stop` of an axis."""

    axis: int
    start: int
    stop: int

    def of(self, x: np.ndarray) -> np.ndarray:
        return x[(*[slice(None)] * self.axis, slice(self.start, self.stop))]

    def label(self, name: str, x: np.ndarray) -> str:
        """Returns the name of the block of an array."""
        rows, length = self.stop - self.start, x.shape[self.axis]
        if length % rows or self.start % rows:
            return f"{name}[{self.start}:{self.stop} of axis {self.axis}]"
        return f"{name}[block {self.start // rows} of {length // rows}]"


def _places(
    v: np.ndarray,
    r: np.ndarray,
    taken: Sequence[_Cut],
    rows_of: Callable[[int], np.ndarray],
) -> Iterator[_Cut]:
    """Yields the blocks of `r` that hold the numbers of `v`.

    `taken` are the cuts so far; `rows_of` returns the extremes of the rows of an axis.
    """
    if weight_pairs.is_counter(v) and r.dtype.kind not in "iu":
        return
    for axis, length in enumerate(r.shape):
        rows, remainder = divmod(v.size * length, r.size)
        block = _Cut(axis, 0, rows)
        if remainder or rows == 0 or any(cut.axis != axis for cut in taken):
            continue
        if not layouts.fitting(block.of(r), v.shape):
            continue
        # Heads and gates are of one size, so that blocks begin at multiples of it.
        # Sorting each would take long, but its extremes tell most.
        step = math.gcd(rows, length)
        theirs, fits = rows_of(axis), np.array(True)
        least = weight_pairs.least_of(theirs)
        for extreme, ours, each in zip(
            weight_pairs.EXTREMES, weight_pairs.extremes_of(v), theirs, strict=True
        ):
            windows = np.lib.stride_tricks.sliding_window_view(each, rows)[::step]
            there = extreme.reduce(windows, -1)
            fits = fits & np.isclose(
                ours, there, weight_pairs.CONTENT, least, equal_nan=True
            )
        for start in (np.flatnonzero(fits) * step).tolist():
            cut = _Cut(axis, start, start + rows)
            free = all(cut.stop <= x.start or x.stop <= cut.start for x in taken)
            if free and weight_pairs.same_content(v, cut.of(r)):
                yield cut


def _rest(r: np.ndarray, taken: Sequence[_Cut]) -> Iterator[_Cut]:
    """Yields the blocks of an array that are left, of one size if the others are."""
    axis, length = taken[0].axis, r.shape[taken[0].axis]
    sizes = {cut.stop - cut.start for cut in taken}
    same_size = len(sizes) == 1 and not any(
        x % min(sizes) for x in (length, *(cut.start for cut in taken))
    )
    start = 0
    for stop in [*sorted(cut.start for cut in taken), length]:
        rows = min(sizes) if same_size else max(1, stop - start)
        yield from (_Cut(axis, i, i + rows) for i in range(start, stop, rows))
        start = next((cut.stop for cut in taken if cut.start == stop), length)
