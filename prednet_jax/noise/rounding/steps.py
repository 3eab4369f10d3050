"""Computes rounding, its errors and Monte Carlo arithmetic on the bits of numbers.

Every function works on float16, bfloat16, float32 and float64, never crosses from
finite to infinite, and does not change zero, infinities and NaN unless its docstring
states otherwise. Random bits are uint32 arrays of the shape of the value; `draw(i)`
returns the bits numbered i, and `zero` is `error_free.run_time_zero`.

docs/noise/noises.md ("Noise on single results") defines the noises. Sources:

- stochastic rounding: M. Croci et al., "Stochastic rounding: implementation, error
  analysis and applications", R. Soc. Open Sci. 9 (2022), mode 1; P. Blanchard, N.
  Higham, T. Mary, SIAM J. Sci. Comput. 42 (2020), for the moments;
- Monte Carlo arithmetic: D. S. Parker, UCLA CSD-970002, 1997; C. Denis et al., ARITH
  2016 (Verificarlo, in a wider format): inexact(x) = x + 2^(e - t) xi.
  Here the intermediate result of the operations of `error_free` is the rounded one plus
    its exact error, and the operands' noise enters to first order (`_propagated`).
    Other operations have no error where t is below the precision of the type; their
    operands are perturbed before the operation and rounded stochastically. So the mean
    is right where the noise is below an ulp, at the cost of a variance of at most 1/4
    ulp^2, not 1/12.
"""

from collections.abc import Callable

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import random_bits
from prednet_jax.noise.rounding import error_free
from prednet_jax.noise.rounding.error_free import (
    format_of,
    from_bits,
    guard,
    is_finite,
    power_below,
    to_bits,
)
from prednet_jax.noise.specs import FORMATS

Draw = Callable[[int], Array]
Operands = tuple[Array, ...]

# Ranges of at most this many integers are drawn by a 16-bit multiplication, whose
# probabilities are off by less than 2^-12; others by a remainder, off by 2^-11 at most.
_FEW = 16
_UPPER = 24  # good bits of a draw


def random_step(x: Array, most: int, random: Array) -> Array:
    """Moves `x` by a number of ulps that is uniform on {-most, ..., most}."""
    count = 2 * most + 1
    if count <= _FEW:
        drawn = ((random >> np.uint32(16)) * np.uint32(count)) >> np.uint32(16)
    else:
        drawn = lax.rem(random, jnp.full_like(random, count))
    return _step(x, drawn - np.uint32(most), most)


def is_exact(
    primitive: str, value: Array, operands: Operands, zero: Array
) -> Array | None:
    """Returns where a result has no rounding error; None for an unknown operation."""
    if not primitive:
        return None
    if value.dtype.itemsize == 2:
        args = tuple(guard(x, zero) for x in operands)
        wide = error_free.evaluate(primitive, args, value.shape)
        # Without the guard, XLA may keep the excess precision of float32.
        error = wide - lax.convert_element_type(guard(value, zero), wide.dtype)
    else:
        wide, error = error_free.residual(primitive, value, operands, zero)
    # The error of a smaller result, or the remainder of a smaller dividend, may be too
    # small for a normal number, so that it counts as zero.
    info = jnp.finfo(wide.dtype)
    least = np.asarray(8 * info.tiny / info.eps**2, wide.dtype)
    large = abs(wide) > least
    if primitive in ("div", "sqrt"):
        large &= abs(lax.convert_element_type(operands[0], wide.dtype)) > least
    return large & (error == jnp.zeros_like(error))


def _step(x: Array, count: Array, most: int) -> Array:
    """Moves `x` by `count` ulps away from zero, or towards it if negative.

    `count` is uint32, at most `most` modulo 2^32. A number within `most` ulps of zero
    (which processors that flush denormals read as zero) or of infinity does not move.
    """
    fmt = format_of(x.dtype)
    uint, width = fmt.unsigned.type, fmt.largest - 2 * most
    if width <= 0:
        return x
    if x.dtype.itemsize != 4:
        signed = lax.convert_element_type(count, jnp.int32)
        count = lax.convert_element_type(signed, fmt.unsigned)
    bits = to_bits(x)
    # Numbers below the range wrap around: one comparison tests both ends.
    inside = (bits & uint(fmt.magnitude)) - uint(most + 1) < uint(width)
    return from_bits(lax.select(inside, bits + count, bits), x.dtype)


def stochastic(
    primitive: str,
    value: Array,
    operands: Operands,
    mantissa_bits: int | None,
    draw: Draw,
    zero: Array,
) -> Array:
    """Rounds a result stochastically; `primitive` is empty for unknown operations."""
    kept = format_of(value.dtype).mantissa
    if mantissa_bits is not None and mantissa_bits < kept:
        return _cut(value, kept - mantissa_bits, draw)
    if not primitive:
        top = draw(0) >> np.uint32(29)
        up = lax.convert_element_type(top == np.uint32(0), jnp.uint32)
        down = lax.convert_element_type(top == np.uint32(1), jnp.uint32)
        return _step(value, up - down, 1)
    if value.dtype.itemsize == 2:
        args = tuple(guard(x, zero) for x in operands)
        wide = error_free.evaluate(primitive, args, value.shape)
        return _narrow(wide, value, draw(0))
    rounded, error = error_free.residual(primitive, value, operands, zero)
    return _towards(rounded, error, draw(0))


def _towards(rounded: Array, error: Array, random: Array) -> Array:
    """Rounds `rounded + error` stochastically to `rounded` or its neighbour.

    With probability |error| / gap the result is the next number on the side of the
    error, at the distance `gap`. Nothing moves where the error is zero or NaN.
    """
    bits = to_bits(rounded)
    signed = np.dtype(f"i{rounded.dtype.itemsize}")
    # All ones where the signs differ: towards zero, one less; else one more.
    differ = lax.shift_right_arithmetic(
        lax.bitcast_convert_type(bits ^ to_bits(error), signed),
        signed.type(8 * rounded.dtype.itemsize - 1),
    )
    moved = lax.bitcast_convert_type(bits, signed) + (differ | signed.type(1))
    neighbour = from_bits(moved, rounded.dtype)
    # The error of an overflow is infinite or NaN, and so is the gap: nothing moves.
    gap = abs(neighbour - rounded)
    u = lax.convert_element_type(random_bits.unit(random), rounded.dtype)
    moves = (u * gap < abs(error)) & (rounded != np.asarray(0, rounded.dtype))
    return lax.select(moves, neighbour, rounded)


def _cut(x: Array, dropped: int, draw: Draw) -> Array:
    """Rounds `x` stochastically to `dropped` (1 to 51) mantissa bits fewer."""
    fmt = format_of(x.dtype)
    uint = fmt.unsigned.type
    mask = uint((1 << dropped) - 1)
    # Of each draw the upper bits, 24 at most.
    random = jnp.zeros(x.shape, fmt.unsigned)
    for i, start in enumerate(range(0, dropped, _UPPER)):
        count = min(_UPPER, dropped - start)
        upper = lax.convert_element_type(draw(i) >> np.uint32(32 - count), fmt.unsigned)
        random |= upper << uint(start)
    bits = to_bits(x)
    magnitude = bits & uint(fmt.magnitude)
    raised = (magnitude + random) & ~mask
    # Rounding up past the largest number would give infinity.
    raised = lax.select(raised <= uint(fmt.largest), raised, magnitude & ~mask)
    raised = lax.select(magnitude <= uint(fmt.largest), raised, magnitude)
    return from_bits((bits & uint(fmt.magnitude + 1)) | raised, x.dtype)


def _narrow(wide: Array, value: Array, random: Array) -> Array:
    """Rounds a float32 number stochastically to the 16-bit type of `value`.

    If `value`, the number rounded to nearest, is not finite, it is the result.
    """
    if value.dtype == jnp.bfloat16:
        out = _cut(wide, 16, lambda _: random)
    else:
        # The last place of binary16: 2^-10 of the number, and 2^-24 at least.
        unit = lax.max(power_below(wide) * np.float32(2.0**-10), np.float32(2.0**-24))
        scaled = abs(wide) / unit
        below = lax.floor(scaled)
        up = random_bits.unit(random) < scaled - below
        size = (below + lax.convert_element_type(up, jnp.float32)) * unit
        size = lax.min(size, np.float32(65504.0))
        out = jnp.copysign(size, wide)
    out = lax.convert_element_type(out, value.dtype)
    return lax.select(is_finite(value), out, value)


def add_normal(
    value: Array, scale: float, random: Array, zero: Array, *, relative: bool
) -> Array:
    """Returns `value + scale n`, or `value + scale rms(value) n`, zeros included.

    The RMS is taken over all finite elements of the value (under `vmap` of the noisy
    function, over each example's elements). Elements that would overflow do not change.
    """
    wide = jnp.float64 if value.dtype == jnp.float64 else jnp.float32
    # Guards keep products from being contracted into the sums that follow, so that a
    # compiled program and one run operation by operation agree to the bit.
    x = lax.convert_element_type(guard(value, zero), wide)
    sigma = jnp.asarray(scale, wide)
    if relative:
        sigma = sigma * rms(x, zero)
    n = lax.convert_element_type(random_bits.gauss(random), wide)
    noisy = lax.convert_element_type(x + guard(sigma * n, zero), value.dtype)
    return lax.select(is_finite(noisy), noisy, value)


def rms(x: Array, zero: Array) -> Array:
    """Returns the RMS of the finite elements of `x`, without overflow."""
    finite = is_finite(x)
    x = lax.select(finite, x, jnp.zeros_like(x))
    unit = power_below(jnp.max(abs(x), initial=np.asarray(0.0, x.dtype)))
    unit = lax.select(unit > np.asarray(0.0, x.dtype), unit, jnp.ones_like(unit))
    scaled = x / unit
    squares = jnp.sum(guard(scaled * scaled, zero))
    count = jnp.sum(finite, dtype=x.dtype)
    return unit * lax.sqrt(squares / lax.max(count, jnp.ones_like(count)))


def is_wider(dtype: jax.typing.DTypeLike, name: str) -> bool:
    """Returns whether a type has floating-point numbers that the format lacks."""
    if jnp.dtype(dtype).name not in error_free.FLOATS:
        return False
    info, narrow = jnp.finfo(dtype), FORMATS[name]
    return info.nexp > narrow.exponent or info.nmant > narrow.mantissa


def to_format(name: str, x: Array) -> Array:
    """Rounds `x` to nearest-even in a format of tensor cores, in its own type.

    `fp16` is IEEE binary16 with its range: magnitudes of 65520 and more become
    infinite, as the hardware's conversion makes them, and those below 2^-14 are rounded
    to multiples of 2^-24. Magnitudes above the `largest` of a format become the
    largest, as scaled conversions make them. A type with no more bits than the format
    is unchanged.
    """
    if not is_wider(x.dtype, name):
        return x
    exponent, mantissa, largest = FORMATS[name]
    wide = lax.convert_element_type(x, jnp.float32) if x.dtype.itemsize == 2 else x
    out = lax.reduce_precision(wide, exponent if largest is None else 8, mantissa)
    if exponent < 8:
        # reduce_precision flushes denormal numbers.
        normal = 2.0 ** (2 - 2 ** (exponent - 1))
        last = np.asarray(normal * 2.0**-mantissa, wide.dtype)
        small = lax.round(wide / last, lax.RoundingMethod.TO_NEAREST_EVEN) * last
        tiny = abs(wide) < np.asarray(normal, wide.dtype)
        out = lax.select(tiny, small, out)
    if largest is not None:
        out = lax.clamp(
            np.asarray(-largest, out.dtype), out, np.asarray(largest, out.dtype)
        )
    return lax.convert_element_type(out, x.dtype)


def monte_carlo(
    primitive: str,
    value: Array,
    operands: Operands,
    draw: Draw,
    zero: Array,
    mode: str,
    precision: int,
) -> Array:
    """Returns the result of an operation in Monte Carlo arithmetic, precision t.

    `primitive` is a name in `ERROR_FREE`, or "" (without operands) if it is unknown.
    """
    args = tuple(guard(jnp.broadcast_to(x, value.shape), zero) for x in operands)
    rounded, error = _exact(primitive, value, args, draw, zero, precision)
    noise = error
    if primitive and mode != "rr":
        wide = tuple(lax.convert_element_type(x, rounded.dtype) for x in args)
        own = tuple(_inexactness(x, draw(2 + i), precision) for i, x in enumerate(wide))
        noise = noise + _propagated(primitive, rounded, wide, own, zero)
    if mode != "pb":
        # Just below a power of two the exact result has the smaller exponent.
        fmt = format_of(rounded.dtype)
        fraction = to_bits(rounded) & fmt.unsigned.type(fmt.smallest - 1)
        is_power = fraction == fmt.unsigned.type(0)
        below = is_power & (lax.sign(error) * rounded < jnp.zeros_like(error))
        outer = _inexactness(rounded, draw(0), precision)
        outer = lax.select(below, outer * np.asarray(0.5, outer.dtype), outer)
        if mode == "rr":
            exact = error == jnp.zeros_like(error)
            # And the t-th significant bit is the lowest that is set.
            spare = (1 << max(fmt.mantissa + 1 - precision, 0)) - 1
            rest = to_bits(rounded) & fmt.unsigned.type(spare)
            exact = exact & (rest == fmt.unsigned.type(0))
            outer = lax.select(exact, jnp.zeros_like(outer), outer)
        noise = noise + outer
    noisy = lax.convert_element_type(rounded + noise, value.dtype)
    # XLA may keep the excess precision of float32 for a 16-bit number.
    noisy = guard(noisy, zero)
    return lax.select(is_finite(noisy) & is_finite(value) & (noise != 0), noisy, value)


def inexact(x: Array, draw: Draw, zero: Array, position: int, precision: int) -> Array:
    """Returns `inexact(x)` of one operand, rounded stochastically to its type."""
    # Draws 0 and 1 belong to the result.
    first, second = draw(2 * position + 2), draw(2 * position + 3)
    held = guard(x, zero)
    if x.dtype.itemsize == 2:
        wide = lax.convert_element_type(held, jnp.float32)
        return _narrow(wide + _inexactness(wide, first, precision), x, second)
    rounded, error = error_free.two_sum(held, _inexactness(held, first, precision))
    noisy = _towards(rounded, error, second)
    return lax.select(is_finite(noisy) & is_finite(x) & (x != 0), noisy, x)


def _inexactness(x: Array, random: Array, precision: int) -> Array:
    """Returns `2^(e - t) xi`: 0 for 0, and an exact product with a power of two."""
    # Odd multiples of 2^-25 in (-1/2, 1/2): symmetric, and exact in float32.
    odd = random_bits.odd(random)
    xi = lax.convert_element_type(odd, x.dtype) * np.asarray(2.0**-25, x.dtype)
    return xi * (power_below(x) * np.asarray(2.0 ** (1 - precision), x.dtype))


def _exact(
    primitive: str,
    value: Array,
    args: Operands,
    draw: Draw,
    zero: Array,
    precision: int,
) -> tuple[Array, Array]:
    """Returns the result before its last rounding, as a number and an error."""
    mantissa = format_of(value.dtype).mantissa
    if primitive and value.dtype.itemsize == 2:
        wide = error_free.evaluate(primitive, args, value.shape)
        return wide, jnp.zeros_like(wide)
    if primitive:
        rounded, error = error_free.residual(primitive, value, args, zero)
        return rounded, lax.select(is_finite(error), error, jnp.zeros_like(error))
    rounded = guard(value, zero)
    if value.dtype.itemsize == 2:
        rounded = lax.convert_element_type(rounded, jnp.float32)
    if precision <= mantissa:
        return rounded, jnp.zeros_like(rounded)
    return rounded, _inexactness(rounded, draw(1), mantissa + 1)


def _propagated(
    primitive: str, q: Array, args: Operands, noise: Operands, zero: Array
) -> Array:
    """Returns the first-order effect of the operands' noise on the result `q`."""
    (a, *b), (na, *nb) = args, noise
    match primitive:
        case "add" | "add_any":
            return na + nb[0]
        case "sub":
            return na - nb[0]
        case "mul":
            return guard(a * nb[0], zero) + guard(b[0] * na, zero)
        case "square":
            return guard((a + a) * na, zero)
        case "div":
            return (na - guard(q * nb[0], zero)) / b[0]
    return na / (q + q)
