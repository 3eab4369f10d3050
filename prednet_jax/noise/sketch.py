"""A large array in few numbers: a count sketch, and a hash of the bits.

`COLUMNS` sums of the elements with random signs. The sketch s(x) is linear and
E |s(x)|^2 = |x|^2 (M. Charikar, K. Chen & M. Farach-Colton, "Finding frequent items in
data streams", ICALP 2002): the distance of two values that were never on one machine is
|s(x) - s(y)|, to within 9 % (standard deviation); no single element can hide.
"""

from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import random_bits

COLUMNS = 64
# Masks of -1e30 would drown all else: such numbers count as infinite.
HUGE = 1e18


def numbers(x: Any) -> Array:
    """Returns a value as an array of real numbers of a type that NumPy has too."""
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag], -1)
    return x


def _as_words(x: Array) -> Array:
    """Bits as uint32 [n], in two words where a number has 64; narrow types widened."""
    flat = jnp.ravel(x)
    if flat.dtype.itemsize < 4 or flat.dtype == np.bool_:
        wide = "float32" if jnp.issubdtype(flat.dtype, jnp.inexact) else "int32"
        flat = lax.convert_element_type(flat, wide)
    return jnp.ravel(lax.bitcast_convert_type(flat, jnp.uint32))


def classes(x: Any) -> Any:
    """0 of bounded numbers; 1 of those below -`HUGE`, 2^10 of NaN, 2^20 above `HUGE`.

    So a sum counts the three kinds, up to 1023 of a kind.
    """
    kinds = x <= -HUGE, x != x, x >= HUGE
    low, nan, high = (kind.astype(np.int32) for kind in kinds)
    return low + (nan << 10) + (high << 20)


# Traced once for each shape and type.
@jax.jit
def digest(x: Array) -> list[Array]:
    """Returns a large value of real numbers in few.

    For each of `COLUMNS` columns of the flat array: a hash, the signed sum, the sum of
    squares, the largest magnitude, the unbounded elements (see `classes`).
    """
    kind, rows = np.dtype(x.dtype), -(-x.size // COLUMNS)
    wide = np.dtype(f"float{64 if kind.itemsize > 4 and kind.kind in 'fiu' else 32}")

    def table(flat: Array) -> Array:
        return jnp.pad(flat, (0, rows * COLUMNS - x.size)).reshape(rows, COLUMNS)

    number = random_bits.mix(lax.iota(jnp.uint32, rows * COLUMNS))
    number = number.reshape(rows, COLUMNS)
    words = _as_words(x).reshape(x.size, -1)
    hashed = number
    for i in range(words.shape[1]):
        hashed = random_bits.mix(hashed ^ table(words[:, i]))
    numbers = lax.convert_element_type(table(jnp.ravel(x)), wide)
    bounded = jnp.abs(numbers) < HUGE
    tame = jnp.where(bounded, numbers, 0)
    signed = jnp.where(number >> np.uint32(31) == 0, tame, -tame)
    return lax.reduce(
        [hashed, signed, tame * tame, jnp.abs(tame), classes(numbers)],
        [np.uint32(0), *[np.zeros((), wide)] * 3, np.int32(0)],
        lambda a, b: [
            *(p + q for p, q in zip(a[:3], b[:3], strict=True)),
            jnp.maximum(a[3], b[3]),
            a[4] + b[4],
        ],
        (0,),
    )


digests = jax.jit(jax.vmap(digest))
