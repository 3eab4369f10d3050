"""Random bits for the elements of an array: from a key, or from the operands."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise.arithmetic import random_bits
from prednet_jax.noise.arithmetic.error_free import to_bits
from prednet_jax.noise.specs import Elementwise

FLOATS = ("float16", "bfloat16", "float32", "float64")


def is_float(x: Array) -> bool:
    """Whether an array is of a type that has noise, and not complex."""
    # By name: the types of PRNG keys are not NumPy's.
    return x.dtype.name in FLOATS


def salted(words: Array, salt: int, position: int) -> Array:
    """The words of one of several noises on one result."""
    return words ^ np.array(random_bits.salt_words((salt, position)), np.uint32)


def drawer(
    spec: Elementwise, name: str, arrays: tuple[Array, ...], state: Array
) -> Callable[[int], Array]:
    """`draw(i)`: the bits numbered i for each element of `arrays[0]`.

    Without `deterministic`, they are those of the state. With it, a hash of `name` and
    of the bits of all `arrays` that have its shape, or none: one operation and element,
    one result, wherever it stands and whatever the key. (The result of dot or conv
    stands for its operands.)
    """
    shape = arrays[0].shape
    if not spec.deterministic:
        # The pair keeps these salts apart from those of `salted`, also a pair, by
        # its second number.
        return lambda i: random_bits.bits(state, shape, (i, zlib.crc32(b"draw")))
    seed, tail = random_bits.salt_words(zlib.crc32(name.encode()))
    digest = jnp.full(shape, seed, jnp.uint32)
    for x in arrays:
        if is_float(x) and x.shape in ((), shape):
            for half in _halves(x):
                digest = random_bits.hash_counter(
                    digest ^ half, np.uint32(tail), np.uint32(seed)
                )

    def draw(i: int) -> Array:
        w0, w1 = random_bits.salt_words((i, seed))
        return random_bits.hash_counter(digest, np.uint32(w0), np.uint32(w1))

    return draw


def _halves(x: Array) -> tuple[Array, ...]:
    """The bits of `x` as one or two uint32 arrays."""
    b = to_bits(x)
    low = lax.convert_element_type(b, jnp.uint32)
    if b.dtype.itemsize <= 4:
        return (low,)
    return low, lax.convert_element_type(b >> np.uint64(32), jnp.uint32)
