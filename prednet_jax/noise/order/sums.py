"""How sums without products are cut into partial sums; see `partials`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise.order.collectives import cut_collective
from prednet_jax.noise.order.partials import (
    Cut,
    NoOrder,
    Params,
    Piece,
    Sums,
    after,
    bounds,
    cut_axes,
    stack_pieces,
    too_few,
    unstack,
)
from prednet_jax.noise.order.permutations import piece_count, widened
from prednet_jax.noise.specs import MAX_PARTIALS, ReductionOrder


def cut_sum(spec: ReductionOrder, params: Params, x: Any) -> Cut | str:
    """reduce_sum: pieces of the longest reduced axis."""
    axes = tuple(params["axes"])
    sizes = [x.shape[d] for d in axes]
    terms = math.prod(sizes)
    if terms < 3:
        return too_few(terms)
    n = piece_count(spec, terms)
    merge = max(sizes) < n
    n = n if merge else min(n, max(sizes))

    def split(x: Array) -> Sums:
        x, over = widen(x), axes
        if merge:
            # To the end, in their order, and one.
            kept = [d for d in range(x.ndim) if d not in axes]
            x = lax.transpose(x, (*kept, *axes))
            x = lax.reshape(x, (*x.shape[: len(kept)], terms))
            over = (len(kept),)
        axis = max(over, key=lambda d: x.shape[d])
        x = stack_pieces(x, axis, n)
        rest = tuple(after(d, axis) for d in over)
        sums = lax.reduce(x, np.zeros((), x.dtype), lax.add, rest)
        axis -= sum(d < axis for d in over)
        return None, unstack(sums, axis)

    return Cut(n, split, terms)


def cut_window(spec: ReductionOrder, params: Params, x: Any) -> Cut | str:
    """reduce_window_sum: pieces of the window."""
    window = params["window_dimensions"]
    terms = math.prod(window)
    if terms < 3:
        return too_few(terms)
    strides, steps = params["window_strides"], params["window_dilation"]
    pieces = cut_axes(window, piece_count(spec, terms))
    padding = [
        (low, high, base - 1)
        for (low, high), base in zip(
            params["padding"], params["base_dilation"], strict=True
        )
    ]

    def one(x: Array, piece: Piece) -> Array:
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
        return None, [one(x, piece) for piece in pieces]

    return Cut(len(pieces), split, terms)


def cut_cumsum(spec: ReductionOrder, params: Params, x: Any) -> Cut | str:
    """cumsum: totals of the pieces before, and the cumulative sum within the piece."""
    axis, reverse = params["axis"], params["reverse"]
    size = x.shape[axis]
    if size < 3:
        return too_few(size)
    n = piece_count(spec, size)
    edges = bounds(size, n)

    def split(x: Array) -> Sums:
        x = widen(x)
        zero = np.zeros((), x.dtype)
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
            parts.append(lax.select(beyond, total, jnp.full(x.shape, zero)))
        # The total of the piece at the far end is beyond no position.
        del parts[1 if reverse else -1]
        return None, parts

    return Cut(n, split, size)


def cut_scatter_add(
    spec: ReductionOrder, params: Params, operand: Any, indices: Any, updates: Any
) -> Cut | str:
    """scatter-add: pieces of the updates, each added up from zero."""
    numbers = params["dimension_numbers"]
    batching = numbers.scatter_indices_batching_dims
    # Axes of the indices along which updates may meet, and those of the updates.
    free = [d for d in range(len(indices.shape) - 1) if d not in batching]
    scattered = [
        d for d in range(len(updates.shape)) if d not in numbers.update_window_dims
    ]
    count = math.prod(indices.shape[d] for d in free)
    if params["unique_indices"]:
        return NoOrder("unique indices: one update at most for a cell")
    if count < 2:
        return NoOrder("one update at most for a cell")
    axis = max(free, key=lambda d: indices.shape[d])
    n = piece_count(spec, indices.shape[axis])

    def split(x: Array, index: Array, update: Array) -> Sums:
        kept = widened(x.dtype)
        zeros = jnp.zeros(x.shape, kept)
        parts = [
            lax.scatter_add(
                zeros,
                lax.slice_in_dim(index, start, stop, axis=axis),
                lax.convert_element_type(
                    lax.slice_in_dim(update, start, stop, axis=scattered[axis]), kept
                ),
                numbers,
                indices_are_sorted=params["indices_are_sorted"],
                unique_indices=False,
                mode=params["mode"],
            )
            for start, stop in bounds(index.shape[axis], n)
        ]
        return lax.convert_element_type(x, kept), parts

    return Cut(n, split, indices.shape[axis])


def cut_select_and_scatter_add(
    spec: ReductionOrder, params: Params, source: Any, operand: Any
) -> Cut | str:
    """select_and_scatter_add: classes of windows that do not overlap each other."""
    window, strides = params["window_dimensions"], params["window_strides"]
    overlap = [
        min(-(-w // s), size)
        for w, s, size in zip(window, strides, source.shape, strict=True)
    ]
    classes = math.prod(overlap)
    if classes < 3:
        return NoOrder(f"{classes} windows at most meet in a cell: addition commutes")
    n = min(classes, spec.partials)

    def split(source: Array, operand: Array) -> Sums:
        label = jnp.zeros(source.shape, jnp.int32)
        for d, size in enumerate(overlap):
            place = lax.broadcasted_iota(jnp.int32, source.shape, d)
            label = label * np.int32(size) + place % np.int32(size)
        label = label % np.int32(n)
        zero = jnp.zeros(source.shape, source.dtype)
        parts = [
            _select_and_scatter_add(
                lax.select(label == np.int32(i), source, zero), operand, params
            )
            for i in range(n)
        ]
        return None, [widen(p) for p in parts]

    return Cut(n, split, classes)


def cut_psum(spec: ReductionOrder, params: Params, x: Any) -> Cut | str:
    """Sum over devices (or a mapped axis): one piece for each of them."""
    if spec.collectives is not None:
        return cut_collective(spec, params, x)
    axes = tuple(params["axes"])
    if not all(isinstance(axis, str) for axis in axes):
        return "sum over positional axes"
    if params.get("axis_index_groups") is not None:
        return "sum over groups of devices"
    n = math.prod(lax.axis_size(axis) for axis in axes)
    if n < 3:
        return too_few(n)
    if n > MAX_PARTIALS:
        return f"sum over {n} devices: more than {MAX_PARTIALS}"

    def split(x: Array) -> Sums:
        # Every term, at its own place: a sum of one number and zeros is exact, and
        # its type tells that all devices hold the same.
        x = widen(x)
        place = lax.broadcasted_iota(jnp.int32, (n, *x.shape), 0)
        here = place == lax.axis_index(axes)
        stacked = jnp.where(here, x[None], np.zeros((), x.dtype))
        return None, unstack(lax.psum(stacked, axes))

    return Cut(n, split, n)


def cut_reduce_scatter(spec: ReductionOrder, params: Params, x: Any) -> Cut | str:
    """psum_scatter: a sum over devices of which each keeps a part."""
    if spec.collectives is None:
        return "each device holds a part of the sum; `collectives` gives it an order"
    return cut_collective(spec, params, x)


def cut_add_any(terms: Sequence[Any]) -> Cut | str:
    """A chain of cotangent sums: each term is a piece."""
    n = len(terms)
    if n < 3:
        return too_few(n)
    if n > MAX_PARTIALS:
        return f"sum of {n} cotangents: more than {MAX_PARTIALS}"

    def split(*terms: Array) -> Sums:
        return None, [widen(t) for t in terms]

    return Cut(n, split, n)


def widen(x: Array) -> Array:
    """`x` in the type in which its sums are kept."""
    return lax.convert_element_type(x, widened(x.dtype))


def _select_and_scatter_add(source: Array, operand: Array, params: Params) -> Array:
    """Max-pooling's backward pass: the derivative of a window maximum (or minimum)."""
    greatest = params["select_prim"].name in ("ge", "gt")
    start = -np.inf if greatest else np.inf
    _, backward = jax.vjp(
        lambda x: lax.reduce_window(
            x,
            np.asarray(start, x.dtype),
            lax.max if greatest else lax.min,
            params["window_dimensions"],
            params["window_strides"],
            params["padding"],
        ),
        operand,
    )
    return backward(source)[0]
