"""Adds terms in random order: permutations by masked selections.

docs/noise/noises.md ("Reduction order") defines the sum of n partial sums and bounds
its error. All n! permutations are equally likely. As addition commutes, they give n!/2
different trees.

Three or four partial sums are selected by the number of their permutation, uniform to
24 2^-32. For more, every output (or tile) draws n random 32-bit keys, and the place of
a partial sum is the number of smaller keys. For few outputs these are counted, which
takes few operations to compile and the square of n to run. For many, Batcher's
merge-exchange network (Knuth, The Art of Computer Programming 3, 5.2.2, algorithm M)
sorts the keys; the outcomes of its comparisons, packed into words, are masked swaps of
the partial sums, which XLA fuses with the additions. Two keys are equal with
probability below n^2 2^-33, the only bias.
"""

import functools
import math
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import random_bits
from prednet_jax.noise.rounding import error_free, steps
from prednet_jax.noise.specs import ReductionOrder

# Reductions with at most so many outputs take little time and long to compile.
FEW_OUTPUTS = 1024
_WORD = 32  # exchanges packed into one unsigned word


def piece_count(spec: ReductionOrder, terms: int) -> int:
    """Returns the number of pieces of a reduction; fewer than 3 terms are not cut.

    It is `spec.partials`, or 3 if its pieces would be shorter than `spec.shortest`.
    (Numbers in between would each need a separate draw.)
    """
    n = min(terms, spec.partials)
    return n if n * spec.shortest <= terms else min(n, 3)


@functools.cache
def network(n: int) -> tuple[tuple[int, int], ...]:
    """Returns Batcher's exchanges (i, j), i < j, that sort n elements, in order."""
    exchanges = []
    t = max(n - 1, 1).bit_length()
    p = 1 << (t - 1)
    while p > 0:
        q, r, d = 1 << (t - 1), 0, p
        while True:
            exchanges += [(i, i + d) for i in range(n - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q >> 1, p
        p >>= 1
    return tuple(exchanges)


def draw_orders(
    words: Array,
    shape: Sequence[int],
    n: int,
    salt: Sequence[int],
    outputs: int = FEW_OUTPUTS,
) -> Array:
    """Draws a uniform permutation of n partial sums for each element of `shape`.

    The result is uint32 [k, *shape]: for three or four partial sums the number of the
    permutation (k = 1), else the place of each (k = n). If outputs are many, it is
    unequal random numbers in the places' order instead, which `encode` reads as well.
    """
    shape = tuple(shape)
    state = words ^ random_bits.unfolded(*random_bits.salt_words(salt))
    if n in (3, 4):
        random = random_bits.bits(state, (1, *shape))
        return random_bits.below(math.factorial(n), random)
    keys = random_bits.bits(state, (n, *shape))
    if outputs > FEW_OUTPUTS:
        return keys
    index = lax.iota(jnp.int32, n).reshape(n, *[1] * len(shape))
    # Of two equal keys the first comes first.
    tied = (keys == keys[:, None]) & (index < index[:, None])
    return jnp.sum((keys < keys[:, None]) | tied, 1, jnp.uint32)


def encode(orders: Array, n: int, outputs: int) -> Array:
    """Returns drawn orders as `permute` reads them for so many outputs.

    For five or more partial sums with many outputs they become the outcomes of the
    network's exchanges, 32 per word.
    """
    if n < 5 or outputs <= FEW_OUTPUTS:
        return orders
    keys, packed = list(orders), []
    for e, (i, j) in enumerate(network(n)):
        if e % _WORD == 0:
            packed.append(jnp.zeros(keys[0].shape, jnp.uint32))
        swap = lax.convert_element_type(keys[j] < keys[i], jnp.uint32)
        packed[-1] = packed[-1] | lax.shift_left(swap, np.uint32(e % _WORD))
        keys[i], keys[j] = lax.min(keys[i], keys[j]), lax.max(keys[i], keys[j])
    return jnp.stack(packed)


def permute(
    orders: Array, partial_sums: Sequence[Array], *, commuting: bool = False
) -> list[Array]:
    """Returns the partial sums in the order that `encode` gives, element by element.

    `commuting` states that the first two may come in either order.
    """
    x = list(partial_sums)
    if len(x) in (3, 4):
        number, last = orders[0], []
        if len(x) == 4:
            position, number = number // np.uint32(6), number % np.uint32(6)
            for i in range(3):
                swap = position == np.uint32(i)
                x[i], x[3] = lax.select(swap, x[3], x[i]), lax.select(swap, x[i], x[3])
            last = x[3:]
        return [*_permute_three(number, *x[:3], commuting=commuting), *last]
    if x[0].size > FEW_OUTPUTS:
        for e, (i, j) in enumerate(network(len(x))):
            mask = np.uint32(1 << (e % _WORD))
            swap = (orders[e // _WORD] & mask) != np.uint32(0)
            x[i], x[j] = lax.select(swap, x[j], x[i]), lax.select(swap, x[i], x[j])
        return x
    stacked = jnp.stack(x)
    positions = lax.iota(jnp.uint32, len(x)).reshape(len(x), *[1] * stacked.ndim)
    # All terms of a sum but one are zero, which changes only the sign of a zero.
    terms = jnp.where(orders == positions, stacked, jnp.zeros_like(stacked))
    return list(jnp.sum(terms, 1, stacked.dtype))


def _permute_three(
    number: Array, a: Array, b: Array, c: Array, *, commuting: bool
) -> list[Array]:
    """Returns three partial sums in the order of this number, 0 to 5."""
    # Half the number (0, 1 or 2) chooses the last; odd numbers exchange the others.
    a_last, c_last = number < np.uint32(2), number > np.uint32(3)
    first, second = lax.select(a_last, b, a), lax.select(c_last, b, c)
    last = lax.select(a_last, a, lax.select(c_last, c, b))
    if not commuting:
        odd = (number & np.uint32(1)) != np.uint32(0)
        both = lax.select(odd, second, first), lax.select(odd, first, second)
        first, second = both
    return [first, second, last]


def _table(shape: Sequence[int]) -> tuple[int, int]:
    """Returns the numbers of rows (all leading dimensions) and columns (the last)."""
    return int(np.prod(shape[:-1], dtype=np.int64)), shape[-1]


def tile_grid(shape: Sequence[int], granularity: str, tile: int) -> tuple[int, ...]:
    """Returns the shape of the array of orders for outputs of `shape`."""
    if granularity == "element":
        return tuple(shape)
    if granularity == "shared" or not shape:
        return ()
    rows, columns = _table(shape)
    return (-(-rows // tile), -(-columns // tile))


def spread(grid: Array, shape: Sequence[int], tile: int) -> Array:
    """Expands an array over the grid of tiles (or a scalar) to the outputs' shape."""
    if grid.shape == tuple(shape):
        return grid
    if grid.ndim == 0:
        return lax.broadcast(grid, tuple(shape))
    rows, columns = _table(shape)
    r, c = grid.shape
    wide = lax.broadcast_in_dim(grid, (r, tile, c, tile), (0, 2))
    wide = lax.reshape(wide, (r * tile, c * tile))
    return lax.reshape(wide[:rows, :columns], tuple(shape))


def randomly_ordered_sum(
    orders: Array,
    partial_sums: Sequence[Array],
    tile: int,
    initial: Array | None = None,
    kept: np.dtype | None = None,
) -> Array:
    """Adds partial sums in drawn orders, to `initial` if there is one.

    `orders` come from `draw_orders`, over the `tile_grid` of the outputs. Every partial
    sum and addition is rounded to the type `kept`, unless it is None.
    """
    shape, sums = partial_sums[0].shape, partial_sums
    add: Callable[[Array, Array], Array] = lax.add
    if kept is not None:
        rounded = rounding_to(kept)
        sums = [rounded(x) for x in partial_sums]

        def add(a: Array, b: Array) -> Array:
            return rounded(a + b)

    orders = encode(orders, len(sums), sums[0].size)
    spread_out = jax.vmap(lambda order: spread(order, shape, tile))(orders)
    ordered = permute(spread_out, sums, commuting=initial is None)
    return functools.reduce(add, ordered if initial is None else [initial, *ordered])


def chain_error(terms: Array, zero: Array, backward: Array) -> Array:
    """Returns what is lost where terms [n, ...] are added one after another.

    Each addition loses what its operands determine, found from sums of the terms before
    (`error_free.two_sum`) without a loop. Equal terms, and small ones after a large
    one, lose the same every time: more than any order of a few partial sums shows.

    Args:
        terms: float32, or wider.
        zero: `error_free.run_time_zero`.
        backward: bool [], whether the last term comes first.
    """
    return -jnp.sum(
        chain_errors(jnp.where(backward, jnp.flip(terms, 0), terms), zero), 0
    )


def chain_errors(terms: Array, zero: Array) -> Array:
    """Returns the rounding error of each addition of a chain, [n - 1, ...].

    What the chain has lost before moves its next sums: equal terms reach a power of two
    earlier or later, from which they lose another part.
    """
    terms = error_free.guard(terms, zero)
    before = error_free.guard(lax.cumsum(terms)[:-1], zero)
    errors = error_free.two_sum(before, terms[1:])[1]
    moved = error_free.guard(before - (lax.cumsum(errors) - errors), zero)
    return error_free.two_sum(moved, terms[1:])[1]


def rounding_to(kept: np.dtype) -> Callable[[Array], Array]:
    """Rounds float32 to a narrower type, and keeps it in float32.

    XLA may leave out a conversion there and back, so this is not one. Rounding twice,
    to float32 and to half its bits or fewer, is the same as rounding once.
    """
    name = {"bfloat16": "bf16", "float16": "fp16"}[kept.name]
    return functools.partial(steps.to_format, name)


def narrow_type(accumulate: str, types: Sequence[np.dtype]) -> np.dtype | None:
    """Returns the type to which `accumulate` rounds sums of these types, or None."""
    halves = [t for t in types if jnp.dtype(t) in (jnp.bfloat16, jnp.float16)]
    return jnp.dtype(halves[0]) if accumulate == "operand" and halves else None


def widened(dtype: np.dtype) -> np.dtype:
    """Returns the type in which partial sums of `dtype` are kept: float32, or wider."""
    narrow = jnp.dtype(dtype).itemsize <= 2 and jnp.issubdtype(dtype, jnp.floating)
    return jnp.dtype(jnp.float32) if narrow else jax.dtypes.canonicalize_dtype(dtype)
