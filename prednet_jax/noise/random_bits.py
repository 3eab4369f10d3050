"""Generates random bits cheaply from counters, for noise inside compiled programs.

Threefry costs 20 to 40 times more on a CPU. Noise needs bits that are balanced,
uncorrelated between neighbouring counters, keys and salts, and that fuse with their
consumer. Do not use them for cryptography, initial weights or data.

The state is two 32-bit words. Element `i` of the draw numbered `salt` is

    x = i + (w0 xor s0)
    x = (x xor x >> 16) A                  A = 0x7FEB352D
    x = (x xor x >> 15) + (w1 xor s1)
    x = x B,  x = x xor x >> 16            B = 0x846CA68B

with `(s0, s1)` a hash of `salt` made while tracing. The multipliers and shifts come
from `lowbias32`, a 32-bit finaliser of small avalanche bias found by search (C.
Wellons, "Prospecting for hash functions", 2018). For fixed words the map from `i` is a
bijection: within one draw no value repeats.

Many draws of one state come from a pool, which has two such words (r, s) for each
element: draw number k is `a_k r + s` modulo 2^32, with odd factors a_k from a hash of
its salt. The upper bits of any two draws are independent (J. Carter and M. Wegman,
"Universal classes of hash functions", 1979), and every element has 64 bits of state.
The draw takes two operations instead of ten, and the program has fewer to compile.
"""

import hashlib
import math
import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from jax.typing import ArrayLike

from prednet_jax.noise import compat
from prednet_jax.noise.errors import NoiseError, expect
from prednet_jax.noise.types import Values

_GOLDEN = 0x9E3779B9
_A = 0x7FEB352D
_B = 0x846CA68B
_MASK = 0xFFFFFFFF

Salt = int | Sequence[int]
# Two uint32 arrays of one length: two random words for each element of an array.
Pool = tuple[Array, Array]


def words(key: Array) -> Array:
    """Returns the generator's two words, uint32 [2]; nearby keys give unrelated words.

    The key is typed, of any implementation, or raw data, uint32 [n]. Anything else
    raises a NoiseError.
    """
    check(key)
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    start = jnp.array([_GOLDEN, _B], jnp.uint32)
    return fold(start, *(key[i] for i in range(key.size)))


def check(key: Any) -> None:
    """Raises a NoiseError unless `key` is one typed PRNG key or raw key data."""
    kind = getattr(key, "dtype", None)
    received = f"key of type {type(key).__name__}"
    if kind is not None:
        typed = jnp.issubdtype(kind, jax.dtypes.prng_key) and key.ndim == 0
        if typed or (kind == jnp.uint32 and key.ndim == 1 and key.size):
            return
        received = f"key of type {kind} and shape {key.shape}"
    raise NoiseError(
        f"{received}: expected one PRNG key, such as jax.random.key(0), or its data, "
        "uint32 [n]; the arguments of the function come after it"
    )


def split(key: Array, count: int) -> Array:
    """Splits a typed or raw key into `count` keys; do not use `key` again."""
    check(key)
    return jax.random.split(key, count)


def each(key: Array, count: int) -> Iterator[Array]:
    """Yields the keys of `split`; none is cut out by a program to be compiled."""
    keys = split(key, count)
    if not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
        yield from map(jnp.asarray, jax.device_get(keys))
        return
    for data in jax.device_get(jax.random.key_data(keys)):
        yield jax.random.wrap_key_data(data, impl=jax.random.key_impl(keys))


def fold(state: Array, *data: int | Array) -> Array:
    """Returns the words of a substream, uint32 [2], one for each sequence of integers.

    Python integers are taken modulo 2^32; `fold(w, a, b)` is `fold(fold(w, a), b)`.
    """
    w0, w1 = state[0], state[1]
    for item in data:
        if isinstance(item, int):
            d = jnp.asarray(item & _MASK, jnp.uint32)
        else:
            d = lax.convert_element_type(item, jnp.uint32)
        w0 = mix(w0 ^ (d * np.uint32(_GOLDEN) + np.uint32(_A)))
        w1 = mix(w1 + w0 + lax.shift_left(d, np.uint32(16)) + (d >> np.uint32(16)))
        w0 = w0 + w1
    return lax.concatenate([w0[None], w1[None]], 0)


def mix(x: Array) -> Array:
    """Returns lowbias32(x), a bijection of 32 bits."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(_A)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(_B)
    return x ^ (x >> np.uint32(16))


def salt_words(salt: Salt) -> tuple[int, int]:
    """Returns the two words of a salt, integers modulo 2^32, hashed in Python."""
    s0, s1 = _B, _GOLDEN
    for part in (salt,) if isinstance(salt, int) else tuple(salt):
        s0 = _mix_python(s0 ^ (part * _GOLDEN + _A))
        s1 = _mix_python(s1 + s0 + part)
        s0 = (s0 + s1) & _MASK
    return s0, s1


def _mix_python(x: int) -> int:
    # A NumPy array for each word takes fifty times as long.
    x &= _MASK
    x = ((x ^ (x >> 16)) * _A) & _MASK
    x = ((x ^ (x >> 15)) * _B) & _MASK
    return x ^ (x >> 16)


def bits(state: Array, shape: Sequence[int], salt: Salt = 0) -> Array:
    """Returns uniform 32-bit words [shape], at most 2^32; salts give separate draws."""
    s0, s1 = salt_words(salt)
    size = math.prod(shape)
    accepted = "at most 2^32 elements; split the array"
    expect(size <= 1 << 32, "shape", tuple(shape), accepted)
    counter = lax.reshape(lax.iota(jnp.uint32, size), tuple(shape))
    return hash_counter(counter, state[0] ^ np.uint32(s0), state[1] ^ np.uint32(s1))


def hash_counter(index: Array, w0: ArrayLike, w1: ArrayLike) -> Array:
    """Returns the bits of the elements numbered `index`, by the formula above."""
    x = index + w0
    x = (x ^ (x >> np.uint32(16))) * np.uint32(_A)
    x = (x ^ (x >> np.uint32(15))) + w1
    x = x * np.uint32(_B)
    return x ^ (x >> np.uint32(16))


def make_pool(state: Array, size: int) -> Pool:
    """Returns the pool of `size` elements; a longer pool begins with the same words."""
    shape = (max(size, 1),)
    first, second = (bits(state, shape, (i, zlib.crc32(b"pool"))) for i in range(2))
    return first, second


def unfolded(*numbers: int) -> Array:
    """Returns integers, uint32 [n], that XLA reads at run time.

    XLA compiles equal kernels once. A scalar constant, or an array of one, is a part of
    its kernel, which therefore differs from all others; a longer array is an operand.
    """
    longer = jnp.array([*numbers, 0], jnp.uint32)
    return lax.optimization_barrier(longer)[:-1]


def factor(salt: Salt) -> Array:
    """Returns the odd factor of the draw with this salt, uint32 [1]."""
    return unfolded(salt_words(salt)[0] | 1)


class Draws(NamedTuple):
    """The draws of one noise on one result.

    Attributes:
        pool: the random words of at least as many elements.
        factor: uint32 [1], from `factor`.
    """

    pool: Pool
    factor: Array

    def bits(self, shape: Sequence[int], number: int = 0) -> Array:
        """Returns one of the draws, uint32 [shape].

        Bit j depends on the lower bits of its words alone: use the upper ones.
        """
        size = math.prod(shape)
        first, second = (lax.reshape(x[:size], tuple(shape)) for x in self.pool)
        factor = self.factor * np.uint32(salt_words(number)[0] | 1)
        return first * factor[0] + second


def below(count: int, random: Array) -> Array:
    """Returns integers in [0, count), uniform to count 2^-32, from 32 random bits each.

    They are the high word of the product, in 32-bit arithmetic; `count` is 1 to 2^16.
    """
    n, half = np.uint32(count), np.uint32(16)
    low = lax.shift_right_logical((random & np.uint32(0xFFFF)) * n, half)
    return lax.shift_right_logical(
        lax.shift_right_logical(random, half) * n + low, half
    )


def unit(random: Array) -> Array:
    """Converts uint32 bits to multiples of 2^-24 in [0, 1), float32, by the top 24."""
    # int32: XLA converts signed integers in one instruction, unsigned ones in several.
    upper = lax.convert_element_type(random >> np.uint32(8), jnp.int32)
    return lax.convert_element_type(upper, jnp.float32) * np.float32(2.0**-24)


def odd(random: Array) -> Array:
    """Converts uint32 bits to odd int32 in (-2^24, 2^24), exact in float32."""
    signed = lax.convert_element_type(random >> np.uint32(8), jnp.int32)
    return signed * np.int32(2) - np.int32((1 << 24) - 1)


def gauss(random: Array) -> Array:
    """Returns uint32 bits as standard normal numbers by inversion, float32.

    `sqrt(2) erfinv(u)` with `u` uniform on the odd multiples of 2^-24 in (-1, 1) and
    Giles' polynomial for `erfinv`, which XLA expands inline (M. Giles, "Approximating
    the erfinv function", GPU Computing Gems 2, 2012). Symmetric; |x| < 5.43.
    """
    u = lax.convert_element_type(odd(random), jnp.float32) * np.float32(2.0**-24)
    return lax.erf_inv(u) * np.float32(math.sqrt(2.0))


class Words(NamedTuple):
    """The generator's words at one place in a program.

    Attributes:
        call: uint32 [2], folded with the loop counters.
        run: uint32 [2], the same at each step of a loop.
        places: on a logical mesh, this device's index and the size of each axis.
        steps: counters of the loops around, outermost first. Defaults to None: the
            evaluation does not need them.
        made: the pool of `call`, computed once, or None.
    """

    call: Array
    run: Array
    places: dict[str, tuple[Array, Array]] = {}  # noqa: RUF012 (never written to)
    steps: tuple[Array, ...] | None = None
    made: Pool | None = None

    def pool(self, size: int) -> Pool:
        """Returns a pool for arrays of `size` elements."""
        return make_pool(self.call, size) if self.made is None else self.made

    def at_step(self, step: Array) -> "Words":
        """Returns the words for the loop step with this number."""
        steps = None if self.steps is None else (*self.steps, step)
        return self._replace(call=fold(self.call, step), steps=steps, made=None)

    def of(self, schedule: str) -> Array:
        """Returns the words for drawing orders; see `ReductionOrder.schedule`."""
        return self.run if schedule == "run" else self.call


def first_words(key: Array, run_key: Array | None = None) -> Words:
    """Returns the words at the start of a call; `run_key` defaults to `key`."""
    return Words(words(key), words(key if run_key is None else run_key))


def path_salt(path: str) -> tuple[int, int]:
    """Returns a path as two 32-bit words, the same in every process."""
    digest = hashlib.blake2b(path.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def on_device(
    words: Words, operands: Values, shared_over: Collection[str] = ()
) -> Words:
    """Returns the words of this device, where the operands vary over a mesh.

    Over the axes of `shared_over` the result, and so its noise, must be the same.
    """
    axes = set(compat.varying_axes(*operands)) - set(shared_over)
    if not axes:
        return words
    if axes <= words.places.keys():
        index = jnp.uint32(0)
        for axis in sorted(axes):
            here, size = words.places[axis]
            index = index * size + here
    else:
        index = lax.axis_index(tuple(sorted(axes)))
    call, run = fold(words.call, index), fold(words.run, index)
    return words._replace(call=call, run=run, made=None)
