"""How each reduction is cut into partial sums.

Every function `cut_...` of `products` and `sums` cuts one primitive: from the shapes
and the equation's parameters it gives a `Cut`, or the reason (a string) why this
reduction has no order to draw. The partial sums are again sums of XLA's own, of
consecutive terms: of a dot one batched dot, of a convolution one for each piece of the
kernel (or all as further outputs), of sums, windows and cumulative sums pieces of their
longest axis, of a scatter-add pieces of the updates, of max-pooling's backward pass
classes of windows that do not overlap. Sums over devices and chains of `add_any` have
their terms as pieces.

Under NaN or infinite operands the result is not finite, but may be NaN for infinity.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import Array, lax

Params = dict[str, Any]
# What `Cut.split` gives: where the sum starts, if anywhere, and the partial sums.
Sums = tuple[Array | None, list[Array]]
# Of each axis that is cut, from where to where a piece goes.
Piece = Sequence[tuple[int, int]]


class NoOrder(str):
    """Why a reduction has no order at all: every order gives the same bits."""

    __slots__ = ()


class Cut(NamedTuple):
    """A planned reduction.

    Attributes:
        pieces: number of partial sums.
        split: operands -> (initial, partial sums); the sum starts at `initial`, or at
            the first partial sum where `initial` is None.
        terms: of each result; 0: not told.
        total: words, salt, operands -> the sum, where another order than a drawn one of
            `pieces` is asked for (`collectives`); None: `split` and the drawn order.
    """

    pieces: int
    split: Callable[..., Sums]
    terms: int = 0
    total: Callable[..., Array] | None = None


def bounds(size: int, n: int) -> list[tuple[int, int]]:
    """First and last-but-one index of each of `n` consecutive pieces of an axis.

    Pieces of equal length with a shorter last one; where that gives fewer than `n`
    pieces, lengths that differ by one.
    """
    length = -(-size // n)
    if -(-size // length) == n:
        return [(i * length, min(size, (i + 1) * length)) for i in range(n)]
    edges = np.linspace(0, size, n + 1).astype(int).tolist()
    return list(itertools.pairwise(edges))


def stack_pieces(x: Array, axis: int, n: int) -> Array:
    """Axis `axis` split into (n, longest piece); shorter pieces end in zeros."""

    def padded(x: Array, count: int) -> Array:
        if count == 0:
            return x
        config = [(0, count if d == axis else 0, 0) for d in range(x.ndim)]
        return lax.pad(x, np.zeros((), x.dtype), config)

    size = x.shape[axis]
    edges = bounds(size, n)
    length = max(stop - start for start, stop in edges)
    if edges[-1][0] == (n - 1) * length:
        x = padded(x, n * length - size)
    else:
        slices = [lax.slice_in_dim(x, *edge, axis=axis) for edge in edges]
        x = lax.concatenate([padded(s, length - s.shape[axis]) for s in slices], axis)
    return lax.reshape(x, (*x.shape[:axis], n, length, *x.shape[axis + 1 :]))


def cut_axes(sizes: Sequence[int], n: int, first: Collection[int] = ()) -> list[Piece]:
    """Cut a box into about n pieces, along as few axes as possible.

    At most n, but four where a box of twos has to be cut into three. Axes of `first`
    that hold all n pieces come before longer ones.
    """
    left, counts = n, [1] * len(sizes)

    def order(d: int) -> tuple[bool, int]:
        return not (d in first and sizes[d] >= n), -sizes[d]

    for d in sorted(range(len(sizes)), key=order):
        if left > 1 or math.prod(counts) < 3:
            counts[d] = min(sizes[d], max(left, 2))
            left //= counts[d]
    return list(itertools.product(*map(bounds, sizes, counts)))


def too_few(terms: int) -> NoOrder:
    """Why a sum of one or two terms has no order."""
    return NoOrder(f"terms: {terms}, fewer than three, and addition commutes")


def after(d: int, axis: int) -> int:
    """Where axis d is once `axis` is split in two; the second half for `axis`."""
    return d + (d >= axis)


def unstack(x: Array, axis: int = 0) -> list[Array]:
    """The slices of `x` along an axis, without it."""
    return [lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis])]
