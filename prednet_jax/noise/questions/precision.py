"""Runs a call in other precisions: float64, the highest of its products, without casts.

In float64 a result has nearly no rounding errors: the jaxpr is evaluated with each
floating-point type widened. Arguments and constants keep their values, and casts widen
too (`preferred_element_type`, `new_dtype`). What depends on the bits of a narrower type
(`bitcast_convert_type`, random numbers) and foreign kernels are computed in their own
type. Chaos loses float64's 16 digits too. Noise in the last place shows it
(`Exact.errors`).

A program also rounds on its own, which no noise models. Most accelerators multiply
float32 in a narrower format by default (TF32, bfloat16), in every run the same, and a
cast to bfloat16 rounds in the same way each time, as does arithmetic in bfloat16. So
the questions compare a program with itself:

    highest   the same jaxpr with the highest precision in every product
    uncast    the same with every narrower type widened to float32 (float64 where the
              program has float64)

    effect of the device's format             = unchanged program - highest
    effect of casts and of narrow arithmetic  = highest - uncast

Whether a product rounds is found by trying it: random operands of its shapes and types
are multiplied at its own precision and at the highest. The format is the one whose
error is nearest. A device may round a product alone and not inside a loop, so the size
of the effect always comes from the program itself.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import compat, leaves, random_bits, specs
from prednet_jax.noise._inject import Traced, evaluate, traced
from prednet_jax.noise.arguments import Outcome, split
from prednet_jax.noise.leaves import Result, rms, subtract, wide_leaves
from prednet_jax.noise.plan import Step, has_floats, plan
from prednet_jax.noise.questions.sampling import (
    BoundCall,
    with_routines,
    with_steps,
)
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.rules.primitives import MATRIX_PRODUCTS, OPAQUE, rounds_to
from prednet_jax.noise.run import Call, Evaluation, at_words
from prednet_jax.noise.types import Atom, Aval, Function, PyTree


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
        given = zip(truth, noise, smaller, strict=True)
        return Exact(truth, [rms(x) * moved * ratio for x, moved, ratio in given])
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
        given = list(map(self.widened, arrays))
        return evaluate(specs.Identity(), jax.random.key(0), program, given, hooks=self)

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


# Relative error of a product of random operands, by explicit bits of mantissa.
# Of two formats with as many, the first is named.
_ERROR = {name: 0.29 * 2.0**-bits for name, (_, bits, _) in specs.FORMATS.items()}
# Two orders of one float32 product differ by less.
_LEAST = 1e-5
CASTS = "casts"


class OwnRounding(NamedTuple):
    """The rounding that a call does on its own.

    Attributes:
        call: the same call with every product at the highest precision.
        products: the products that this device rounds, in program order, each with
            the format of its operands: `tf32`, `bf16` or `fp8`.
        effects: by name of the format, and `casts`: the effect on each leaf of the
            result. A name without any effect is left out.
        notes: one line for each, with a remedy for the user.
        uncast: `run(key, spec=None)`, the call without its casts; None if it has none.
    """

    call: BoundCall
    products: Mapping[Step, str]
    effects: dict[str, Result]
    notes: tuple[str, ...]
    uncast: Callable[..., Result] | None = None

    def total(self) -> Result | None:
        """Returns the sum of the effects on each leaf, or None without effects."""
        if not self.effects:
            return None
        with np.errstate(invalid="ignore"):
            return [sum(xs) for xs in zip(*self.effects.values(), strict=True)]


def own_rounding(
    call: BoundCall, comparable: Callable[[Result], Result] = lambda values: values
) -> OwnRounding:
    """Returns a call's own rounding, found by running it with and without rounding.

    Args:
        call: the function with its arguments.
        comparable: brings results into a comparable form, such as `Signs.settled`.
    """
    steps = call.equations()
    products = rounded_products(steps)
    casts = [step for step in steps if not step.bodies and _is_narrow(step)]
    if not products and not casts:
        return OwnRounding(call, {}, {}, ())
    reference = call
    effects: dict[str, Result] = {}
    notes: list[str] = []
    uncast: Callable[..., Result] | None = None
    here = comparable(wide_leaves(call.plain))
    if products:
        reference = call.calling(at_highest_precision(call.fn))
        highest = comparable(wide_leaves(reference.plain))
        effect = list(map(subtract, here, highest))
        if any(map(np.any, effect)):
            effects[_main_format(products)] = effect
            notes += format_notes(products)
        here = highest
    if casts:
        uncast = _uncast(call, steps)
        wide = comparable(uncast(random_bits.split(jax.random.key(0), 1)[0]))
        effects[CASTS] = list(map(subtract, here, wide))
        first = casts[0].source or casts[0].path
        notes.append(f"the function rounds by casts of its own (first: {first})")
    effects = {name: x for name, x in effects.items() if any(map(np.any, x))}
    return OwnRounding(reference, products, effects, tuple(notes), uncast)


def at_highest_precision(fn: Function) -> Function:
    """Returns `fn` with the highest precision in every product that it computes.

    The jaxpr is rewritten, loops and branches included, so that an explicit
    `precision=DEFAULT` counts as well; paths and lines of equations stay the same.
    """

    @functools.wraps(fn)
    def in_full(*args: PyTree, **kwargs: PyTree) -> PyTree:
        static, arrays, objects = split((args, kwargs))
        closed, shapes = traced(static.call(fn), arrays)
        results = compat.as_function(compat.with_highest_precision(closed))(*arrays)
        outcome = leaves.rebuilt(shapes, results)
        outcome.write_back(objects)
        return outcome.result(objects)

    return in_full


def _main_format(products: Mapping[Step, str]) -> str:
    names = list(products.values())
    return max(dict.fromkeys(names), key=names.count)


def format_notes(products: Mapping[Step, str]) -> tuple[str, ...]:
    """Returns a line that names the rounding of this device, and a remedy."""
    if not products:
        return ()
    step = next(iter(products))
    first = step.source or step.path
    return (
        f"this device rounds float32 products to {_main_format(products)} by default "
        f'(first: {first}); jax.default_matmul_precision("highest") computes in '
        "float32",
    )


def rounded_products(steps: Sequence[Step]) -> dict[Step, str]:
    """Returns the products that this device rounds, with the format of each."""
    products = [s for s in steps if s.name in MATRIX_PRODUCTS]
    formats = {
        step: _format_of(step.equation)
        for step in products
        if "precision" in step.equation.params
    }
    return {step: name for step, name in formats.items() if name}


_TRIED: dict[Hashable, str] = {}


def _format_of(equation: compat.Equation) -> str:
    """Returns the format in which this device computes a product, or ""."""
    shapes = [atom.aval for atom in equation.invars]
    if any(shape.dtype not in (np.float32, np.complex64) for shape in shapes):
        return ""
    params = dict(equation.params)
    if compat.is_highest(params["precision"]) or not all(s.size for s in shapes):
        return ""
    params |= {"out_sharding": None} if "out_sharding" in params else {}
    kinds = [(shape.shape, str(shape.dtype)) for shape in shapes]
    device = getattr(jax.config, "jax_default_device", None) or jax.devices()[0]
    kind = getattr(device, "device_kind", device)
    key = repr((kind, equation.primitive.name, kinds, params))
    if key not in _TRIED:
        _TRIED[key] = _try_product(equation.replace(params=params), shapes)
    return _TRIED[key]


def _try_product(equation: compat.Equation, shapes: Sequence[Aval]) -> str:
    drawn = np.random.default_rng(0)
    # Concrete arrays, also where a function is being traced around.
    with jax.ensure_compile_time_eval():
        operands = [
            jnp.asarray(drawn.standard_normal(s.shape).astype(s.dtype)) for s in shapes
        ]
        here, there = (
            np.asarray(jax.jit(functools.partial(compat.bind, e))(*operands)[0])
            for e in (equation, compat.highest_of(equation))
        )
    size = rms(there)
    error = rms(subtract(here, there)) / size if size else 0.0
    if not _LEAST < error < math.inf:
        return ""
    return min(_ERROR, key=lambda name: abs(math.log(error / _ERROR[name])))


def _is_narrow(step: Step) -> bool:
    """Returns whether an equation casts to fewer bits, or computes in a narrow type."""
    atoms = (*step.equation.invars[:1], *step.equation.outvars)
    kinds = [getattr(atom.aval, "dtype", np.dtype(bool)) for atom in atoms]
    if not kinds or not all(jnp.issubdtype(kind, jnp.inexact) for kind in kinds):
        return False
    if step.name in ("convert_element_type", "reduce_precision"):
        return bool(rounds_to(step.equation))
    return any(jnp.finfo(kind).bits < 32 for kind in kinds[1:])


def _uncast(call: BoundCall, steps: Sequence[Step]) -> Callable[..., Result]:
    """Returns a call without its casts, at the highest precision."""
    types = [
        atom.aval.dtype
        for step in steps
        for atom in (*step.equation.invars, *step.equation.outvars)
        if has_floats([atom.aval])
    ]
    wide = any(jnp.finfo(dtype).bits == 64 for dtype in types)
    return widened_program(call, np.dtype(np.float64 if wide else np.float32))
