"""Runs a call in float64.

There a result has nearly no rounding errors: the jaxpr is evaluated with each
floating-point type widened. Arguments and constants keep their values, and casts widen
too (`preferred_element_type`, `new_dtype`). What depends on the bits of a narrower type
(`bitcast_convert_type`, random numbers) and foreign kernels are computed in their own
type. Chaos loses float64's 16 digits too. Noise in the last place shows it
(`Exact.errors`).
"""

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import compat, leaves, random_bits, specs
from prednet_jax.noise._inject import Traced, evaluate, traced
from prednet_jax.noise.arguments import Outcome
from prednet_jax.noise.leaves import Result, rms, subtract, wide_leaves
from prednet_jax.noise.plan import plan
from prednet_jax.noise.questions.sampling import (
    BoundCall,
    with_routines,
    with_steps,
)
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.rules.primitives import OPAQUE
from prednet_jax.noise.run import Call, Evaluation, at_words
from prednet_jax.noise.types import Atom, PyTree


class Exact(NamedTuple):
    """A result in float64; `errors`: for each leaf, the RMS of its own rounding."""

    values: Result
    errors: list[float]


# Runs that show the error of float64, and their noise.
_DRAWS = 4
_NOTHING = specs.Identity()
_NOISE = with_routines(specs.UlpPerturbation(keep_exact=True))
# Noise that moves no leaf by a larger share of it acts to first order: it is in
# proportion to the epsilon of the type.
_FIRST_ORDER = 0.01


def exact(
    call: BoundCall,
    key: Array,
    comparable: Callable[[Result], Result] = lambda values: values,
    noise: Sequence[float] = (math.inf,),
) -> Exact:
    """Returns the result of a call in float64, as `comparable` changes it.

    Args:
        call: the function with its arguments.
        key: key of the noise that shows the error of float64.
        comparable: brings results into a comparable form, such as `Signs.settled`.
        noise: for each leaf, how far noise moves it in the program's own types, in
            units of its RMS. It shows the error of float64 if it is small and all of
            the program is in float64; otherwise, and by default, four runs under noise
            do.
    """
    run = widened_program(call, np.dtype(np.float64))
    truth = comparable(run(key))
    is_wide = not any(step.name in _BITS | OPAQUE for step in call.equations())
    if is_wide and max(noise, default=0.0) <= _FIRST_ORDER:
        described = leaves.describe_leaves(call.plain)
        smaller = (
            np.finfo(np.float64).eps / (x.epsilon or math.inf) for x in described
        )
        rows = zip(truth, noise, smaller, strict=True)
        return Exact(truth, [rms(x) * moved * ratio for x, moved, ratio in rows])
    drawn = [comparable(run(k, _NOISE)) for k in random_bits.split(key, _DRAWS)]
    errors = [
        rms(np.array([rms(subtract(x, right)) for x in of_leaf]))
        for right, *of_leaf in zip(truth, *drawn, strict=True)
    ]
    return Exact(truth, errors)


def widened_program(call: BoundCall, dtype: np.dtype) -> Callable[..., Result]:
    """Returns `run(key, spec)`: a call with floating-point types widened.

    The spec defaults to no noise.

    Args:
        call: the function with its arguments.
        dtype: float32 or float64; narrower types become it, and complex ones the
            complex type of its width. Products have the highest precision.
    """
    program, arrays = call.program, call.pure()[1]

    def compiled(counted: Mapping[str, int]) -> Callable[..., Outcome]:
        widening = _Widening(dtype)
        widening.counted = counted
        wide = functools.partial(widening.evaluated, program)

        @functools.partial(jax.jit, static_argnums=0)
        def noisy(spec: specs.NoiseSpec, key: Array, *arrays: Array) -> Outcome:
            return evaluate(spec, key, traced(wide, arrays), arrays)

        return noisy

    noisy = with_steps(compiled, call.steps)
    own = list(map(jnp.array, arrays))  # In the types that were traced.

    def run(key: Array, spec: specs.NoiseSpec = _NOTHING) -> Result:
        is_double = dtype == np.float64
        types = jax.enable_x64(True) if is_double else contextlib.nullcontext()
        with types:
            outcome = noisy(spec, key, *own)
        return wide_leaves(jax.device_get(outcome).result())

    return run


# Their results depend on how many bits a number has.
_BITS = frozenset({"bitcast_convert_type", "nextafter", "random_gamma", "rng_uniform"})


class _Widening(Evaluation):
    """Evaluates a program in types of at least a given width."""

    def __init__(self, dtype: np.dtype) -> None:
        super().__init__()
        self.dtype, self.changes = dtype, f"in {dtype}"

    def evaluated(self, program: Traced, *arrays: Array) -> PyTree:
        """Returns the outcome of a program without noise, in the wide types."""
        wide = list(map(self.widened, arrays))
        return evaluate(specs.Identity(), jax.random.key(0), program, wide, hooks=self)

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


class Doubling(_Widening):
    """Evaluates a program with float64 for float32, and with constants as typed.

    Narrower types stay, since the program chose them. A constant of float32 becomes the
    shortest decimal number that is rounded to it.
    """

    def __init__(self) -> None:
        super().__init__(np.dtype(np.float64))

    def wide_type(self, dtype: np.dtype) -> np.dtype:
        """Returns float64 for float32 and a narrower type for itself."""
        is_float = jnp.issubdtype(dtype, jnp.inexact)
        is_narrow = is_float and jnp.finfo(dtype).bits < 32
        return dtype if is_narrow else super().wide_type(dtype)

    def read(self, values: Mapping[Atom, Array], atom: Atom) -> Array:
        """Returns the value of an atom; a constant of float32 is not rounded."""
        if compat.is_literal(atom) and atom.aval.dtype == np.float32:
            x: Any = np.asarray(float(str(np.float32(atom.val))), self.dtype)
            return x
        return super().read(values, atom)

    def first_order(self, call: Call, words: Words, operands: list) -> list:
        """Evaluates an equation, also one that rounds to a narrower format."""
        if call.step.name == "reduce_precision":
            return compat.bind(call.step.equation, *operands)
        return super().first_order(call, words, operands)
