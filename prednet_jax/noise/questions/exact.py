"""The result of a call in wider types: in float64 nearly without rounding errors.

The jaxpr is evaluated with each floating-point type widened. Arguments and constants
keep their values, and casts widen too (`preferred_element_type`, `new_dtype`). What
depends on the bits of a narrower type (`bitcast_convert_type`, random numbers) and
foreign kernels are computed in their own type.

Chaos loses float64's 16 digits too. Noise in the last place shows it (`Exact.errors`).
"""

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import compat, random_bits, specs
from prednet_jax.noise._inject import inject, traced
from prednet_jax.noise.plan import plan
from prednet_jax.noise.questions.leaves import Result, rms, subtract, wide_leaves
from prednet_jax.noise.questions.sampling import BoundCall, with_routines
from prednet_jax.noise.random_bits import Words, first_words
from prednet_jax.noise.rules.primitives import OPAQUE
from prednet_jax.noise.run import Call, Evaluation, at_words
from prednet_jax.noise.types import Atom


class Exact(NamedTuple):
    """A result in float64; `errors`: for each leaf, the RMS of its own rounding."""

    values: Result
    errors: list[float]


# Runs that show the error of float64, and their noise.
_DRAWS = 4
_NOISE = with_routines(specs.UlpPerturbation())


def exact(
    call: BoundCall,
    key: Array,
    comparable: Callable[[Result], Result] = lambda values: values,
) -> Exact:
    """Returns the result of a call in float64, as `comparable` changes it.

    Args:
        call: the function with its arguments.
        key: key of the noise that shows the error of float64.
        comparable: brings results into a comparable form, such as `Signs.settled`.
    """
    run = widened_program(call, np.dtype(np.float64))
    truth = comparable(run(key))
    drawn = [comparable(run(k, _NOISE)) for k in random_bits.split(key, _DRAWS)]
    errors = [
        rms(np.array([rms(subtract(x, right)) for x in of_leaf]))
        for right, *of_leaf in zip(truth, *drawn, strict=True)
    ]
    return Exact(truth, errors)


def widened_program(call: BoundCall, dtype: np.dtype) -> Callable[..., Result]:
    """Returns `run(key, spec=None)`: a call with floating-point types widened.

    Args:
        call: the function with its arguments.
        dtype: float32 or float64; narrower types become it, and complex ones the
            complex type of its width. Products have the highest precision.
    """
    pure, arrays = call.pure()
    program = traced(pure, arrays)
    widening = _Widening(dtype)

    def wide(*arrays: Array) -> list[Array]:
        planned = plan(program.jaxpr, specs.Identity())
        first = first_words(jax.random.key(0))
        return at_words(planned, first, arrays, widening)

    own = list(map(jnp.array, arrays))  # In the types that were traced.
    compiled = jax.jit(wide)

    def run(key: Array, spec: specs.NoiseSpec | None = None) -> Result:
        is_double = dtype == np.float64
        with jax.enable_x64(True) if is_double else contextlib.nullcontext():
            given = list(map(widening.widened, own))
            noisy = inject_once(spec) if spec else lambda _, *xs: compiled(*xs)
            results = noisy(key, *given)
        outcome = jax.tree.unflatten(jax.tree.structure(program.shapes), results)
        return wide_leaves(jax.device_get(outcome).result())

    inject_once = functools.cache(functools.partial(inject, wide))
    return run


# Their results depend on how many bits a number has.
_BITS = frozenset({"bitcast_convert_type", "nextafter", "random_gamma", "rng_uniform"})


class _Widening(Evaluation):
    """Evaluates a program in types of at least a given width."""

    def __init__(self, dtype: np.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def wide_type(self, dtype: np.dtype) -> np.dtype:
        """Returns the type that takes the place of a type."""
        if not jnp.issubdtype(dtype, jnp.inexact):
            return dtype
        if jnp.finfo(dtype).bits >= jnp.finfo(self.dtype).bits:
            return dtype
        is_complex = jnp.issubdtype(dtype, jnp.complexfloating)
        return np.dtype(np.complex128) if is_complex else self.dtype

    def widened(self, x: Array) -> Array:
        """Returns an array in the wide type, and any other value unchanged."""
        dtype = getattr(x, "dtype", np.dtype(bool))
        wide = self.wide_type(dtype)
        return x if wide == dtype else x.astype(wide)

    def read(self, values: Mapping[Atom, Array], atom: Atom) -> Array:
        x = super().read(values, atom)
        if compat.is_literal(atom):  # A number of the program is rounded to its type.
            x = np.asarray(x, atom.aval.dtype)
        return self.widened(x)

    def first_order(self, call: Call, words: Words, operands: list) -> list:
        equation = call.step.equation
        if call.step.name in _BITS | OPAQUE:
            own = [
                x.astype(atom.aval.dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else x
                for x, atom in zip(operands, equation.invars, strict=True)
            ]
            return compat.bind(equation, *own)
        if call.step.name == "reduce_precision":
            return operands
        params = {n: self._param(p, words) for n, p in equation.params.items()}
        if "precision" in params:
            params["precision"] = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)
        return compat.bind(equation.replace(params=params), *operands)

    def _param(self, value: Any, words: Words) -> Any:
        """Widens a parameter: types, and the programs of a reduction by a function."""
        if isinstance(value, np.dtype):
            return self.wide_type(value)
        if not compat.is_jaxpr(value):
            return value
        opened, _ = compat.open_jaxpr(value)
        shapes = [
            jax.ShapeDtypeStruct(v.aval.shape, self.wide_type(v.aval.dtype))
            for v in opened.invars
        ]
        body = plan(value, specs.Identity())
        wide = jax.make_jaxpr(lambda *xs: at_words(body, words, xs, self))(*shapes)
        return wide if hasattr(value, "consts") else wide.jaxpr
