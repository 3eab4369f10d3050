"""A program evaluated in float64: without rounding errors, nearly.

The jaxpr is evaluated with each floating-point type widened to float64, or complex128:
of arguments and constants, whose values stay what they are in their own type, and of
what an equation asks for (`preferred_element_type`, `new_dtype`), casts included.
Loops, branches and calls are rebuilt by their rules (`rules.control_flow`). What
depends on the bits of a narrower type (`bitcast_convert_type`, random numbers) and
foreign kernels are computed in their own type.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from prednet_jax.noise import compat
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.rules import registry
from prednet_jax.noise.rules.primitives import KERNELS
from prednet_jax.noise.rules.registry import HigherOrder


class _Higher(NamedTuple):
    """A higher-order equation while it is evaluated; see `registry.Call`."""

    equation: compat.Equation
    bodies: Any

    @property
    def params(self) -> dict[str, Any]:
        return self.equation.params

    def bind(self, *operands: Any) -> list[Any]:
        # Only derivatives ask for it, and a program has none that are not taken.
        raise NotImplementedError

    def body(self, words: Words, operands: Sequence[Any], label: str = "") -> list[Any]:
        return evaluate(self.bodies[label], operands, words)

    def decided(self, words: Words, number: Any) -> None:
        pass


def evaluate(jaxpr: Any, args: Sequence[Any], words: Words) -> list[Any]:
    """Evaluate a jaxpr at wide arguments; inside of `jax.enable_x64(True)`."""
    opened, consts = compat.open_jaxpr(jaxpr)
    values = dict(zip(opened.constvars, map(widened, consts), strict=True))
    values.update(zip(opened.invars, args, strict=True))

    def read(atom: Any) -> Any:
        if compat.is_literal(atom):
            # As the program has it, rounded to its type.
            return widened(np.asarray(atom.val, atom.aval.dtype))
        return values[atom]

    for equation in opened.eqns:
        operands = [read(atom) for atom in equation.invars]
        rule = registry.find(equation.primitive.name)
        with compat.context(equation):
            if isinstance(rule, HigherOrder):
                higher = _Higher(equation, rule.programs(equation))
                results = rule.run(higher, words, operands)
            else:
                results = _first_order(equation, operands, words)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in opened.outvars]


# Their results depend on how many bits a number has.
_BITS = frozenset({"bitcast_convert_type", "nextafter", "rng_uniform"})
# The code behind them was written for the type that it was given.
_FOREIGN = KERNELS | {"pure_callback", "io_callback", "ffi_call"}


def _first_order(
    equation: compat.Equation, operands: list, words: Words
) -> Sequence[Any]:
    """The results of an equation without programs inside."""
    name = equation.primitive.name
    if name in _BITS or name in _FOREIGN:
        own = [
            x.astype(atom.aval.dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else x
            for x, atom in zip(operands, equation.invars, strict=True)
        ]
        return [widened(x) for x in compat.bind(equation, *own)]
    if name == "reduce_precision":
        return operands
    params = {n: _wide_param(p, words) for n, p in equation.params.items()}
    if "precision" in params:
        params["precision"] = None
    return compat.bind(equation.replace(params=params), *operands)


def _wide_type(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return np.dtype(np.complex128)
    return np.dtype(np.float64) if jnp.issubdtype(dtype, jnp.floating) else dtype


def _wide_param(value: Any, words: Words) -> Any:
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
    made = jax.make_jaxpr(lambda *xs: evaluate(value, xs, words))(*shapes)
    return made if hasattr(value, "consts") else made.jaxpr


def widened(x: Any) -> Any:
    """An array in the wide type; what is no floating-point array as it is."""
    dtype = getattr(x, "dtype", np.dtype(bool))
    wide = _wide_type(dtype)
    return x if wide == dtype else x.astype(wide)
