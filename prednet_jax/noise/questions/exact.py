"""What the result of a call would be without rounding errors, nearly: in float64.

The jaxpr is evaluated with each floating-point type widened to float64, or complex128:
of arguments and constants, whose values stay what they are in their own type, and of
what an equation asks for (`preferred_element_type`, `new_dtype`), casts included. What
depends on the bits of a narrower type (`bitcast_convert_type`, random numbers) and
foreign kernels are computed in their own type.

Chaos loses float64's 16 digits too: stochastic rounding shows it (`Exact.errors`).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp

from prednet_jax.noise import compat, random_bits, specs
from prednet_jax.noise._inject import inject, traced
from prednet_jax.noise.plan import plan
from prednet_jax.noise.questions.leaves import (
    Result,
    rms,
    subtract,
    wide_leaves,
)
from prednet_jax.noise.questions.sampling import (
    BoundCall,
    with_routines,
)
from prednet_jax.noise.random_bits import Words, first_words
from prednet_jax.noise.rules.primitives import KERNELS
from prednet_jax.noise.run import Call, Evaluation, at_words


class Exact(NamedTuple):
    """A result in float64; `errors`: for each leaf, the RMS of its own rounding."""

    values: Result
    errors: list[float]


# Runs that show the error of float64, and their noise.
_DRAWS = 4
_NOISE = with_routines(
    specs.compose(specs.ReductionOrder(), specs.StochasticRounding())
)


def exact(
    call: BoundCall,
    key: Array,
    settled: Callable[[Result], Result] = lambda values: values,
) -> Exact:
    """The result of a call in float64, as `settled` makes it comparable."""
    pure, arrays = call.pure()
    program = traced(pure, arrays)

    def wide(*arrays: Array) -> list[Any]:
        planned = plan(program.jaxpr, specs.Identity())
        return at_words(planned, first_words(key), arrays, _Wide())

    def values(fn: Callable, *given: Any) -> Result:
        outcome = jax.tree.unflatten(jax.tree.structure(program.shapes), fn(*given))
        return settled(wide_leaves(jax.device_get(outcome).result()))

    own = list(map(jnp.array, arrays))  # In the types that were traced.
    with jax.enable_x64(True):
        given = list(map(_widened, own))
        truth = values(jax.jit(wide), *given)
        noisy = inject(wide, _NOISE)
        drawn = [values(noisy, k, *given) for k in random_bits.split(key, _DRAWS)]
    errors = [
        rms(np.array([rms(subtract(x, right)) for x in of_leaf]))
        for right, *of_leaf in zip(truth, *drawn, strict=True)
    ]
    return Exact(truth, errors)


# Their results depend on how many bits a number has.
_BITS = frozenset({"bitcast_convert_type", "nextafter", "rng_uniform"})
# The code behind them was written for the type that it was given.
_FOREIGN = KERNELS | {"pure_callback", "io_callback", "ffi_call"}


class _Wide(Evaluation):
    """An evaluation in wide types; inside of `jax.enable_x64(True)`."""

    def read(self, values: Mapping[Any, Any], atom: Any) -> Any:
        x = super().read(values, atom)
        if compat.is_literal(atom):  # A number of the program is rounded to its type.
            x = np.asarray(x, atom.aval.dtype)
        return _widened(x)

    def first_order(self, call: Call, words: Words, operands: list) -> list:
        equation = call.step.equation
        if call.step.name in _BITS | _FOREIGN:
            own = [
                x.astype(atom.aval.dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else x
                for x, atom in zip(operands, equation.invars, strict=True)
            ]
            return compat.bind(equation, *own)
        if call.step.name == "reduce_precision":
            return operands
        params = {n: self._param(p, words) for n, p in equation.params.items()}
        if "precision" in params:
            params["precision"] = None
        return compat.bind(equation.replace(params=params), *operands)

    def _param(self, value: Any, words: Words) -> Any:
        """A parameter: types, and the programs of a reduction by a function."""
        if isinstance(value, np.dtype):
            return _wide_type(value)
        if not compat.is_jaxpr(value):
            return value
        opened, _ = compat.open_jaxpr(value)
        shapes = [
            jax.ShapeDtypeStruct(v.aval.shape, _wide_type(v.aval.dtype))
            for v in opened.invars
        ]
        body = plan(value, specs.Identity())
        wide = jax.make_jaxpr(lambda *xs: at_words(body, words, xs, self))(*shapes)
        return wide if hasattr(value, "consts") else wide.jaxpr


def _wide_type(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return np.dtype(np.complex128)
    return np.dtype(np.float64) if jnp.issubdtype(dtype, jnp.floating) else dtype


def _widened(x: Any) -> Any:
    """An array in the wide type; what is no floating-point array as it is."""
    dtype = getattr(x, "dtype", np.dtype(bool))
    wide = _wide_type(dtype)
    return x if wide == dtype else x.astype(wide)
