"""Adds noise once to a whole tree of arrays: a gradient, or initial weights.

docs/noise/noises.md ("Noise on trees") defines both kinds. Source of `BitFlip`: C.
Summers & M. Dinneen, "Nondeterminism and instability in neural network optimization",
ICML 2021, section 5.
"""

import functools
import zlib
from typing import TypeVar

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import random_bits
from prednet_jax.noise.arguments import is_number
from prednet_jax.noise.errors import NoiseError, expect
from prednet_jax.noise.fusion import materialised
from prednet_jax.noise.rounding import error_free, steps
from prednet_jax.noise.rounding.error_free import format_of, from_bits, guard, to_bits
from prednet_jax.noise.specs import BitFlip, GradientGaussian, NoiseSpec, parts

Tree = TypeVar("Tree")


def perturb_tree(spec: NoiseSpec, key: Array, tree: Tree) -> Tree:
    """Returns a perturbed gradient or set of weights, with equal shapes and types.

    Args:
        spec: GradientGaussian and BitFlip parts act, in their order, whatever the tree
            represents (`specs.at` picks the parts of one site); others do nothing.
        key: typed or raw PRNG key; do not use it again.
        tree: pytree of arrays. Leaves that are not floating-point are unchanged.

    Raises:
        NoiseError: a leaf, an index or a bit of a BitFlip does not exist, or the tree
            has no floating-point element.
    """
    for path, x in jax.tree.leaves_with_path(tree):
        if not (isinstance(x, Array) or is_number(x)):
            name = f"tree{jax.tree_util.keystr(path)}"
            raise NoiseError(f"{name} is {type(x).__name__}: expected arrays")
    state = random_bits.words(key)
    for position, part in enumerate(parts(spec)):
        here = random_bits.fold(state, zlib.crc32(b"tree"), position)
        if isinstance(part, GradientGaussian):
            tree = _add_normal(part, here, tree)
        elif isinstance(part, BitFlip):
            tree = _flip(part, here, tree)
    return tree


def _floats(tree: object) -> dict[int, Array]:
    """Returns the floating-point leaves that have elements, by position."""
    leaves = enumerate(map(jnp.asarray, jax.tree.leaves(tree)))
    floats = {
        i: x for i, x in leaves if jnp.issubdtype(x.dtype, jnp.floating) and x.size
    }
    if not floats:
        raise NoiseError("tree has no floating-point element: expected at least one")
    return floats


def _replace(tree: Tree, new: dict[int, Array]) -> Tree:
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [new.get(i, x) for i, x in enumerate(leaves)])


# Compiled also in eager use: one kernel, with the bits that a compiled caller gets.
@functools.partial(jax.jit, static_argnums=0)
def _add_normal(spec: GradientGaussian, state: Array, tree: Tree) -> Tree:
    floats = _floats(tree)
    zero = error_free.run_time_zero(state)
    doubles = any(x.dtype == jnp.float64 for x in floats.values())
    wide = jnp.dtype(jnp.float64 if doubles else jnp.float32)
    # One vector, not a kernel for each leaf: inverting the normal distribution takes
    # long to compile. Computed once, not in each reader of the new gradient.
    flat = [jnp.ravel(lax.convert_element_type(x, wide)) for x in floats.values()]
    values = materialised(lax.concatenate(flat, 0))
    random = [random_bits.bits(state, (x.size,), i) for i, x in floats.items()]
    normal = random_bits.gauss(lax.concatenate(random, 0))
    normal = lax.convert_element_type(normal, wide)
    sigma = steps.rms(values, zero) * np.asarray(spec.scale, wide)
    noisy = materialised(values + guard(sigma * normal, zero))
    new, start = {}, 0
    for i, x in floats.items():
        leaf = lax.slice_in_dim(noisy, start, start + x.size)
        new[i] = lax.convert_element_type(lax.reshape(leaf, x.shape), x.dtype)
        start += x.size
    return _replace(tree, new)


@functools.partial(jax.jit, static_argnums=0)
def _flip(spec: BitFlip, state: Array, tree: Tree) -> Tree:
    """Flips one bit of a weight that is drawn among the normal numbers of the tree."""
    floats = _select(spec, tree)
    scores = {}
    for i, x in floats.items():
        fmt = format_of(x.dtype)
        uint = fmt.unsigned.type
        highest = 8 * x.dtype.itemsize - 1
        wanted = f"0 to {highest} for a weight of type {x.dtype}"
        expect(spec.bit <= highest, "bit", spec.bit, wanted)
        # A zero is drawn only if there is no other weight: with its lowest bits
        # flipped, it becomes a denormal number, which processors flush back to zero.
        normal = (to_bits(x) & uint(fmt.magnitude)) >= uint(fmt.smallest)
        first = lax.convert_element_type(normal, jnp.uint32) << np.uint32(31)
        random = random_bits.bits(state, x.shape, i) >> np.uint32(1)
        scores[i] = jnp.ravel(first | random)
    chosen = jnp.argmax(jnp.stack([jnp.max(s) for s in scores.values()]))
    new = {}
    for order, (i, x) in enumerate(floats.items()):
        uint = format_of(x.dtype).unsigned.type
        index = jnp.argmax(scores[i]) if spec.index is None else spec.index
        here = (jnp.arange(x.size) == index) & (chosen == order)
        mask = jnp.where(here, uint(1 << spec.bit), uint(0)).reshape(x.shape)
        new[i] = from_bits(to_bits(x) ^ mask, x.dtype)
    return _replace(tree, new)


def _select(spec: BitFlip, tree: object) -> dict[int, Array]:
    """Returns the leaves among which BitFlip draws."""
    floats = _floats(tree)
    if spec.leaf is None:
        return floats
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(tree)]
    matches = {i: x for i, x in floats.items() if spec.leaf in paths[i]}
    if len(matches) != 1:
        names = ", ".join(paths[i] for i in floats)
        raise NoiseError(
            f"leaf={spec.leaf!r} matches {len(matches)} leaves: expected a part of the "
            f"path of exactly one of {names}"
        )
    (leaf,) = matches.values()
    if spec.index is not None and spec.index >= leaf.size:
        raise NoiseError(f"index={spec.index!r}: expected 0 to {leaf.size - 1}")
    return matches
