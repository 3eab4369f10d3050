"""Finds the order of axes in which two frameworks store the same numbers.

One framework has [batch, channels, height, width] and another has the channels last;
one merges the axes of heads and features. Such an order is the same for all arrays with
one number of axes, and `find` chooses it for a whole report. A change within an axis
(channels reversed, halves swapped) is not an order of axes.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from prednet_jax.noise.leaves import rms

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

    def arrange(self, reference: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Returns the reference in the order of axes here, if it `fits`."""
        if self.ours < self.theirs:
            return reference.transpose(self.axes).reshape(shape)
        fine = [shape[i] for i in self.axes]
        return reference.reshape(fine).transpose(np.argsort(self.axes))

    def fits(self, theirs: Sequence[int], ours: Sequence[int]) -> bool:
        """Returns whether this order gives the shape there the shape here."""
        fine, coarse = (theirs, ours) if self.ours < self.theirs else (ours, theirs)
        return self._merges([fine[i] for i in self.axes], coarse)

    def _merges(self, fine: Sequence[int], coarse: Sequence[int]) -> bool:
        """Returns whether each axis of `coarse` merges consecutive axes of `fine`."""
        if self.ours == self.theirs:
            return tuple(fine) == tuple(coarse)
        remaining = list(zip(fine, self.axes, strict=True))
        for size in coarse:
            product, merged = 1, []
            while remaining and (product < size or remaining[0][0] == 1):
                length, axis = remaining.pop(0)
                product *= length
                merged += [axis] * (length > 1)
            if product != size or merged != sorted(merged):
                return False
        return all(length == 1 for length, _ in remaining)

    @property
    def moved(self) -> int:
        """How many axes change their place: few moves are more likely."""
        counts = range(len(self.axes), -1, -1)
        subsets = (x for n in counts for x in itertools.combinations(self.axes, n))
        kept = next(x for x in subsets if list(x) == sorted(x))
        return len(self.axes) - len(kept)

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


def distance(x: np.ndarray, y: np.ndarray) -> float:
    """Returns the distance of two arrays in units of the larger norm, at most 1."""
    return float(distances([x], [y])[0, 0])


@np.errstate(over="ignore")
def distances(x: Sequence[np.ndarray], y: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the distances of arrays `x` from arrays `y`, all of one size, to 1e-7."""
    units, sizes = [], []
    for arrays in (x, y):
        # As floats: booleans have no difference, and unsigned ones wrap.
        rows = np.stack([v.ravel() * 1.0 for v in arrays])
        rows = np.nan_to_num(rows, posinf=0, neginf=0)
        sizes.append(np.array([rms(row) for row in rows]))
        units.append(rows / np.where(sizes[-1], sizes[-1], 1)[:, None])
    cosine = (units[0] @ np.conj(units[1].T)).real / max(1, units[0].shape[1])
    scale = np.maximum.outer(*sizes)
    a, b = (size / np.where(scale, scale, 1) for size in (sizes[0][:, None], sizes[1]))
    return np.sqrt(np.clip(a * a + b * b - 2 * a * b * cosine, 0, 1))


def fitting(reference: np.ndarray, shape: Sequence[int]) -> list[Layout]:
    """Returns the orders that give the reference a shape, few moves of axes first."""
    return list(_fitting(reference.shape, tuple(shape)))


@functools.lru_cache(maxsize=1000)
def _fitting(theirs: tuple[int, ...], ours: tuple[int, ...]) -> tuple[Layout, ...]:
    if math.prod(theirs) != math.prod(ours):
        return ()
    plain = tuple(range(max(len(theirs), len(ours))))
    every = itertools.permutations(plain) if len(plain) < 7 else [plain]
    orders = (Layout(len(theirs), len(ours), axes) for axes in every)
    fits = (order for order in orders if order.fits(theirs, ours))
    return tuple(sorted(fits, key=lambda order: order.moved))


# By the number of each pair.
_Orders = dict[int, Layout]


def find(
    pairs: Sequence[tuple[np.ndarray, Sequence[int]]],
    measure: Callable[[Sequence[Layout]], np.ndarray],
) -> list[Layout]:
    """Chooses an order of axes for each pair of (reference, shape here) of one report.

    All pairs of the same numbers of axes share the order that fits most shapes; pairs
    whose shapes do not fit it (queries with the heads elsewhere, among matrices of
    attention) share another. If several orders fit the same shapes, the first (fewest
    axes moved) is taken, unless another is clearly nearer in more than one array: a
    transposed square in one layer is a fault. Then an array that is far gets an order
    of its own, if it and one computed from it are clearly nearer in that order.

    Args:
        pairs: the references and the shapes that they must get.
        measure: returns the distances of all arrays for an order of each. An array is
            computed from the references of those before it, so that the distances tell
            the order even if an early array is wrong.
    """
    usual: _Orders = {}
    choices: list[tuple[list[int], list[Layout]]] = []
    fits = {i: fitting(*pair) for i, pair in enumerate(pairs)}
    todo = fits
    while any(todo.values()):
        counts = Counter(fit for orders in todo.values() for fit in orders)
        first = max(counts, key=lambda fit: counts[fit])
        group = [i for i, orders in todo.items() if first in orders]
        shared = [fit for fit in todo[group[0]] if all(fit in todo[i] for i in group)]
        choices.append((group, shared))
        usual |= dict.fromkeys(group, first)
        todo = {i: orders for i, orders in todo.items() if i not in group}

    def distances(orders: _Orders) -> np.ndarray:
        return measure([orders[i] for i in range(len(pairs))])

    for group, shared in choices:
        if len(shared) > 1:
            near = [distances(usual | dict.fromkeys(group, fit)) for fit in shared]
            best = int(np.argmin([x.sum() for x in near]))
            clear = near[0].sum() - near[best].sum() > CLEARLY * len(group)
            if clear and (near[0] > CLEARLY).sum() > 1:
                usual |= dict.fromkeys(group, shared[best])
    starts = [
        usual | dict.fromkeys(group, fit) for group, shared in choices for fit in shared
    ]
    own = _each_its_own([usual, *starts], fits, distances)
    return [own[i] for i in range(len(pairs))]


def _each_its_own(
    starts: Sequence[_Orders],
    fits: Mapping[int, Sequence[Layout]],
    measure: Callable[[_Orders], np.ndarray],
) -> _Orders:
    """Returns the first orders, or clearly nearer ones that differ among the arrays."""
    usual = measure(starts[0])
    nearest = usual, starts[0]
    if (usual > CLEARLY).sum() < 2:
        return starts[0]
    for orders in starts:
        near = measure(orders)
        if near.sum() > usual.sum():
            continue
        for i in sorted(fits):
            if near[i] > CLEARLY and len(fits[i]) > 1:
                changed = [orders | {i: fit} for fit in fits[i]]
                moved = min(
                    ((measure(x), x) for x in changed), key=lambda x: x[0].sum()
                )
                near, orders = moved if _nearer(near, moved[0]) else (near, orders)
        if near.sum() < nearest[0].sum() - CLEARLY and _nearer(usual, near):
            nearest = near, orders
    return nearest[1]


def _nearer(usual: np.ndarray, other: np.ndarray) -> bool:
    """Returns whether several arrays are clearly nearer, and all of them in sum."""
    gain = usual - other
    return bool(gain.sum() > CLEARLY and (gain > CLEARLY).sum() > 1)
