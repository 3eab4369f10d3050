"""Finds the order of axes in which two frameworks store the same numbers.

One framework has [batch, channels, height, width] and another has the channels last;
one merges the axes of heads and features. Such an order is the same for all arrays with
one number of axes, and `find` chooses it for a whole report. A change within an axis
(channels reversed, halves swapped) is not an order of axes.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# An order other than the plain one must reduce the distance (at most 1) by so much.
CLEARLY = 0.25


class Layout(NamedTuple):
    """An order of axes for arrays of `theirs` axes there and `ours` here.

    `axes` belong to the array of more axes: `reference.transpose(axes)` if that is the
    reference, else the axes of ours in the order in which the reference has them.
    Axes that are merged keep their order.
    """

    theirs: int
    ours: int
    axes: tuple[int, ...]

    def arrange(self, reference: np.ndarray, shape: Sequence[int]) -> np.ndarray | None:
        """Returns the reference in the order of axes here; None if it does not fit."""
        if self.ours < self.theirs:
            moved = reference.transpose(self.axes)
            fits = self._merges(moved.shape, shape)
            return moved.reshape(shape) if fits else None
        fine = [shape[i] for i in self.axes]
        if not self._merges(fine, reference.shape):
            return None
        return reference.reshape(fine).transpose(np.argsort(self.axes))

    def _merges(self, fine: Sequence[int], coarse: Sequence[int]) -> bool:
        """Returns whether each axis of `coarse` merges consecutive axes of `fine`."""
        if self.ours == self.theirs:
            return tuple(fine) == tuple(coarse)
        rest = list(zip(fine, self.axes, strict=True))
        for size in coarse:
            product, merged = 1, []
            while rest and (product < size or rest[0][0] == 1):
                length, axis = rest.pop(0)
                product *= length
                merged += [axis] * (length > 1)
            if product != size or merged != sorted(merged):
                return False
        return not rest

    @property
    def is_plain(self) -> bool:
        """Whether both sides have the same axes in the same order."""
        return self.ours == self.theirs and self.axes == tuple(range(self.ours))

    def __str__(self) -> str:
        moved = self.axes
        if self.ours >= self.theirs:
            moved = tuple(np.argsort(self.axes).tolist())
        if self.ours == self.theirs:
            return f"{self.ours} axes: reference.transpose{moved}"
        change = "merged" if self.ours < self.theirs else "split"
        return f"{self.theirs} axes {change} to {self.ours}: {self.axes}"


def candidates(theirs: int, ours: int) -> list[Layout]:
    """Returns the possible orders of axes, the ones that move few axes first."""
    plain = tuple(range(max(theirs, ours)))
    every = itertools.permutations(plain) if len(plain) < 7 else [plain]
    return [Layout(theirs, ours, axes) for axes in sorted(every, key=_moved)]


def _moved(axes: tuple[int, ...]) -> int:
    """Returns how many axes change their place: few moves are more likely."""
    kept = 0
    for count in range(len(axes), 0, -1):
        if any(list(c) == sorted(c) for c in itertools.combinations(axes, count)):
            kept = count
            break
    return len(axes) - kept


def distance(x: np.ndarray, y: np.ndarray) -> float:
    """Returns the distance of two arrays in units of the larger norm, at most 1."""
    # As floats: booleans have no difference, and unsigned ones wrap.
    x, y = (np.nan_to_num(v * 1.0, posinf=0, neginf=0) for v in (x, y))
    scale = max(np.linalg.norm(x), np.linalg.norm(y))
    return min(1.0, float(np.linalg.norm(x - y) / scale)) if scale else 0.0


def find(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Layout | None]:
    """Chooses an order of axes for each pair of (reference, ours) of one report.

    All pairs of the same numbers of axes share one: of the orders that fit most shapes
    the one whose numbers are nearest. The first that fits (fewest axes moved) is left
    only for one that is clearly nearer, and not for the sake of a single array: in
    that, a transposed square is a fault. Pairs whose shapes do not fit it (queries with
    the heads elsewhere, among matrices of attention) share another. None: none fits.
    """
    found: list[Layout | None] = [None] * len(pairs)
    groups: dict[tuple[int, int], list[int]] = {}
    for i, (reference, ours) in enumerate(pairs):
        groups.setdefault((reference.ndim, ours.ndim), []).append(i)
    for ranks, rest in groups.items():
        while rest:
            fits = []
            for layout in candidates(*ranks):
                near = {
                    i: distance(moved, pairs[i][1])
                    for i in rest
                    if (moved := layout.arrange(pairs[i][0], pairs[i][1].shape))
                    is not None
                }
                fits += [(layout, near)] * bool(near)
            most = max((len(near) for _, near in fits), default=0)
            fits = [fit for fit in fits if len(fit[1]) == most]
            if not fits:
                break
            means = [math.fsum(near.values()) / most for _, near in fits]
            best = int(np.argmin(means))
            clear = most > 1 and means[best] < means[0] - CLEARLY
            layout, near = fits[best if clear else 0]
            for i in near:
                found[i] = layout
            rest = [i for i in rest if i not in near]
    return found
