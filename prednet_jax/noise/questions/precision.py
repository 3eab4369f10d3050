"""Runs a call at the highest precision of its products, and without its casts.

A program rounds on its own, which no noise models. Most accelerators multiply float32
in a narrower format by default (TF32, bfloat16), in every run the same, and a cast to
bfloat16 rounds in the same way each time, as does arithmetic in bfloat16. So the
questions compare a program with itself:

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

import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from prednet_jax.noise import compat, leaves, random_bits, specs
from prednet_jax.noise._inject import traced
from prednet_jax.noise.actions import has_floats
from prednet_jax.noise.arguments import split
from prednet_jax.noise.leaves import Result, rms, subtract, wide_leaves
from prednet_jax.noise.plan import Step
from prednet_jax.noise.questions.sampling import (
    BoundCall,
)
from prednet_jax.noise.questions.widening import widened_program
from prednet_jax.noise.rules.primitives import MATRIX_PRODUCTS, rounds_to
from prednet_jax.noise.types import Aval, Function, PyTree

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
