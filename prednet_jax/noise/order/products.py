"""Cuts dots and convolutions into partial sums; see `partials`."""

import functools
import math
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise.order import permutations
from prednet_jax.noise.order.partials import (
    Coin,
    Cut,
    LeftAlone,
    Piece,
    Sums,
    after,
    bounds,
    cut_axes,
    stack_pieces,
    too_few,
    unstack,
)
from prednet_jax.noise.order.permutations import FEW_OUTPUTS, piece_count, widened
from prednet_jax.noise.specs import ReductionOrder
from prednet_jax.noise.types import Aval, Params

# The most terms of a matrix product, over all outputs, that are held at once.
HELD_TERMS = 1 << 18

# The most pieces of a convolution. More make the noise a little larger, and programs
# much longer: each piece has outputs, or slices of operands, to compile.
CONVOLUTION_PIECES = 4


def _pieces(spec: ReductionOrder, terms: int, outputs: int) -> int:
    """Returns the number of pieces of a matrix product.

    If outputs are few, it is all of them. Libraries split the contraction where there
    are too few outputs for all threads.
    """
    if outputs <= FEW_OUTPUTS:
        return min(terms, spec.partials)
    return piece_count(spec, terms)


def _kept_type(params: Params, lhs: Aval, rhs: Aval) -> np.dtype:
    """Returns the type in which the pieces of a product are kept."""
    return widened(params["preferred_element_type"] or jnp.result_type(lhs, rhs))


def cut_dot(
    spec: ReductionOrder, params: Params, lhs: Aval, rhs: Aval
) -> Cut | LeftAlone:
    """Cuts a dot_general: pieces of one contracted axis become a batch axis.

    If no contracted axis has three terms, all contracted axes are cut, with a product
    for each piece: two axes of two make four pieces, not three.
    """
    (lc, rc), (lb, rb) = params["dimension_numbers"]
    sizes = [lhs.shape[d] for d in lc]
    terms = math.prod(sizes)
    if terms < 3:
        return too_few(terms)
    batch = math.prod(lhs.shape[d] for d in lb)
    n = _pieces(spec, terms, lhs.size * rhs.size // max(1, terms**2 * batch))
    product = functools.partial(
        lax.dot_general,
        precision=params["precision"],
        preferred_element_type=_kept_type(params, lhs, rhs),
    )
    if max(sizes) < 3:
        pieces = cut_axes(sizes, n)

        def apart(a: Array, b: Array) -> Sums:
            numbers = params["dimension_numbers"]
            return None, [
                product(_slice_axes(a, lc, p), _slice_axes(b, rc, p), numbers)
                for p in pieces
            ]

        return Cut(len(pieces), apart, terms)
    # The first axis that holds n pieces, for locality; else the longest.
    longest = sizes.index(max(sizes))
    position = next((k for k, size in enumerate(sizes) if size >= n), longest)
    n = min(n, sizes[position])
    i, j = lc[position], rc[position]
    numbers = (
        (tuple(after(d, i) for d in lc), tuple(after(d, j) for d in rc)),
        ((i, *(after(d, i) for d in lb)), (j, *(after(d, j) for d in rb))),
    )

    def split(a: Array, b: Array) -> Sums:
        out = product(stack_pieces(a, i, n), stack_pieces(b, j, n), numbers)
        return None, unstack(out)

    def lost(zero: Array, coin: Coin, a: Array, b: Array) -> Array:
        sizes = product(jnp.abs(a), jnp.abs(b), params["dimension_numbers"])
        at = _samples(sizes.shape, terms)
        rows, columns = _rows_of(a, lc, lb), _rows_of(b, rc, rb)
        first, last = at[: rows.ndim - 1], (*at[: len(lb)], *at[rows.ndim - 1 :])
        pairs = ((rows, first), (columns, last))
        x, y = (jnp.reshape(r[i], (-1, terms)).astype(sizes.dtype) for r, i in pairs)
        return _spread_loss(x * y, sizes, zero, coin(()))

    return Cut(n, split, terms, lost=lost)


def _samples(shape: Sequence[int], terms: int) -> tuple[np.ndarray, ...]:
    """Returns the indices of outputs, as many as have `HELD_TERMS` terms together."""
    size = math.prod(shape)
    length = -(-size // max(1, HELD_TERMS // terms))
    samples = np.arange(0, size, length)
    middle = np.minimum(samples + length // 2, size - 1)
    return np.unravel_index(middle, shape) if shape else ()


def _spread_loss(terms: Array, sizes: Array, zero: Array, backward: Array) -> Array:
    """Returns what chains of additions lose, from a sample of the outputs.

    Args:
        terms: the terms of the sampled outputs, [samples, terms].
        sizes: the sum of the magnitudes of the terms, for all outputs.
        zero: as for `permutations.chain_error`.
        backward: as for `permutations.chain_error`.
    """
    loss = permutations.chain_error(terms.T, zero, backward)
    total = jnp.sum(jnp.abs(terms), 1)
    share = loss / jnp.where(total > 0, total, 1)
    length = -(-sizes.size // max(1, len(share)))
    every = jnp.broadcast_to(share[:, None], (len(share), length))
    return sizes * jnp.reshape(jnp.ravel(every)[: sizes.size], sizes.shape)


def _rows_of(x: Array, contracted: Sequence[int], shared: Sequence[int]) -> Array:
    """Returns an operand of a product with its terms as the last axis."""
    free = [d for d in range(x.ndim) if d not in (*contracted, *shared)]
    x = jnp.transpose(x, (*shared, *free, *contracted))
    return jnp.reshape(x, (*x.shape[: len(shared) + len(free)], -1))


def cut_conv(
    spec: ReductionOrder, params: Params, lhs: Aval, rhs: Aval
) -> Cut | LeftAlone:
    """Cuts a conv_general_dilated into pieces of the kernel, each with its padding."""
    numbers = params["dimension_numbers"]
    # Input features, window.
    axes = list(numbers.rhs_spec[1:])
    sizes = [rhs.shape[d] for d in axes]
    terms = math.prod(sizes)
    if terms < 3:
        return too_few(terms)
    bind = functools.partial(lax.conv_general_dilated_p.bind, **params)
    shape = jax.eval_shape(bind, lhs, rhs).shape
    convolve: Callable = functools.partial(
        lax.conv_general_dilated,
        **{k: params[k] for k in _OPTIONS},
        preferred_element_type=_kept_type(params, lhs, rhs),
    )

    def lost(zero: Array, coin: Coin, a: Array, b: Array) -> Array:
        sizes = convolve(jnp.abs(a), jnp.abs(b), padding=params["padding"])
        x, y = _sampled_windows(params, a, b, _samples(shape, terms))
        products = (x.astype(sizes.dtype) * y.astype(sizes.dtype)).reshape(-1, terms)
        return _spread_loss(products, sizes, zero, coin(()))

    most = min(spec.partials, CONVOLUTION_PIECES)
    row = _row_axis(params, lhs, rhs, shape) if most == CONVOLUTION_PIECES else None
    if row is not None:
        by_rows = functools.partial(_rows, convolve, params, row, shape)
        return Cut(most, by_rows, terms, lost=lost)
    n = min(_pieces(spec, terms, math.prod(shape)), most)
    # Features first, or a longer axis of the window (a filter gradient's is the map):
    # narrow pieces are slow. But a piece of the window may hold no term of an output,
    # beyond the border, between the zeros of a dilated map or at a kernel's own zeros,
    # and two pieces commute.
    window = range(len(axes) - 1)
    long = [1 + k for k in window if _meets(params, lhs, rhs, shape, k, n).all()]
    pieces = cut_axes(sizes, n, first=[0, *long])

    def split(a: Array, b: Array) -> Sums:
        """Computes one convolution for each piece of the kernel."""

        def part(piece: Piece) -> Array:
            padding = list(params["padding"])
            edges = zip(axes[1:], piece[1:], strict=True)
            for k, (d, (start, stop)) in enumerate(edges):
                (low, high), step = padding[k], params["rhs_dilation"][k]
                after = b.shape[d] - stop
                padding[k] = (low - start * step, high - after * step)
            x = _slice_groups(params, a, *piece[0])
            return convolve(x, _slice_axes(b, axes, piece), padding=padding)

        return None, [part(piece) for piece in pieces]

    return Cut(len(pieces), split, terms, lost=lost)


def _sampled_windows(
    params: Params, a: Array, b: Array, at: Sequence[np.ndarray]
) -> tuple[Array, Array]:
    """Returns the windows and kernels of some outputs, [samples, features, *window].

    `at` are the indices of the outputs, an array for each axis.
    """
    numbers = params["dimension_numbers"]
    around = zip(params["padding"], params["lhs_dilation"], strict=True)
    edges = [(0, 0, 0)] * 2 + [(low, high, step - 1) for (low, high), step in around]
    x = lax.pad(lax.transpose(a, numbers.lhs_spec), np.zeros((), a.dtype), edges)
    kernels = lax.transpose(b, numbers.rhs_spec)
    image, feature, *cells = (at[d] for d in numbers.out_spec)
    # Groups of features or of images belong to consecutive outputs.
    groups = params["feature_group_count"], params["batch_group_count"]
    of_features, of_images = (feature * n // len(kernels) for n in groups)
    image = image + of_images * (len(x) // groups[1])

    def axis(values: np.ndarray, k: int) -> np.ndarray:
        """Returns indices [samples, length] as axis k of the windows."""
        ones = [1] * (kernels.ndim - 1)
        return values.reshape(len(values), *ones[:k], -1, *ones[k + 1 :])

    features = kernels.shape[1]
    channels = of_features[:, None] * features + np.arange(features)
    steps = zip(cells, params["window_strides"], params["rhs_dilation"], strict=True)
    taps = [
        cell[:, None] * stride + np.arange(size) * step
        for (cell, stride, step), size in zip(steps, kernels.shape[2:], strict=True)
    ]
    every = [axis(index, k) for k, index in enumerate([channels, *taps])]
    return x[(axis(image[:, None], 0), *every)], kernels[feature]


_OPTIONS = (
    *("window_strides", "lhs_dilation", "rhs_dilation", "dimension_numbers"),
    *("feature_group_count", "batch_group_count", "precision"),
)


def _row_axis(params: Params, lhs: Aval, rhs: Aval, out: Sequence[int]) -> int | None:
    """Returns the axis of the window along which `_rows` cuts, or None."""
    numbers = params["dimension_numbers"]
    groups = params["feature_group_count"] * params["batch_group_count"]
    if groups > 1 or rhs.shape[numbers.rhs_spec[1]] < 2:
        return None
    for k, axis in enumerate(numbers.rhs_spec[2:]):
        extent = rhs.shape[axis] * params["rhs_dilation"][k]
        if params["window_strides"][k] == 1 and extent <= out[numbers.out_spec[2 + k]]:
            # Beyond the border an output has no terms. It needs both halves of the
            # middle rows, and the rows before them or after them.
            before, middle, after = _meets(params, lhs, rhs, out, k, 3)
            if (middle & (before | after)).all():
                return k
    return None


def _meets(
    params: Params, lhs: Aval, rhs: Aval, out: Sequence[int], k: int, n: int
) -> np.ndarray:
    """Returns where pieces of window axis k have terms, bool [n, outputs], if known."""
    numbers = params["dimension_numbers"]
    window = rhs.shape[numbers.rhs_spec[2 + k]]
    size = lhs.shape[numbers.lhs_spec[2 + k]]
    step, (low, _) = params["rhs_dilation"][k], params["padding"][k]
    first = np.arange(out[numbers.out_spec[2 + k]]) * params["window_strides"][k] - low
    # The taps of a piece lie one step apart. They miss the input only where all of them
    # are beyond its border, or where the input is shorter than the step.
    if window < n or params["lhs_dilation"][k] != 1 or size < step:
        return np.zeros((n, first.size), bool)
    return np.array(
        [
            (first + (stop - 1) * step >= 0) & (first + start * step < size)
            for start, stop in bounds(window, n)
        ]
    )


def _rows(
    convolve: Callable, params: Params, k: int, shape: Sequence[int], a: Array, b: Array
) -> Sums:
    """Computes all pieces as outputs of one convolution with a smaller window.

    The pieces are three groups of rows of the kernel, the middle one in two halves of
    the features. Each piece is a part of the features and of the rows of the result.
    """
    numbers, step = params["dimension_numbers"], params["rhs_dilation"][k]
    (outputs, inputs, *window), padding = numbers.rhs_spec, list(params["padding"])
    axis, width, features = window[k], b.shape[outputs], b.shape[inputs]
    before, middle, after = bounds(b.shape[axis], 3)
    length = max(stop - start for start, stop in (before, middle, after))
    half, every = features // 2, (0, features)
    halves = (middle, (0, half)), (middle, (half, features))
    pieces = ((before, every), *halves, (after, every))

    def kernel(rows: tuple[int, int], inside: tuple[int, int]) -> Array:
        config = [(0, 0, 0)] * b.ndim
        config[axis] = (0, length - (rows[1] - rows[0]), 0)
        config[inputs] = (inside[0], features - inside[1], 0)
        part = _slice_axes(b, (axis, inputs), (rows, inside))
        return lax.pad(part, np.zeros((), b.dtype), config)

    low, high = padding[k]
    padding[k] = (low, high + (after[0] + length - b.shape[axis]) * step)
    kernels = lax.concatenate([kernel(*piece) for piece in pieces], outputs)
    out = convolve(a, kernels, padding=padding)
    channels, row = numbers.out_spec[1], numbers.out_spec[2 + k]

    def part(i: int, start: int) -> Array:
        ends = (i * width, (i + 1) * width), (start, start + shape[row])
        return _slice_axes(out, (channels, row), ends)

    return None, [part(i, rows[0] * step) for i, (rows, _) in enumerate(pieces)]


def _slice_axes(x: Array, axes: Sequence[int], piece: Piece) -> Array:
    """Slices `x` from start to stop along each of the axes."""
    for axis, (start, stop) in zip(axes, piece, strict=True):
        x = lax.slice_in_dim(x, start, stop, axis=axis)
    return x


def _slice_groups(params: Params, x: Array, start: int, stop: int) -> Array:
    """Returns the features [start, stop) of each group of features."""
    axis = params["dimension_numbers"].lhs_spec[1]
    groups = params["feature_group_count"]
    if groups == 1:
        return lax.slice_in_dim(x, start, stop, axis=axis)
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    x = lax.reshape(x, (*before, groups, x.shape[axis] // groups, *after))
    x = lax.slice_in_dim(x, start, stop, axis=axis + 1)
    return lax.reshape(x, (*before, groups * (stop - start), *after))
