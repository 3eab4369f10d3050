"""Decides which noise acts on one equation, apart from all others.

`action_on` looks at the primitive, its parameters, and the shapes and types of its
inputs. `plan` does so for each equation of a program.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from jax import numpy as jnp

from prednet_jax.noise import compat, specs
from prednet_jax.noise.errors import expect
from prednet_jax.noise.order import profiles
from prednet_jax.noise.order.collectives import cut_gathered
from prednet_jax.noise.order.partials import Cut, LeftAlone
from prednet_jax.noise.rounding import elementwise
from prednet_jax.noise.rounding.steps import is_wider
from prednet_jax.noise.rules import registry
from prednet_jax.noise.rules.primitives import KERNELS, MATRIX_PRODUCTS, ROUTINES
from prednet_jax.noise.rules.registry import FirstOrder
from prednet_jax.noise.types import Atom, Aval


class Noise(NamedTuple):
    """The parts of a spec that act on a computation, grouped by their target."""

    order: specs.ReductionOrder | None = None
    fixed: specs.FixedOrder | None = None
    operands: specs.ReducedPrecision | None = None
    results: tuple[specs.Elementwise, ...] = ()
    only: Collection[str] | None = None


class Action(NamedTuple):
    """The noise that acts on one equation.

    It holds an order and the cut of the sum, or a replay in a GPU's order; the format
    of operands; and noises on the result. `left_alone` is why the order of a sum is not
    drawn; `routine` is whether the equation is a library routine or a kernel; `chosen`
    is whether it is among the equations that may be perturbed.
    """

    order: specs.ReductionOrder | None = None
    cut: Cut | None = None
    replay: specs.Replay | None = None
    operands: specs.ReducedPrecision | None = None
    results: specs.NoiseSpec | None = None
    left_alone: LeftAlone | None = None
    routine: bool = False
    chosen: bool = True

    @property
    def any(self) -> bool:
        """Returns whether anything acts."""
        acting = (self.order, self.replay, self.operands, self.results)
        return self.chosen and any(part is not None for part in acting)


def noise_of(spec: specs.NoiseSpec) -> Noise:
    """Returns the parts of a spec that act on a computation."""
    acting = specs.at(spec, "computation")
    parts = () if acting is None else specs.parts(acting)

    def first(kind: type[specs.NoiseSpec]) -> Any:
        return next((part for part in parts if isinstance(part, kind)), None)

    return Noise(
        order=first(specs.ReductionOrder),
        fixed=first(specs.FixedOrder),
        operands=first(specs.ReducedPrecision),
        results=tuple(p for p in parts if isinstance(p, specs.Elementwise)),
    )


def action_on(
    noise: Noise,
    equation: compat.Equation,
    atoms: Sequence[Atom],
    scope: str,
    gathers: Mapping[Atom, int],
) -> Action:
    """Returns the noise that acts on a first-order equation.

    `atoms` are its inputs, `gathers` the results of `all_gather` and their axes.
    """
    name, params = equation.primitive.name, equation.params
    rule = registry.RULES.get(name)
    if not isinstance(rule, FirstOrder):
        rule = FirstOrder(rounds=False)
    avals = result_avals(equation)
    if not has_floats(avals):
        return Action(left_alone=LeftAlone("no floating-point result"))
    if not any(getattr(aval, "size", 1) for aval in avals):
        return Action(left_alone=LeftAlone("an empty result", harmless=True))
    shapes = [atom.aval for atom in atoms]
    operands = None
    if noise.operands is not None and name in MATRIX_PRODUCTS:
        narrow = noise.operands.format
        wide = [is_wider(shape.dtype, narrow) for shape in shapes]
        operands = noise.operands if any(wide) else None
    decided: Cut | specs.Replay | LeftAlone | str = "not among what the spec perturbs"
    if noise.order is not None and has_floats(avals[:1]):
        summed = name == "reduce_sum" and not compat.is_literal(atoms[0])
        axis = gathers.get(atoms[0], -1) if summed else -1
        if noise.order.collectives and axis in params.get("axes", ()):
            decided = cut_gathered(noise.order, axis, params["axes"], shapes[0])
        elif rule.cut is None:
            decided = rule.left_alone or "no reduction"
        else:
            excluded = profiles.excluded(noise.order.profile, name, params, scope)
            with compat.settings(equation):
                decided = excluded or rule.cut(noise.order, params, *shapes)
            is_accepted = isinstance(decided, Cut | LeftAlone | str)
            accepted = "a Cut, a LeftAlone or a text from the rule"
            expect(is_accepted, f"the cut of {name}", decided, accepted)
    if noise.fixed is not None and (rule.cut is not None or rule.left_alone):
        decided = noise.fixed.replay(equation)
    if isinstance(decided, str):
        decided = LeftAlone(decided)
    return Action(
        order=noise.order if isinstance(decided, Cut) else None,
        cut=decided if isinstance(decided, Cut) else None,
        replay=decided if isinstance(decided, specs.Replay) else None,
        operands=operands,
        results=_on_results(noise, name, avals, rule),
        left_alone=decided if isinstance(decided, LeftAlone) else None,
        routine=name in ROUTINES or name in KERNELS,
    )


def _on_results(
    noise: Noise, name: str, avals: Sequence[Aval], rule: FirstOrder
) -> specs.NoiseSpec | None:
    """Returns the elementwise noises that act on the results of an equation."""
    types = [getattr(aval, "dtype", jnp.dtype(bool)) for aval in avals]
    if not any(map(elementwise.has_noise, types)):
        return None
    acting = [
        part
        for part in noise.results
        if (name in part.primitives if part.primitives else rule.rounds)
        or (part.routines and name in KERNELS | ROUTINES)
    ]
    return specs.compose(*acting) if acting else None


def result_avals(equation: compat.Equation) -> list[Aval]:
    """Returns the results' shapes and types, or those a mutable array holds."""
    if equation.primitive.name == "addupdate":
        return [equation.invars[1].aval]
    return [var.aval for var in equation.outvars]


def has_floats(avals: Sequence[Aval]) -> bool:
    """Returns whether any of these abstract values is floating-point."""
    types = (getattr(aval, "dtype", bool) for aval in avals)
    return any(jnp.issubdtype(dtype, jnp.inexact) for dtype in types)
