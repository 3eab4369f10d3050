"""Cuts each reduction into partial sums.

Every function `cut_...`, here and in `products`, `scatters` and `collectives`, cuts one
primitive: from the shapes and the equation's parameters it returns a `Cut`, or the
reason (a string) why this reduction has no order to draw. The partial sums are again
sums by XLA, over consecutive terms. In sums over devices and chains of `add_any` each
term is a piece.

Under NaN or infinite operands the result is not finite, but may be NaN for infinity.
"""

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise.order import permutations
from prednet_jax.noise.order.permutations import piece_count, widened
from prednet_jax.noise.specs import MAX_PARTIALS, ReductionOrder
from prednet_jax.noise.types import Aval, Params

# The result of `Cut.split`: the start of the sum, if any, and the partial sums.
Sums = tuple[Array | None, list[Array]]
# Draws booleans of a shape.
Coin = Callable[[Sequence[int]], Array]
# The most terms of a window whose loss in a chain of additions is computed: each is a
# slice in the program.
WINDOW_TERMS = 64
# The start and the end of a piece, for each axis that is cut.
Piece = Sequence[tuple[int, int]]


class LeftAlone(NamedTuple):
    """Why no order is drawn for an equation.

    Attributes:
        reason: the reason, as `coverage` reports it.
        harmless: whether every order gives the same bits.
    """

    reason: str
    harmless: bool = False


class Cut(NamedTuple):
    """A planned reduction.

    Attributes:
        pieces: the number of partial sums.
        split: a function of the operands that returns (initial, partial sums). The sum
            starts at `initial`, or at the first partial sum where `initial` is None.
        terms: the number of terms of each result, or 0 if unknown.
        total: a function of words, salt and operands that returns the sum in an order
            other than a drawn order of `pieces` (`collectives`). Defaults to None:
            `split` and the drawn order are used.
        lost: a function of `error_free.run_time_zero`, a `Coin` and the operands that
            returns what is lost where all terms are added one after another, from the
            first term on or from the last; of scattered updates, what a drawn order
            loses more than theirs. Defaults to None: not known.
    """

    pieces: int
    split: Callable[..., Sums]
    terms: int = 0
    total: Callable[..., Array] | None = None
    lost: Callable[..., Array] | None = None


def bounds(size: int, n: int) -> list[tuple[int, int]]:
    """Returns the start and the end of each of `n` consecutive pieces of an axis.

    The pieces have equal length, with a shorter last one. Where that gives fewer than
    `n` pieces, lengths differ by one.
    """
    length = -(-size // n)
    if -(-size // length) == n:
        return [(i * length, min(size, (i + 1) * length)) for i in range(n)]
    edges = np.linspace(0, size, n + 1).astype(int).tolist()
    return list(itertools.pairwise(edges))


def stack_pieces(x: Array, axis: int, n: int) -> Array:
    """Splits an axis into (n, longest piece) and pads shorter pieces with zeros."""

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
    """Cuts a box into about n pieces, along as few axes as possible.

    It makes at most n, but four where a box of twos must be cut into three. Axes of
    `first` that hold all n pieces come before longer ones.
    """
    remaining, counts = n, [1] * len(sizes)

    def order(d: int) -> tuple[bool, int]:
        return not (d in first and sizes[d] >= n), -sizes[d]

    for d in sorted(range(len(sizes)), key=order):
        if remaining > 1 or math.prod(counts) < 3:
            counts[d] = min(sizes[d], max(remaining, 2))
            remaining //= counts[d]
    return list(itertools.product(*map(bounds, sizes, counts)))


def too_few(terms: int) -> LeftAlone:
    """Returns why a sum of one or two terms has no order."""
    reason = f"terms: {terms}, fewer than three, and addition commutes"
    return LeftAlone(reason, harmless=True)


def after(d: int, axis: int) -> int:
    """Returns the index of axis d once `axis` is split; of `axis`, the second half."""
    return d + (d >= axis)


def unstack(x: Array, axis: int = 0) -> list[Array]:
    """Returns the slices of `x` along an axis, without that axis."""
    return [lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis])]


def cut_sum(spec: ReductionOrder, params: Params, x: Aval) -> Cut | LeftAlone:
    """Cuts a reduce_sum into pieces of the longest reduced axis."""
    axes = tuple(params["axes"])
    sizes = [x.shape[d] for d in axes]
    terms = math.prod(sizes)
    if terms < 3:
        return too_few(terms)
    n = piece_count(spec, terms)
    merge = max(sizes) < n

    kept = [d for d in range(len(x.shape)) if d not in axes]

    def lost(zero: Array, coin: Coin, x: Array) -> Array:
        x = lax.transpose(widen(x), (*axes, *kept))
        x = lax.reshape(x, (terms, *x.shape[len(axes) :]))
        return permutations.chain_error(x, zero, coin(()))

    def split(x: Array) -> Sums:
        x, over = widen(x), axes
        if merge:
            # Move reduced axes to the end, in their order, and join them.
            x = lax.transpose(x, (*kept, *axes))
            x = lax.reshape(x, (*x.shape[: len(kept)], terms))
            over = (len(kept),)
        axis = max(over, key=lambda d: x.shape[d])
        x = stack_pieces(x, axis, n)
        reduced = tuple(after(d, axis) for d in over)
        sums = lax.reduce(x, np.zeros((), x.dtype), lax.add, reduced)
        axis -= sum(d < axis for d in over)
        return None, unstack(sums, axis)

    return Cut(n, split, terms, lost=lost)


def cut_window(spec: ReductionOrder, params: Params, x: Aval) -> Cut | LeftAlone:
    """Cuts a reduce_window_sum into pieces of the window."""
    window = params["window_dimensions"]
    terms = math.prod(window)
    if terms < 3:
        return too_few(terms)
    strides, steps = params["window_strides"], params["window_dilation"]
    pieces = cut_axes(window, piece_count(spec, terms))
    around = zip(params["padding"], params["base_dilation"], strict=True)
    padding = [(low, high, base - 1) for (low, high), base in around]

    def piece_sums(x: Array, piece: Piece) -> Array:
        sizes = []
        for d, (start, stop) in enumerate(piece):
            count = (x.shape[d] - (window[d] - 1) * steps[d] - 1) // strides[d] + 1
            first = start * steps[d]
            length = (count - 1) * strides[d] + (stop - start - 1) * steps[d] + 1
            sizes.append((first, first + max(length, 0)))
        x = lax.slice(x, [s[0] for s in sizes], [s[1] for s in sizes])
        return lax.reduce_window(
            x,
            np.zeros((), x.dtype),
            lax.add,
            [stop - start for start, stop in piece],
            strides,
            "VALID",
            window_dilation=steps,
        )

    def split(x: Array) -> Sums:
        x = widen(x)
        x = lax.pad(x, np.zeros((), x.dtype), padding)
        return None, [piece_sums(x, piece) for piece in pieces]

    def lost(zero: Array, coin: Coin, x: Array) -> Array:
        x = widen(x)
        x = lax.pad(x, np.zeros((), x.dtype), padding)
        # For each term of a window, the numbers that are this term of some window.
        first = np.indices(window).reshape(len(window), -1).T * np.array(steps)
        reach = (np.array(window) - 1) * np.array(steps)
        lengths = [n - r for n, r in zip(x.shape, reach.tolist(), strict=True)]
        slices = [lax.slice(x, at, at + lengths, strides) for at in first]
        return permutations.chain_error(jnp.stack(slices), zero, coin(()))

    is_small = terms <= WINDOW_TERMS
    return Cut(len(pieces), split, terms, lost=lost if is_small else None)


def cut_cumsum(spec: ReductionOrder, params: Params, x: Aval) -> Cut | LeftAlone:
    """Cuts a cumsum: totals of the pieces before, and a cumulative sum within."""
    axis, reverse = params["axis"], params["reverse"]
    size = x.shape[axis]
    if size < 3:
        return too_few(size)
    n = piece_count(spec, size)
    edges = bounds(size, n)

    def split(x: Array) -> Sums:
        x = widen(x)
        local = [
            lax.cumsum(lax.slice_in_dim(x, *e, axis=axis), axis, reverse) for e in edges
        ]
        position = lax.broadcasted_iota(jnp.int32, x.shape, axis)
        parts = [lax.concatenate(local, axis)]
        for (start, stop), piece in zip(edges, local, strict=True):
            last = 0 if reverse else stop - start - 1
            total = lax.slice_in_dim(piece, last, last + 1, axis=axis)
            beyond = position < start if reverse else position >= stop
            total = jnp.broadcast_to(total, x.shape)
            parts.append(lax.select(beyond, total, jnp.zeros_like(x)))
        # No position comes after the piece at the far end.
        del parts[1 if reverse else -1]
        return None, parts

    def lost(zero: Array, coin: Coin, x: Array) -> Array:
        terms = jnp.moveaxis(widen(x), axis, 0)
        terms = jnp.flip(terms, 0) if reverse else terms
        errors = permutations.chain_errors(terms, zero)
        # The first piece has no order to draw. Other orders make errors of the same
        # size: each counts twice or not at all, and the chain is their mean.
        errors = jnp.where(coin(errors.shape), errors + errors, jnp.zeros_like(errors))
        sums = -lax.cumsum(jnp.concatenate([jnp.zeros_like(terms[:1]), errors]))
        return jnp.moveaxis(jnp.flip(sums, 0) if reverse else sums, 0, axis)

    return Cut(n, split, size, lost=lost)


def cut_add_any(terms: Sequence[Aval]) -> Cut | LeftAlone:
    """Cuts a chain of cotangent sums; each term is a piece."""
    n = len(terms)
    if n < 3:
        return too_few(n)
    if n > MAX_PARTIALS:
        return LeftAlone(f"sum of {n} cotangents: more than {MAX_PARTIALS}")

    def split(*terms: Array) -> Sums:
        return None, [widen(t) for t in terms]

    return Cut(n, split, n)


def widen(x: Array) -> Array:
    """Converts `x` to the type in which its sums are kept."""
    return lax.convert_element_type(x, widened(x.dtype))
