"""Cuts scatter-adds into partial sums (`partials` has the other reductions)."""

import functools
import math
from collections.abc import Sequence

import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise.order.partials import Coin, Cut, LeftAlone, Sums, bounds, widen
from prednet_jax.noise.order.permutations import piece_count, widened
from prednet_jax.noise.rounding import error_free
from prednet_jax.noise.specs import ReductionOrder
from prednet_jax.noise.types import Aval, Params

# The most updates, times the cells (at least `SCATTER_STEP`), whose loss in a chain of
# additions is computed. Each update is a step of a loop, which copies all cells.
SCATTER_WORK, SCATTER_STEP = 2**23, 1024


def cut_scatter_add(
    spec: ReductionOrder, params: Params, operand: Aval, indices: Aval, updates: Aval
) -> Cut | LeftAlone:
    """Cuts a scatter-add into pieces of the updates, each added up from zero."""
    numbers = params["dimension_numbers"]
    batching = numbers.scatter_indices_batching_dims
    # Axes of the indices along which updates may collide, and axes of the updates.
    free = [d for d in range(len(indices.shape) - 1) if d not in batching]
    scattered = _scattered(numbers, updates)
    count = math.prod(indices.shape[d] for d in free)
    if params["unique_indices"]:
        return LeftAlone("unique indices: one update at most for a cell", harmless=True)
    if count < 2:
        return LeftAlone("one update at most for a cell", harmless=True)
    axis = max(free, key=lambda d: indices.shape[d])
    n = piece_count(spec, indices.shape[axis])
    is_short = count * max(math.prod(operand.shape), SCATTER_STEP) <= SCATTER_WORK
    if spec.chain == "terms" and not is_short:
        # Three pieces of a few terms often add to one number in every order.
        n = min(spec.partials, indices.shape[axis])

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

    def lost(zero: Array, coin: Coin, *operands: Array) -> Array:
        return _lost(numbers, params["mode"], free, zero, coin, *operands)

    return Cut(n, split, indices.shape[axis], lost=lost if is_short else None)


def _lost(
    numbers: lax.ScatterDimensionNumbers,
    mode: lax.GatherScatterMode,
    free: Sequence[int],
    zero: Array,
    coin: Coin,
    x: Array,
    index: Array,
    update: Array,
) -> Array:
    """Returns what a chain in a drawn order loses more than one in the given order.

    Args:
        numbers: the dimension numbers of the scatter.
        mode: what it does with updates outside of `x`.
        free: the axes of `index` along which updates may collide.
        zero: `error_free.run_time_zero`.
        coin: draws the order.
        x: the cells.
        index: where the updates are added.
        update: what is added, with the axes that `numbers` names.
    """
    sizes = [index.shape[d] for d in free]
    count, scattered = math.prod(sizes), _scattered(numbers, update)
    add = functools.partial(lax.scatter_add, dimension_numbers=numbers, mode=mode)

    def slice_of(x: Array, axes: Sequence[int], at: Sequence[Array]) -> Array:
        starts = dict(zip(axes, at, strict=True))
        return lax.dynamic_slice(
            x,
            [starts.get(d, jnp.int32(0)) for d in range(x.ndim)],
            [1 if d in axes else size for d, size in enumerate(x.shape)],
        )

    def add_one(number: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        sums, errors = state
        at = [k.astype(jnp.int32) for k in jnp.unravel_index(number, sizes)]
        cells = slice_of(index, free, at)
        term = slice_of(update, [scattered[d] for d in free], at)
        term = error_free.guard(widen(term), zero)
        before = lax.gather(sums, cells, *_gathering(numbers, term), mode=mode)
        error = error_free.two_sum(error_free.guard(before, zero), term)[1]
        return add(sums, cells, term), add(errors, cells, -error)

    def lost_in(order: Array) -> Array:
        def body(i: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            return add_one(order[i], state)

        state = widen(x), jnp.zeros(x.shape, widened(x.dtype))
        return lax.fori_loop(np.int32(0), np.int32(count), body, state)[1]

    # XLA adds the updates in their order, so that its sum has that loss. A cell may
    # have few terms, all in one piece: any order is drawn.
    powers = 2 ** np.arange(24, dtype=np.int32)[:, None]
    drawn = jnp.sum(jnp.where(coin((24, count)), powers, np.int32(0)), 0)
    return lost_in(jnp.argsort(drawn)) - lost_in(lax.iota(jnp.int32, count))


def _scattered(numbers: lax.ScatterDimensionNumbers, update: Aval | Array) -> list[int]:
    """Returns the axes of the updates that are not axes of the cells they change."""
    rank = len(update.shape)
    return [d for d in range(rank) if d not in numbers.update_window_dims]


def _gathering(
    numbers: lax.ScatterDimensionNumbers, update: Array
) -> tuple[lax.GatherDimensionNumbers, list[int]]:
    """Returns the dimension numbers and sizes that gather what a scatter would change.

    The result has the shape of the update.
    """
    single = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window = [update.shape[d] for d in numbers.update_window_dims]
    rank, sizes = len(single) + len(window), iter(window)
    return lax.GatherDimensionNumbers(
        offset_dims=tuple(numbers.update_window_dims),
        collapsed_slice_dims=tuple(numbers.inserted_window_dims),
        start_index_map=tuple(numbers.scatter_dims_to_operand_dims),
        operand_batching_dims=tuple(numbers.operand_batching_dims),
        start_indices_batching_dims=tuple(numbers.scatter_indices_batching_dims),
    ), [1 if d in single else next(sizes) for d in range(rank)]


def cut_select_and_scatter_add(
    spec: ReductionOrder, params: Params, source: Aval, operand: Aval
) -> Cut | LeftAlone:
    """Cuts a select_and_scatter_add into classes of windows that do not overlap."""
    window, strides = params["window_dimensions"], params["window_strides"]
    axes = zip(window, strides, source.shape, strict=True)
    overlap = [min(-(-w // s), size) for w, s, size in axes]
    classes = math.prod(overlap)
    if classes < 3:
        reason = f"{classes} windows at most meet in a cell: addition commutes"
        return LeftAlone(reason, harmless=True)
    n = min(classes, spec.partials)

    def split(source: Array, operand: Array) -> Sums:
        label = jnp.zeros(source.shape, jnp.int32)
        for d, size in enumerate(overlap):
            index = lax.broadcasted_iota(jnp.int32, source.shape, d)
            label = label * np.int32(size) + index % np.int32(size)
        label = label % np.int32(n)
        zero = jnp.zeros(source.shape, source.dtype)
        parts = [
            lax.select_and_scatter_add_p.bind(
                lax.select(label == np.int32(i), source, zero), operand, **params
            )
            for i in range(n)
        ]
        return None, [widen(p) for p in parts]

    return Cut(n, split, classes)
