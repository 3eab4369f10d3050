"""Sums over devices in the orders of rings and trees, or in a random order.

The terms of n devices are gathered; each device adds them as the collective would.
docs/noise/devices.md describes the orders, the rounding, and differences from NCCL.

- *ring* (NCCL, `src/device/all_reduce.h` and `reduce_scatter.h`, `runRing`): of n
  chunks, c starts at rank c + 1 and is added to by c + 2, ..., c + n (modulo n), so it
  ends where a reduce-scatter leaves it.
- *tree* (NCCL, `src/graph/trees.cc`, `ncclGetBtree` and `ncclGetDtree`; Sanders, Speck
  and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
  Parallel Computing 35, 2009): a rank adds its first child to itself, then its second.
  Half of the buffer goes over one binary tree, half over the mirrored one (shifted by
  a rank where n is odd). A reduce-scatter has no tree in NCCL and goes around the ring.
"""

import functools
import math
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import compat, random_bits
from prednet_jax.noise.order import partials, permutations
from prednet_jax.noise.order.partials import Cut, LeftAlone, Sums
from prednet_jax.noise.specs import MAX_PARTIALS, ReductionOrder
from prednet_jax.noise.types import Aval, Params


def cut_collective(spec: ReductionOrder, params: Params, x: Aval) -> Cut | LeftAlone:
    """Cuts a psum or reduce_scatter into one piece for each device of a group."""
    axes, groups = axes_of(params), params.get("axis_index_groups")
    scattered = params.get("scatter_dimension")
    drawn = spec.collectives is None
    if drawn and scattered is not None:
        reason = "each device holds a part of the sum; `collectives` gives it an order"
        return LeftAlone(reason)
    if not all(isinstance(axis, str) for axis in axes):
        return LeftAlone("sum over positional axes")
    if drawn and groups is not None:
        return LeftAlone("sum over groups of devices")
    count = math.prod(lax.axis_size(axis) for axis in axes)
    n = len(groups[0]) if groups else count
    if n < 3:
        return partials.too_few(n)
    if drawn and n > MAX_PARTIALS:
        return LeftAlone(f"sum over {n} devices: more than {MAX_PARTIALS}")

    def split(x: Array) -> Sums:
        return None, partials.unstack(gathered(partials.widen(x), axes, invariant=True))

    def total(words: Array, salt: Sequence[int], x: Array) -> Array:
        terms = gathered(x, axes, invariant=scattered is None)
        rank = lax.axis_index(axes)
        if groups:
            members = np.zeros((count, n), np.int32)
            for group in groups:
                members[list(group)] = group
            position = np.argmax(members == np.arange(count)[:, None], axis=1)
            terms = jnp.take(terms, jnp.asarray(members)[rank], axis=0)
            rank = jnp.asarray(position)[rank]
        if scattered is not None:
            size = x.shape[scattered] // n
            terms = lax.dynamic_slice_in_dim(terms, rank * size, size, scattered + 1)
            if not params["tiled"]:
                terms = lax.squeeze(terms, (scattered + 1,))
        chunk = None if scattered is None else rank
        return add_terms(spec, terms, words, salt, chunk)

    return Cut(n, split, n, None if drawn else total)


def cut_gathered(
    spec: ReductionOrder, axis: int, axes: Sequence[int], x: Aval
) -> Cut | LeftAlone:
    """Cuts a reduce_sum over the axis of an all_gather: one piece per device."""
    n = x.shape[axis]
    if n < 3:
        return partials.too_few(n)
    others = tuple(d - (d > axis) + 1 for d in axes if d != axis)

    def total(words: Array, salt: Sequence[int], x: Array) -> Array:
        terms = jnp.moveaxis(partials.widen(x), axis, 0)
        terms = lax.reduce(terms, np.zeros((), terms.dtype), lax.add, others)
        return add_terms(spec, lax.convert_element_type(terms, x.dtype), words, salt)

    return Cut(n, lambda x: (None, []), n, total)


def axes_of(params: Params) -> tuple:
    """Returns the mesh axes that a collective names."""
    names = params.get("axes", params.get("axis_name", ()))
    return tuple(names) if isinstance(names, tuple | list) else (names,)


def gathered(x: Array, axes: Sequence[str], *, invariant: bool) -> Array:
    """Returns all devices' values, [n, *shape], ordered by `lax.axis_index(axes)`.

    `invariant` marks the result's type as equal on all devices.
    """
    gather: Callable = lax.all_gather
    if invariant and compat.varying_axes(x):
        gather = compat.all_gather_invariant
    terms = x
    for axis in reversed(axes):
        terms = gather(terms, axis)
    return lax.reshape(terms, (terms.size // max(x.size, 1), *x.shape))


def add_terms(
    spec: ReductionOrder,
    terms: Array,
    words: Array,
    salt: Sequence[int],
    chunk: Array | None = None,
) -> Array:
    """Adds the terms [n, *shape] of n devices in the order of `spec.collectives`.

    `chunk` is the local chunk of a scattered sum. It defaults to None: all chunks. The
    result may be in a wider type.
    """
    n, shape, kind = terms.shape[0], terms.shape[1:], spec.collectives
    kept = permutations.narrow_type("operand", [terms.dtype])
    add: Callable[[Array, Array], Array] = lax.add
    # XLA's CPU keeps a sum of bfloat16 in float32, and rounds each of float16.
    if kept is not None and (kind != "sequential" or kept == np.float16):
        rounded = permutations.rounding_to(kept)

        def add(x: Array, y: Array) -> Array:
            return rounded(x + y)

    terms = partials.widen(terms)
    if kind == "random":
        grid = permutations.tile_grid(shape, spec.granularity, spec.tile)
        order = jnp.argsort(random_bits.bits(words, (n, *grid), salt), axis=0)
        spread = functools.partial(permutations.spread, shape=shape, tile=spec.tile)
        places = jax.vmap(spread)(order)
        return _in_sequence(jnp.take_along_axis(terms, places, axis=0), add)
    if kind == "sequential":
        return _in_sequence(terms, add)
    if chunk is not None:
        turn = (chunk + 1 + lax.iota(jnp.int32, n)) % np.int32(n)
        return _in_sequence(jnp.take(terms, turn, axis=0), add)
    parts = n if kind == "ring" else 2
    size = math.prod(shape)
    flat = lax.reshape(terms, (n, size))
    flat = jnp.pad(flat, ((0, 0), (0, -size % parts)))
    blocks = lax.reshape(flat, (n, parts, flat.shape[1] // parts))
    if kind == "ring":
        steps, chunks = np.arange(n)[:, None], np.arange(n)[None]
        sums = _in_sequence(blocks[(chunks + 1 + steps) % n, chunks], add)
    else:
        second = blocks[:, 1]
        second = jnp.roll(second, -1, axis=0) if n % 2 else second[::-1]
        sums = _over_tree(jnp.stack([blocks[:, 0], second], axis=1), add)
    return lax.reshape(lax.reshape(sums, (flat.shape[1],))[:size], shape)


def _in_sequence(terms: Array, add: Callable[[Array, Array], Array]) -> Array:
    """Adds ((t_0 + t_1) + t_2) + ... in a loop, whose program does not grow with n."""
    return lax.scan(lambda sum, x: (add(sum, x), None), terms[0], terms[1:])[0]


def _over_tree(terms: Array, add: Callable[[Array, Array], Array]) -> Array:
    """Returns the sum at rank 0 of NCCL's binary tree, level by level from the leaves.

    A rank whose lowest bit is b has the children rank - b/2 and rank + b/2; where the
    second is out of range, the nearest that the tree has, if any.
    """
    n, bit = terms.shape[0], 2
    while bit < n:
        ranks = np.arange(bit, n, 2 * bit)
        sums = add(terms[ranks], terms[ranks - bit // 2])
        second = [_second_child(rank, bit, n) for rank in ranks.tolist()]
        both = np.flatnonzero(second)
        sums = sums.at[both].set(add(sums[both], terms[np.array(second)[both]]))
        terms = terms.at[ranks].set(sums)
        bit *= 2
    return add(terms[0], terms[bit // 2])


def _second_child(rank: int, bit: int, n: int) -> int:
    """Returns the second child of a rank with lowest bit `bit`, or 0 without one."""
    step = bit // 2
    while step and rank + step >= n:
        step //= 2
    return rank + step if step else 0
