"""How each reduction is cut into partial sums.

Every function here plans one primitive: from the shapes and the equation's parameters
it gives a `Cut`, which maps the operands to the partial sums, or the reason (a string)
why this reduction has no order to draw. The partial sums are again sums of XLA's own,
of consecutive terms:

- a dot becomes one batched dot, with the piece of the contraction as leading axis;
- a convolution becomes one convolution for each piece of the kernel, cut along its
  input features or its window, or, where it is small, one with all pieces as further
  outputs. Forward, input-gradient and filter-gradient convolutions differ in their
  dimension numbers alone, and so does what is cut;
- sums, windows and cumulative sums are cut along their longest axis;
- a scatter-add is cut along the updates; max-pooling's backward pass into classes of
  windows that do not overlap, so that each class is one atomic addition to a cell;
- sums over devices and chains of `add_any` have their terms as pieces.

Under NaN or infinite operands the result is not finite, but may be NaN for infinity.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise.reductions import piece_count, widened
from prednet_jax.noise.specs import MAX_PARTIALS, ReductionOrder

Params = dict[str, Any]

# Matrix products with at most as many outputs always have all their pieces. Libraries
# split the contraction where outputs are too few to share out.
FEW_OUTPUTS = 1024

# Where a piece of a convolution has fewer input features than this, processors multiply
# it slowly (a vector register holds 8 or 16), and all pieces are made in one call, with
# n times the multiplications, unless these are more than the second number. Measured
# on the convolutions of PredNet's training step at 64x48.
NARROW_PIECE = 16
SMALL_CONVOLUTION = 30_000_000


class NoOrder(str):
    """Why a reduction has no order at all: every order gives the same bits."""

    __slots__ = ()


class Cut(NamedTuple):
    """A planned reduction.

    Attributes:
        pieces: number of partial sums.
        split: operands -> (initial, partial sums); the sum starts at `initial`, or at
            the first partial sum where `initial` is None.
    """

    pieces: int
    split: Callable[..., tuple[Array | None, list[Array]]]


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
    size = x.shape[axis]
    edges = bounds(size, n)
    length = max(stop - start for start, stop in edges)
    if edges[-1][0] == (n - 1) * length:
        x = _pad_end(x, axis, n * length - size)
    else:
        slices = [lax.slice_in_dim(x, *edge, axis=axis) for edge in edges]
        x = lax.concatenate(
            [_pad_end(s, axis, length - s.shape[axis]) for s in slices], axis
        )
    return lax.reshape(x, (*x.shape[:axis], n, length, *x.shape[axis + 1 :]))


def plan_dot(spec: ReductionOrder, params: Params, lhs: Any, rhs: Any) -> Cut | str:
    """dot_general: pieces of one contracted axis become a batch axis.

    Where no contracted axis has three terms, they are cut together, a product a piece:
    four pieces, not three, of two axes of two.
    """
    (lc, rc), (lb, rb) = params["dimension_numbers"]
    sizes = [lhs.shape[d] for d in lc]
    terms = math.prod(sizes)
    if terms < 3:
        return _too_few(terms)
    batch = math.prod(lhs.shape[d] for d in lb)
    outputs = lhs.size * rhs.size // max(1, terms**2 * batch)
    n = _product_pieces(spec, terms, outputs)
    product = functools.partial(
        lax.dot_general,
        precision=params["precision"],
        preferred_element_type=widened(_dot_type(params, lhs, rhs)),
    )
    if max(sizes) < 3:
        pieces = _cut_axes(sizes, n)

        def apart(a: Array, b: Array) -> tuple[None, list[Array]]:
            return None, [
                product(
                    _slice_axes(a, lc, piece),
                    _slice_axes(b, rc, piece),
                    params["dimension_numbers"],
                )
                for piece in pieces
            ]

        return Cut(len(pieces), apart)
    position = _position(sizes, n)
    n = min(n, sizes[position])
    i, j = lc[position], rc[position]
    numbers = (
        (tuple(_after(d, i) for d in lc), tuple(_after(d, j) for d in rc)),
        (
            (i, *(_moved(d, i) for d in lb)),
            (j, *(_moved(d, j) for d in rb)),
        ),
    )

    def split(a: Array, b: Array) -> tuple[None, list[Array]]:
        out = product(stack_pieces(a, i, n), stack_pieces(b, j, n), numbers)
        return None, _unstack(out)

    return Cut(n, split)


def plan_conv(spec: ReductionOrder, params: Params, lhs: Any, rhs: Any) -> Cut | str:
    """conv_general_dilated: pieces of the kernel, each with its own padding."""
    numbers = params["dimension_numbers"]
    _, in_feature, *spatial = numbers.rhs_spec
    axes = [in_feature, *spatial]
    terms = math.prod(rhs.shape[d] for d in axes)
    if terms < 3:
        return _too_few(terms)
    feature = numbers.lhs_spec[1]
    shape = _conv_shape(params, lhs, rhs)
    n = _product_pieces(spec, terms, math.prod(shape))
    # Features first, or a longer axis of the window (a filter gradient's is the map):
    # narrow pieces are slow. But a piece of the window may hold no term of an output,
    # beyond the border, between the zeros of a dilated map or at a kernel's own zeros,
    # and two pieces commute.
    long = [
        1 + k
        for k in range(len(spatial))
        if _is_everywhere(params, lhs, rhs, shape, k, n)
    ]
    pieces = _cut_axes([rhs.shape[d] for d in axes], n, first=[0, *long])
    groups = params["feature_group_count"]
    preferred = params["preferred_element_type"] or jnp.result_type(lhs, rhs)

    def one(a: Array, b: Array, piece: Sequence[tuple[int, int]]) -> Array:
        padding = list(params["padding"])
        for d, (start, stop) in zip(axes, piece, strict=True):
            size = b.shape[d]
            b = lax.slice_in_dim(b, start, stop, axis=d)
            if d == in_feature:
                a = _slice_groups(a, feature, groups, start, stop)
            else:
                k = spatial.index(d)
                low, high = padding[k]
                step = params["rhs_dilation"][k]
                padding[k] = (low - start * step, high - (size - stop) * step)
        return lax.conv_general_dilated(
            a,
            b,
            params["window_strides"],
            padding,
            lhs_dilation=params["lhs_dilation"],
            rhs_dilation=params["rhs_dilation"],
            dimension_numbers=numbers,
            feature_group_count=groups,
            batch_group_count=params["batch_group_count"],
            precision=params["precision"],
            preferred_element_type=widened(preferred),
        )

    def apart(a: Array, b: Array) -> tuple[None, list[Array]]:
        return None, [one(a, b, piece) for piece in pieces]

    def together(a: Array, b: Array) -> tuple[None, list[Array]]:
        """The kernel once for each piece, zero elsewhere, as further outputs."""
        kernels = []
        for piece in pieces:
            edges = dict(zip(axes, piece, strict=True))
            inside = [edges.get(d, (0, size)) for d, size in enumerate(b.shape)]
            part = lax.slice(b, [e[0] for e in inside], [e[1] for e in inside])
            around = [
                (start, size - stop, 0)
                for (start, stop), size in zip(inside, b.shape, strict=True)
            ]
            kernels.append(lax.pad(part, np.zeros((), b.dtype), around))
        out = lax.conv_general_dilated(
            a,
            lax.concatenate(kernels, numbers.rhs_spec[0]),
            params["window_strides"],
            params["padding"],
            lhs_dilation=params["lhs_dilation"],
            rhs_dilation=params["rhs_dilation"],
            dimension_numbers=numbers,
            precision=params["precision"],
            preferred_element_type=widened(preferred),
        )
        axis = numbers.out_spec[1]
        width = out.shape[axis] // len(pieces)
        return None, [
            lax.slice_in_dim(out, i * width, (i + 1) * width, axis=axis)
            for i in range(len(pieces))
        ]

    grouped = groups > 1 or params["batch_group_count"] > 1
    width = min(stop - start for (start, stop), *_ in pieces)
    narrow = width < min(NARROW_PIECE, rhs.shape[in_feature])
    small = math.prod(shape) * terms * len(pieces) <= SMALL_CONVOLUTION
    at_once = narrow and small and not grouped
    return Cut(len(pieces), together if at_once else apart)


def plan_sum(spec: ReductionOrder, params: Params, x: Any) -> Cut | str:
    """reduce_sum: pieces of the longest reduced axis."""
    axes = tuple(params["axes"])
    sizes = [x.shape[d] for d in axes]
    terms = math.prod(sizes)
    if terms < 3:
        return _too_few(terms)
    n = piece_count(spec, terms)
    merge = max(sizes) < n
    n = n if merge else min(n, max(sizes))

    def split(x: Array) -> tuple[None, list[Array]]:
        x = lax.convert_element_type(x, widened(x.dtype))
        over = axes
        if merge:
            x, over = _merge_axes(x, axes)
        axis = max(over, key=lambda d: x.shape[d])
        x = stack_pieces(x, axis, n)
        rest = tuple(_after(d, axis) for d in over)
        sums = lax.reduce(x, np.zeros((), x.dtype), lax.add, rest)
        axis -= sum(d < axis for d in over)
        return None, _unstack(sums, axis)

    return Cut(n, split)


def plan_window(spec: ReductionOrder, params: Params, x: Any) -> Cut | str:
    """reduce_window_sum: pieces of the window."""
    window = params["window_dimensions"]
    terms = math.prod(window)
    if terms < 3:
        return _too_few(terms)
    strides, steps = params["window_strides"], params["window_dilation"]
    pieces = _cut_axes(window, piece_count(spec, terms))
    padding = [
        (low, high, base - 1)
        for (low, high), base in zip(
            params["padding"], params["base_dilation"], strict=True
        )
    ]

    def one(x: Array, piece: Sequence[tuple[int, int]]) -> Array:
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

    def split(x: Array) -> tuple[None, list[Array]]:
        x = lax.convert_element_type(x, widened(x.dtype))
        x = lax.pad(x, np.zeros((), x.dtype), padding)
        return None, [one(x, piece) for piece in pieces]

    return Cut(len(pieces), split)


def plan_cumsum(spec: ReductionOrder, params: Params, x: Any) -> Cut | str:
    """cumsum: totals of the pieces before, and the cumulative sum within the piece."""
    axis, reverse = params["axis"], params["reverse"]
    size = x.shape[axis]
    if size < 3:
        return _too_few(size)
    n = piece_count(spec, size)
    edges = bounds(size, n)

    def split(x: Array) -> tuple[None, list[Array]]:
        x = lax.convert_element_type(x, widened(x.dtype))
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

    return Cut(n, split)


def plan_scatter_add(
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

    def split(x: Array, index: Array, update: Array) -> tuple[Array, list[Array]]:
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

    return Cut(n, split)


def plan_select_and_scatter_add(
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

    def split(source: Array, operand: Array) -> tuple[None, list[Array]]:
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
        return None, [lax.convert_element_type(p, widened(p.dtype)) for p in parts]

    return Cut(n, split)


def plan_psum(spec: ReductionOrder, params: Params, x: Any) -> Cut | str:
    """Sum over devices (or a mapped axis): one piece for each of them."""
    axes = tuple(params["axes"])
    if not all(isinstance(axis, str) for axis in axes):
        return "sum over positional axes"
    if params.get("axis_index_groups") is not None:
        return "sum over groups of devices"
    n = math.prod(lax.axis_size(axis) for axis in axes)
    if n < 3:
        return _too_few(n)
    if n > MAX_PARTIALS:
        return f"sum over {n} devices: more than {MAX_PARTIALS}"

    def split(x: Array) -> tuple[None, list[Array]]:
        # Every term, at its own place: a sum of one number and zeros is exact, and
        # its type tells that all devices hold the same.
        x = lax.convert_element_type(x, widened(x.dtype))
        place = lax.broadcasted_iota(jnp.int32, (n, *x.shape), 0)
        here = place == lax.axis_index(axes)
        stacked = jnp.where(here, x[None], np.zeros((), x.dtype))
        return None, _unstack(lax.psum(stacked, axes))

    return Cut(n, split)


def plan_add_any(terms: Sequence[Any]) -> Cut | str:
    """A chain of cotangent sums: each term is a piece."""
    n = len(terms)
    if n < 3:
        return _too_few(n)
    if n > MAX_PARTIALS:
        return f"sum of {n} cotangents: more than {MAX_PARTIALS}"

    def split(*terms: Array) -> tuple[None, list[Array]]:
        return None, [lax.convert_element_type(t, widened(t.dtype)) for t in terms]

    return Cut(n, split)


def _conv_shape(params: Params, lhs: Any, rhs: Any) -> tuple[int, ...]:
    """Shape of a convolution's result."""
    bind = functools.partial(lax.conv_general_dilated_p.bind, **params)
    return jax.eval_shape(bind, lhs, rhs).shape


def _product_pieces(spec: ReductionOrder, terms: int, outputs: int) -> int:
    """Pieces of a matrix product: short ones only where outputs are few."""
    if outputs <= FEW_OUTPUTS:
        return min(terms, spec.partials)
    return piece_count(spec, terms)


def _is_everywhere(
    params: Params, lhs: Any, rhs: Any, out: Sequence[int], k: int, n: int
) -> bool:
    """Whether each of n pieces of window axis k holds a term of every output.

    The taps of a piece lie one step apart. They miss the input only where all of them
    are beyond its border, which the first and the last output decide, or where the
    input is shorter than the step.
    """
    numbers = params["dimension_numbers"]
    window = rhs.shape[numbers.rhs_spec[2 + k]]
    size = lhs.shape[numbers.lhs_spec[2 + k]]
    step, (low, _) = params["rhs_dilation"][k], params["padding"][k]
    if window < n or params["lhs_dilation"][k] != 1 or size < step:
        return False
    final = (out[numbers.out_spec[2 + k]] - 1) * params["window_strides"][k] - low
    edges = bounds(window, n)
    return all(
        (stop - 1) * step - low >= 0 and final + start * step < size
        for start, stop in edges
    )


def _too_few(terms: int) -> NoOrder:
    return NoOrder(f"terms: {terms}, fewer than three, and addition commutes")


def _position(sizes: Sequence[int], n: int) -> int:
    """The first axis that holds n pieces, for locality; else the longest."""
    for position, size in enumerate(sizes):
        if size >= n:
            return position
    return max(range(len(sizes)), key=lambda i: sizes[i])


def _cut_axes(
    sizes: Sequence[int], n: int, first: Collection[int] = ()
) -> list[tuple[tuple[int, int], ...]]:
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
    pieces: list[tuple[tuple[int, int], ...]] = [()]
    for size, count in zip(sizes, counts, strict=True):
        pieces = [(*p, edge) for p in pieces for edge in bounds(size, count)]
    return pieces


def _after(d: int, axis: int) -> int:
    """Where axis d is once `axis` is split in two; the second half for `axis`."""
    return d + (d >= axis)


def _moved(d: int, axis: int) -> int:
    return d + (d > axis)


def _merge_axes(x: Array, axes: Sequence[int]) -> tuple[Array, tuple[int, ...]]:
    """Move `axes` to the end, in their order, and make them one."""
    kept = [d for d in range(x.ndim) if d not in axes]
    x = lax.transpose(x, (*kept, *axes))
    x = lax.reshape(x, (*x.shape[: len(kept)], math.prod(x.shape[len(kept) :])))
    return x, (len(kept),)


def _slice_axes(
    x: Array, axes: Sequence[int], piece: Sequence[tuple[int, int]]
) -> Array:
    """`x` from start to stop along each of the axes."""
    for axis, (start, stop) in zip(axes, piece, strict=True):
        x = lax.slice_in_dim(x, start, stop, axis=axis)
    return x


def _pad_end(x: Array, axis: int, count: int) -> Array:
    if count == 0:
        return x
    config = [(0, count if d == axis else 0, 0) for d in range(x.ndim)]
    return lax.pad(x, np.zeros((), x.dtype), config)


def _unstack(x: Array, axis: int = 0) -> list[Array]:
    return [lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis])]


def _slice_groups(x: Array, axis: int, groups: int, start: int, stop: int) -> Array:
    """Features [start, stop) of each group of features."""
    if groups == 1:
        return lax.slice_in_dim(x, start, stop, axis=axis)
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    x = lax.reshape(x, (*before, groups, x.shape[axis] // groups, *after))
    x = lax.slice_in_dim(x, start, stop, axis=axis + 1)
    return lax.reshape(x, (*before, groups * (stop - start), *after))


def _dot_type(params: Params, lhs: Any, rhs: Any) -> Any:
    return params["preferred_element_type"] or jnp.result_type(lhs, rhs)


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
