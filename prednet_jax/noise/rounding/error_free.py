"""Computes the exact rounding error of an operation, on the bits of its numbers.

The error of a correctly rounded addition or multiplication is itself a floating-point
number, and a few operations find it (error-free transforms):

    a + b = s + e    TwoSum (D. Knuth, The Art of Computer Programming 2, 4.2.2, thm B)
    a * b = p + e    TwoProduct (T. Dekker, "A floating-point technique for extending
                     the available precision", Numer. Math. 18, 1971)

For division and square root the remainder is exact, `r = a - q b` and `r = a - q q`,
and the error is `r / b` and `r / (2 q)` to one rounding (M. Pichat; ORO 2005, sec. 3).

Compilers contract `a * b + c` to one FMA, so a product about to be subtracted may never
have been rounded. `guard` passes a value through an integer XOR with a zero known only
at run time, which no pass looks through. 16-bit types are computed in float32, where
products are exact and sums have 13 bits to spare.
"""

from types import MappingProxyType
from typing import NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise.errors import expect

# The operations whose exact result is known, and their numbers of operands.
ERROR_FREE = MappingProxyType(
    {"add": 2, "sub": 2, "add_any": 2, "mul": 2, "square": 1, "div": 2, "sqrt": 1}
)
FLOATS = ("float16", "bfloat16", "float32", "float64")


class Format(NamedTuple):
    """A binary floating-point format: bits of the mantissa, of limits, and masks."""

    unsigned: jnp.dtype
    mantissa: int
    smallest: int
    largest: int
    magnitude: int
    exponent: int


def format_of(dtype: jax.typing.DTypeLike) -> Format:
    """Returns the format of one of `FLOATS`; other types raise a NoiseError."""
    name = jnp.dtype(dtype).name
    expect(name in FLOATS, "dtype", name, "float16, bfloat16, float32 or float64")
    info = jnp.finfo(dtype)
    magnitude = (1 << (info.bits - 1)) - 1
    infinity = magnitude & ~((1 << info.nmant) - 1)
    unsigned = jnp.dtype(f"uint{info.bits}")
    smallest = 1 << info.nmant
    return Format(unsigned, info.nmant, smallest, infinity - 1, magnitude, infinity)


def to_bits(x: Array) -> Array:
    """Returns the bits of `x`, as unsigned integers of the same width."""
    return lax.bitcast_convert_type(x, format_of(x.dtype).unsigned)


def from_bits(b: Array, dtype: jax.typing.DTypeLike) -> Array:
    """Returns the numbers of type `dtype` with bits `b`."""
    return lax.bitcast_convert_type(b, dtype)


def run_time_zero(state: Array) -> Array:
    """Returns zero, uint32 [], from uint32 [2], unknown as zero to compilers.

    The square of an odd number is 1 modulo 8, so its third bit is 0; the known-bits
    analysis of LLVM derives only the lowest two bits of a square.
    """
    odd = state[0] | np.uint32(1)
    return (odd * odd) & np.uint32(4)


def guard(x: Array, zero: Array) -> Array:
    """Forces `x` to be rounded to its type here, whatever the compiler fuses."""
    unsigned = format_of(x.dtype).unsigned
    return from_bits(to_bits(x) ^ lax.convert_element_type(zero, unsigned), x.dtype)


def power_below(x: Array) -> Array:
    """Returns 2^floor(log2 |x|); 0 below normals, infinity for infinities and NaN."""
    mask = format_of(x.dtype)
    return from_bits(to_bits(x) & mask.unsigned.type(mask.exponent), x.dtype)


def is_finite(x: Array) -> Array:
    """Returns whether each element is neither infinite nor NaN."""
    return abs(x) < np.asarray(jnp.inf, x.dtype)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Returns `(s, e)` with `s = fl(a + b)` and `s + e = a + b` exactly.

    `a` and `b` must be guarded if they may be products.
    """
    s = a + b
    partner = s - a
    return s, (a - (s - partner)) + (b - partner)


def two_product(a: Array, b: Array, p: Array) -> Array:
    """Returns the error `a b - p` of the guarded product `p = fl(a b)`.

    It is exact in float32 for |p| > 2^-78 (below, the error is not a normal number); in
    float64 to 2^-106 |p|. Masks cut the halves, so nothing overflows unless `p` does.
    """
    a1, a2 = _halves(a)
    b1, b2 = _halves(b)
    # Each product is exact, so contraction to an FMA changes nothing here.
    return ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2


def residual(
    primitive: str, value: Array, operands: tuple[Array, ...], zero: Array
) -> tuple[Array, Array]:
    """Returns the result of an operation of `ERROR_FREE`, and its rounding error.

    `value` is the float32 or float64 result; `operands`, of that type, broadcast to it.
    The error is `exact - rounded`; it is not finite after an overflow.
    """
    args = [guard(jnp.broadcast_to(x, value.shape), zero) for x in operands]
    if primitive in ("add", "add_any"):
        return two_sum(args[0], args[1])
    if primitive == "sub":
        return two_sum(args[0], -args[1])
    if primitive in ("mul", "square"):
        a, b = args[0], args[-1]
        p = guard(a * b, zero)
        return p, two_product(a, b, p)
    q = guard(value, zero)
    a, b = args[0], args[-1] if primitive == "div" else q
    p = guard(q * b, zero)
    remainder = (a - p) - two_product(q, b, p)
    quotient = remainder / (b if primitive == "div" else q + q)
    return q, lax.select(quotient == quotient, quotient, jnp.zeros_like(q))


def evaluate(primitive: str, operands: tuple[Array, ...], shape: tuple) -> Array:
    """Evaluates an operation of `ERROR_FREE` in float32, for 16-bit operands."""
    operation = getattr(lax, "add" if primitive == "add_any" else primitive)
    wide = (lax.convert_element_type(x, jnp.float32) for x in operands)
    return operation(*(jnp.broadcast_to(x, shape) for x in wide))


def _halves(x: Array) -> tuple[Array, Array]:
    """Splits `x = high + low` exactly, `high` with half the bits of the mantissa."""
    fmt = format_of(x.dtype)
    low = fmt.unsigned.type((1 << ((fmt.mantissa + 2) // 2)) - 1)
    high = from_bits(to_bits(x) & ~low, x.dtype)
    return high, x - high
