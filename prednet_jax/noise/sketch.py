"""Summarizes a large array: a count sketch, a sample, and a hash of the bits.

The sketch s(x) consists of `COLUMNS` sums of the elements with random signs. It is
linear and E |s(x)|^2 = |x|^2 (M. Charikar, K. Chen & M. Farach-Colton, "Finding
frequent items in data streams", ICALP 2002). So the distance of two values on different
machines is |s(x) - s(y)|, to within 9 % (standard deviation), and a difference in a
single element always shows, unless it is far smaller than the others. Errors in small
elements show in the sample, of which each element is known.
"""

import functools
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import random_bits

COLUMNS = 64
# Masks of -1e30 would dominate the sums: such numbers count as infinite.
HUGE = 1e18


def numbers(x: Array) -> Array:
    """Converts a value to an array of real numbers of a type that NumPy has too."""
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag], -1)
    return x


def _as_words(x: Array) -> Array:
    """Returns the bits as uint32 [n]: two words for 64 bits, narrow types widened."""
    flat = jnp.ravel(x)
    if flat.dtype.itemsize < 4 or flat.dtype == np.bool_:
        wide = "float32" if jnp.issubdtype(flat.dtype, jnp.inexact) else "int32"
        flat = lax.convert_element_type(flat, wide)
    return jnp.ravel(lax.bitcast_convert_type(flat, jnp.uint32))


def _wide(x: Array) -> Array:
    """Returns an array in float64 if its type has 64 bits, else in float32."""
    kind = np.dtype(x.dtype)
    is_wide = kind.itemsize > 4 and kind.kind in "fiu"
    return lax.convert_element_type(x, np.dtype(f"float{64 if is_wide else 32}"))


def _tame(x: Array) -> Array:
    """Returns an array with 0 in the place of NaN and of numbers of `HUGE` or more."""
    return jnp.where(jnp.abs(x) < HUGE, x, 0)


def classes(x: Any) -> Any:
    """Returns 0 for a bounded number, 1 below -`HUGE`, 2^10 for NaN, 2^20 above `HUGE`.

    So a sum counts the three kinds, up to 1023 of each.
    """
    kinds = x <= -HUGE, x != x, x >= HUGE
    low, nan, high = (kind.astype(np.int32) for kind in kinds)
    return low + (nan << 10) + (high << 20)


def sampled_positions(size: int, count: int) -> np.ndarray:
    """Returns the positions of a sample: a random one in each of `count` parts.

    NumPy does not change the numbers of this generator, so that recordings of other
    machines have the same positions.
    """
    within = np.random.PCG64(0).random_raw(count) / 2.0**64
    return ((np.arange(count) + within) * size / count).astype(int)


# Traced once for each shape and type.
@jax.jit
def digest(x: Array) -> list[Array]:
    """Summarizes a large array of real numbers.

    The result has, for each of `COLUMNS` columns of the flat array: a hash, the signed
    sum, the sum of squares, the largest magnitude, and a count by `classes`.
    """
    kind, rows = np.dtype(x.dtype), -(-x.size // COLUMNS)

    def table(flat: Array) -> Array:
        return jnp.pad(flat, (0, rows * COLUMNS - x.size)).reshape(rows, COLUMNS)

    number = random_bits.mix(lax.iota(jnp.uint32, rows * COLUMNS))
    number = number.reshape(rows, COLUMNS)
    words = _as_words(x).reshape(x.size, 1 + (kind.itemsize > 4))
    hashed = number
    for i in range(words.shape[1]):
        hashed = random_bits.mix(hashed ^ table(words[:, i]))
    numbers = _wide(table(jnp.ravel(x)))
    tame = _tame(numbers)
    signed = jnp.where(number >> np.uint32(31) == 0, tame, -tame)
    return lax.reduce(
        [hashed, signed, tame * tame, jnp.abs(tame), classes(numbers)],
        [np.uint32(0), *[np.zeros((), numbers.dtype)] * 3, np.int32(0)],
        lambda a, b: [
            *(p + q for p, q in zip(a[:3], b[:3], strict=True)),
            jnp.maximum(a[3], b[3]),
            a[4] + b[4],
        ],
        (0,),
    )


def summary(x: Array, count: int, of_complex: bool = False) -> list[Array]:
    """Returns the `digest` of an array that is not empty, and a sample of its elements.

    Of complex numbers, whose parts are the last axis, it also returns the other part of
    each element of the sample. Unbounded elements are 0.
    """
    positions = sampled_positions(x.size, count)
    sampled = [positions, positions ^ 1] if of_complex else [positions]
    return [*digest(x), *(_tame(_wide(jnp.ravel(x)[at])) for at in sampled)]


@functools.partial(jax.jit, static_argnums=(1, 2))
def summaries(x: Array, count: int, of_complex: bool = False) -> list[Array]:
    """Returns the `summary` of each row of an array."""
    of_row = functools.partial(summary, count=count, of_complex=of_complex)
    return jax.vmap(of_row)(x)
