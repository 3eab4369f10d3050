"""Adds noise to the result of one floating-point operation, element by element.

`apply` perturbs the result of a primitive. docs/noise.md ("Noise on single results")
defines the noises, and `steps` has the arithmetic. No finite result becomes infinite;
operands that `fp16` rounds may (65520 and more).

Derivatives pass straight through: the noise is a constant of the operation, so
`grad(inject(f))` is the gradient of `f` at the perturbed intermediate values.
"""

import functools
import zlib
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import random_bits, specs
from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.random_bits import Draws, Pool
from prednet_jax.noise.rounding import error_free, steps
from prednet_jax.noise.rounding.error_free import FLOATS, format_of, to_bits

# Integers that tell the draws of one pool apart.
Salts = tuple[int, ...]


def apply(
    spec: specs.NoiseSpec,
    value: Array,
    operands: Sequence[Array],
    pool: Pool,
    salt: Salts = (),
    *,
    primitive: str = "",
) -> Array:
    """Perturbs the result of a floating-point primitive.

    Args:
        spec: the noise; its elementwise parts are applied in order, others ignored.
        value: the result, of a type of `error_free.FLOATS` (otherwise a NoiseError) or
            complex, in which case both parts are perturbed.
        operands: the primitive's operands. They give the exact result for primitives
            of `error_free.ERROR_FREE`, and the bits of deterministic noise.
        pool: random words for at least as many elements as `value` has.
        salt: integers that distinguish this result from others with the same pool.
        primitive: the primitive's name.
    """
    if _is_complex(value):
        # Each part separately, as the result of an unknown operation.
        re, im = lax.real(value), lax.imag(value)
        return lax.complex(
            apply(spec, re, (), pool, salt, primitive=primitive + " re"),
            apply(spec, im, (), pool, _other(salt), primitive=primitive + " im"),
        )
    format_of(value.dtype)
    arrays = tuple(jnp.asarray(x) for x in operands)
    # A chain of add_any, joined into one sum, has more than two operands.
    exact = error_free.ERROR_FREE.get(primitive) == len(arrays) and all(
        x.dtype == value.dtype and x.shape in ((), value.shape) for x in arrays
    )
    # A second noise acts on the first one's result, as of an unknown operation.
    name = primitive if exact else ""
    for position, part in enumerate(specs.parts(spec)):
        if isinstance(part, specs.Elementwise):
            # As few different calls as possible: each is traced and compiled.
            label = f"{primitive}+{position}" if part.deterministic else ""
            known = name if _reads_error(part) else ""
            given = arrays if part.deterministic or known else ()
            own = Draws(pool, random_bits.factor((*salt, position)))
            value = _noisy(part, known, label, value, given, own)
            name = ""
    return value


def perturb_operands(
    spec: specs.NoiseSpec,
    primitive: str,
    operands: Sequence[Array],
    pool: Pool,
    salt: Salts = (),
    *,
    routine: bool = False,
) -> list[Array]:
    """Perturbs operands for the modes `pb` and `mca`, and for `routines`.

    Operands are unchanged for primitives of `error_free.ERROR_FREE` on real numbers,
    whose result `apply` perturbs instead, and for all other specs and types. `routine`
    is whether the primitive is a library routine or a kernel.
    """
    out = list(operands)
    known = error_free.ERROR_FREE.get(primitive) == len(out)
    if known and not any(_is_complex(x) for x in out):
        return out
    for position, part in enumerate(specs.parts(spec)):
        bounded = isinstance(part, specs.MonteCarlo) and part.mode != "rr"
        rounded = routine and isinstance(part, specs.Elementwise) and part.routines
        if not (bounded or rounded):
            continue
        # Only one call for all operands, because noise on a noisy function counts its
        # equations. select_and_scatter_add only compares the operand it selects by.
        given = out[:1] if primitive == "select_and_scatter_add" else out
        label = f"{primitive}+{position}"
        for i, x in enumerate(given):
            own = (*salt, position, i, zlib.crc32(b"operand"))
            if isinstance(part, specs.MonteCarlo) and bounded:
                out[i] = _inexact(part, i, label, x, pool, own)
            elif isinstance(part, specs.Elementwise) and has_noise(x.dtype):
                # As for the result of an unknown operation.
                name = f"{primitive} operand {i}"
                out[i] = apply(part, x, (), pool, own, primitive=name)
    return out


def _inexact(
    spec: specs.MonteCarlo, position: int, label: str, x: Array, pool: Pool, salt: Salts
) -> Array:
    """Perturbs an operand, or both parts of a complex one; keeps other types."""

    def bounded(x: Array, salt: Salts, part: str = "") -> Array:
        own = Draws(pool, random_bits.factor((*salt, position)))
        return _bounded(spec, position, label + part, x, own)

    if _is_complex(x):
        re, im = lax.real(x), lax.imag(x)
        return lax.complex(bounded(re, salt, " re"), bounded(im, _other(salt), " im"))
    return bounded(x, salt) if _is_float(x) else x


def has_noise(dtype: np.dtype) -> bool:
    """Returns whether `apply` perturbs results of this type."""
    # By name, because NumPy does not know the types of PRNG keys.
    return dtype.name in (*FLOATS, "complex64", "complex128")


def keeps_exact(spec: specs.NoiseSpec) -> bool:
    """Returns whether a noise leaves all results without a rounding error alone."""
    parts = [p for p in specs.parts(spec) if isinstance(p, specs.Elementwise)]
    return all(
        _reads_error(part)
        and getattr(part, "mode", "rr") == "rr"
        and getattr(part, "mantissa_bits", None) is None
        and getattr(part, "virtual_precision", None) is None
        for part in parts
    )


def round_operand(spec: specs.ReducedPrecision, x: Array) -> Array:
    """Rounds an operand of dot or conv to nearest-even in a narrower format.

    The type of `x` is unchanged: products and sums are computed in it, as tensor cores
    accumulate in float32. Types that are not floating-point are returned unchanged.
    """
    return _rounded(spec.format, x) if _is_float(x) else x


def _reads_error(spec: specs.Elementwise) -> bool:
    """Returns whether a noise depends on the rounding error of the result."""
    if isinstance(spec, specs.UlpPerturbation):
        return spec.keep_exact
    return isinstance(spec, specs.StochasticRounding | specs.MonteCarlo)


def _is_complex(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.complexfloating)


def _is_float(x: Array) -> bool:
    return x.dtype.name in FLOATS


def _perturbed(
    spec: specs.Elementwise,
    primitive: str,
    label: str,
    value: Array,
    operands: tuple[Array, ...],
    draws: Draws,
) -> Array:
    """Applies one elementwise noise; `primitive` is empty for unknown operations."""
    zero = error_free.run_time_zero(draws.pool[0])
    draw = _drawer(spec, label, (value, *operands), draws)
    match spec:
        case specs.UlpPerturbation():
            moved = steps.random_step(value, spec.max_ulps, draw(0))
            exact = steps.is_exact(primitive, value, operands, zero)
            return moved if exact is None else lax.select(exact, value, moved)
        case specs.Gaussian():
            return steps.add_normal(
                value, spec.scale, draw(0), zero, relative=spec.relative
            )
        case specs.StochasticRounding():
            bits = spec.mantissa_bits
            return steps.stochastic(primitive, value, operands, bits, draw, zero)
        case specs.MonteCarlo():
            mode, bits = spec.mode, spec.precision(value.dtype)
            known = operands if primitive else ()
            return steps.monte_carlo(primitive, value, known, draw, zero, mode, bits)
    raise NoiseError(f"spec={spec!r}: expected an elementwise noise of this module")


def _perturbed_operand(
    spec: specs.MonteCarlo, position: int, label: str, x: Array, draws: Draws
) -> Array:
    zero = error_free.run_time_zero(draws.pool[0])
    draw = _drawer(spec, f"{label} operand {position}", (x,), draws)
    return steps.inexact(x, draw, zero, position, spec.precision(x.dtype))


def _straight_through(function: Callable, static: int) -> Callable:
    """Gives `function` the derivative of the identity in its argument `static`."""
    numbers = tuple(range(static))
    wrapped = jax.custom_jvp(function, nondiff_argnums=numbers)

    def jvp(*args):
        *leading, primals, tangents = args
        return wrapped(*leading, *primals), tangents[0]

    wrapped.defjvp(jvp)
    # Compiled once for each value of the `static` leading arguments and each shape: an
    # eager call is one kernel, a traced one a cached jaxpr.
    return functools.wraps(function)(jax.jit(wrapped, static_argnums=numbers))


_noisy = _straight_through(_perturbed, 3)
_bounded = _straight_through(_perturbed_operand, 3)
_rounded = _straight_through(steps.to_format, 1)


def _other(salt: Salts) -> Salts:
    """Returns the salt of an imaginary part, given that of the real part."""
    return (*salt, zlib.crc32(b"imaginary"))


def _drawer(
    spec: specs.Elementwise, name: str, arrays: tuple[Array, ...], draws: Draws
) -> Callable[[int], Array]:
    """Returns `draw(i)`: the bits numbered i for each element of `arrays[0]`.

    Without `deterministic`, the bits depend on the pool. With it, they are a hash of
    `name` and of the bits of all `arrays` with the shape of the first. (For dot or
    conv, the result is hashed instead of the operands.)
    """
    shape = arrays[0].shape
    if not spec.deterministic:
        return lambda i: draws.bits(shape, i)
    seed, tail = random_bits.salt_words(zlib.crc32(name.encode()))
    digest = jnp.full(shape, seed, jnp.uint32)
    for x in arrays:
        if _is_float(x) and x.shape in ((), shape):
            b = to_bits(x)
            halves = [lax.convert_element_type(b, jnp.uint32)]
            if b.dtype.itemsize > 4:
                high = b >> np.uint64(32)
                halves.append(lax.convert_element_type(high, jnp.uint32))
            for half in halves:
                digest = random_bits.hash_counter(
                    digest ^ half, np.uint32(tail), np.uint32(seed)
                )

    def draw(i: int) -> Array:
        w0, w1 = random_bits.salt_words((i, seed))
        return random_bits.hash_counter(digest, np.uint32(w0), np.uint32(w1))

    return draw
