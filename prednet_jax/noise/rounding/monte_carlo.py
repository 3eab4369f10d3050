"""Monte Carlo arithmetic: results and operands known to a virtual precision only.

    inexact(x) = x + 2^(e - t) xi,   e = floor(log2 |x|) + 1,  xi uniform in (-1/2, 1/2)

perturbs x in its t-th significant bit. The three modes of an operation `op`, rounded to
the type at the end:

    rr   fl(inexact(a op b))                       random rounding
    pb   fl(inexact(a) op inexact(b))              precision bounding
    mca  fl(inexact(inexact(a) op inexact(b)))     both

as D. S. Parker defines them ("Monte Carlo Arithmetic", UCLA CSD-970002, 1997) and the
`mca` backend of Verificarlo computes them (C. Denis et al., ARITH 2016): in a wider
format, with `rr` leaving a result alone that is exact and representable in t bits, and
zero, infinities and NaN never perturbed. With t the precision of the type, `rr` is
stochastic rounding.

Here there is no wider format. For the operations of `error_free` the intermediate
result is the rounded one plus its exact error, and the operands' noise enters to first
order:

    add, sub  na +- nb      mul  a nb + b na      div  (na - q nb) / b     sqrt  na / 2q

For all others the error is modelled as in `rounding` (uniform on +-1/2 ulp) where t is
not below the precision of the type, and taken as zero where it is; their operands are
perturbed before the operation and rounded stochastically to their type, so that the
mean is right also where the noise is below an ulp, at the cost of a variance of up to
1/4 ulp^2 instead of 1/12.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise.rounding import error_free, steps
from prednet_jax.noise.rounding.error_free import (
    format_of,
    guard,
    power_below,
    to_bits,
)


def result(
    primitive: str,
    value: Array,
    operands: tuple[Array, ...],
    draw: Callable[[int], Array],
    zero: Array,
    *,
    mode: str,
    precision: int,
) -> Array:
    """The result of an operation in Monte Carlo arithmetic.

    Args:
        primitive: a name in `error_free.ERROR_FREE`, or empty: exact result unknown.
        value: the computed result.
        operands: of the primitive; read where it is known.
        draw: `draw(i)` gives independent uint32 bits of the shape of the value.
        zero: of `error_free.run_time_zero`.
        mode: `"rr"`, `"pb"` or `"mca"`.
        precision: t.
    """
    # Only those of a known operation are read; others, a sum's, have other shapes.
    known = operands if primitive else ()
    args = tuple(guard(jnp.broadcast_to(x, value.shape), zero) for x in known)
    rounded, error = _exact(primitive, value, args, draw, zero, precision)
    noise = error
    if primitive and mode != "rr":
        wide = tuple(lax.convert_element_type(x, rounded.dtype) for x in args)
        own = tuple(inexactness(x, draw(2 + i), precision) for i, x in enumerate(wide))
        noise = noise + _propagated(primitive, rounded, wide, own, zero)
    if mode != "pb":
        # Just below a power of two the exact result has the smaller exponent.
        below = _is_power_of_two(rounded) & (error * rounded < _zeros(error))
        outer = inexactness(rounded, draw(0), precision)
        outer = lax.select(below, outer * np.asarray(0.5, outer.dtype), outer)
        if mode == "rr":
            exact = (error == _zeros(error)) & _representable(rounded, precision)
            outer = lax.select(exact, _zeros(outer), outer)
        noise = noise + outer
    noisy = lax.convert_element_type(rounded + noise, value.dtype)
    # XLA may keep the excess precision of float32 in the place of a 16-bit number.
    noisy = guard(noisy, zero)
    return lax.select(_finite(noisy) & _finite(value), noisy, value)


def operand(
    x: Array, draw: Callable[[int], Array], zero: Array, position: int, precision: int
) -> Array:
    """`inexact(x)`, rounded stochastically to the type of `x`.

    Args:
        x: the operand.
        draw: as for `result`.
        zero: as for `result`.
        position: of the operand among those of its operation.
        precision: t.
    """
    first = draw(2 * position)
    second = draw(2 * position + 1)
    held = guard(x, zero)
    if x.dtype.itemsize == 2:
        wide = lax.convert_element_type(held, jnp.float32)
        return steps.narrow(wide + inexactness(wide, first, precision), x, second)
    rounded, error = error_free.two_sum(held, inexactness(held, first, precision))
    noisy = steps.towards(rounded, error, second)
    return lax.select(_finite(noisy) & _finite(x), noisy, x)


def inexactness(x: Array, random: Array, precision: int) -> Array:
    """`2^(e - t) xi`: zero for zero, and an exact product of xi and a power of two."""
    # Odd multiples of 2^-25 in (-1/2, 1/2): symmetric, and exact in float32.
    signed = lax.convert_element_type(random >> np.uint32(8), jnp.int32)
    odd = signed * np.int32(2) - np.int32((1 << 24) - 1)
    xi = lax.convert_element_type(odd, x.dtype) * np.asarray(2.0**-25, x.dtype)
    return xi * (power_below(x) * np.asarray(2.0 ** (1 - precision), x.dtype))


def _exact(primitive, value, args, draw, zero, precision) -> tuple[Array, Array]:
    """The result before its last rounding, as a rounded number and an error."""
    mantissa = format_of(value.dtype).mantissa
    if primitive and value.dtype.itemsize == 2:
        wide = error_free.evaluate(primitive, args, value.shape)
        return wide, _zeros(wide)
    if primitive:
        rounded, error = error_free.residual(primitive, value, args, zero)
        return rounded, lax.select(_finite(error), error, _zeros(error))
    rounded = guard(value, zero)
    if value.dtype.itemsize == 2:
        rounded = lax.convert_element_type(rounded, jnp.float32)
    if precision <= mantissa:
        return rounded, _zeros(rounded)
    return rounded, inexactness(rounded, draw(1), mantissa + 1)


def _propagated(primitive, q, args, noise, zero) -> Array:
    """First-order effect of the operands' noise on the result `q`."""
    a, na = args[0], noise[0]
    match primitive:
        case "add" | "add_any":
            return na + noise[1]
        case "sub":
            return na - noise[1]
        case "mul":
            return guard(a * noise[1], zero) + guard(args[1] * na, zero)
        case "square":
            return guard((a + a) * na, zero)
        case "div":
            return (na - guard(q * noise[1], zero)) / args[1]
    return na / (q + q)


def _representable(x: Array, precision: int) -> Array:
    """Whether `x` has no bit set below its `precision`-th significant one."""
    fmt = format_of(x.dtype)
    spare = max(fmt.mantissa + 1 - precision, 0)
    return (to_bits(x) & fmt.unsigned.type((1 << spare) - 1)) == fmt.unsigned.type(0)


def _is_power_of_two(x: Array) -> Array:
    fmt = format_of(x.dtype)
    return (to_bits(x) & fmt.unsigned.type(fmt.smallest - 1)) == fmt.unsigned.type(0)


def _finite(x: Array) -> Array:
    return abs(x) < np.asarray(jnp.inf, x.dtype)


def _zeros(x: Array) -> Array:
    return jnp.zeros_like(x)
