"""What acts on one equation: the parts of a spec, sorted and matched to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import numpy as jnp

from prednet_jax.noise import compat
from prednet_jax.noise.arithmetic import elementwise
from prednet_jax.noise.arithmetic.partials import Cut, NoOrder
from prednet_jax.noise.rules import profiles, registry
from prednet_jax.noise.rules.primitives import MATRIX_PRODUCTS
from prednet_jax.noise.rules.registry import FirstOrder
from prednet_jax.noise.specs import (
    Elementwise,
    NoiseSpec,
    ReducedPrecision,
    ReductionOrder,
    at,
    compose,
    parts,
)


class Noise(NamedTuple):
    """The parts of a spec that act on a computation, sorted by what they act on.

    Attributes:
        order: acts on sums.
        operands: acts on the operands of matrix products.
        results: elementwise noises, which act on results.
    """

    order: ReductionOrder | None = None
    operands: ReducedPrecision | None = None
    results: NoiseSpec | None = None


class Action(NamedTuple):
    """What acts on one equation.

    Attributes:
        order: the reduction order that acts, if any, and `cut` how it cuts the sum.
        cut: see `arithmetic.partials`.
        operands: the format to which operands are rounded.
        results: the noises on the result.
        reason: why the order of a sum is left alone.
    """

    order: ReductionOrder | None = None
    cut: Cut | None = None
    operands: ReducedPrecision | None = None
    results: NoiseSpec | None = None
    reason: str = ""

    @property
    def any(self) -> bool:
        """Whether anything acts."""
        return not (self.order is None and self.operands is None and not self.results)


def sort_noise(spec: NoiseSpec) -> Noise:
    """The parts of a spec that act on a computation; none of another site's."""
    acting = at(spec, "computation")
    found = () if acting is None else parts(acting)
    results = [part for part in found if isinstance(part, Elementwise)]
    return Noise(
        order=next((p for p in found if isinstance(p, ReductionOrder)), None),
        operands=next((p for p in found if isinstance(p, ReducedPrecision)), None),
        results=compose(*results) if results else None,
    )


def action_on(
    noise: Noise, equation: compat.Equation, atoms: Sequence[Any], scope: str
) -> Action:
    """What acts on an equation, a higher-order one excepted.

    Args:
        noise: the sorted spec.
        equation: of a jaxpr.
        atoms: what it reads: of a chain of `add_any`, all its terms.
        scope: named scopes around it.
    """
    name, dtype = equation.primitive.name, result_type(equation)
    rule = registry.find(name)
    if not isinstance(rule, FirstOrder):
        rule = FirstOrder(rounds=False)
    if not jnp.issubdtype(dtype, jnp.inexact):
        return Action(reason="no floating-point result")
    if not any(getattr(aval, "size", 1) for aval in result_avals(equation)):
        return Action(reason=NoOrder("an empty result"))
    shapes = [atom.aval for atom in atoms]
    operands = None
    if noise.operands is not None and name in MATRIX_PRODUCTS:
        wide = [elementwise.is_wider(shape.dtype, noise.operands) for shape in shapes]
        operands = noise.operands if any(wide) else None
    cut, reason = None, "not among what the spec perturbs"
    if noise.order is not None:
        found = _cut(noise.order, rule, equation, shapes, scope)
        cut, reason = (found, "") if isinstance(found, Cut) else (None, found)
    order = None if cut is None else noise.order
    return Action(order, cut, operands, _on_results(noise, equation, rule), reason)


def _cut(
    order: ReductionOrder,
    rule: FirstOrder,
    equation: compat.Equation,
    shapes: Sequence[Any],
    scope: str,
) -> Cut | str:
    """How a sum is cut, or why its order is left alone."""
    if rule.cut is None:
        return rule.left_alone or "no reduction"
    name, params = equation.primitive.name, equation.params
    reason = profiles.excluded(order.profile, name, params, scope)
    if reason is not None:
        return reason
    with compat.settings(equation):
        return rule.cut(order, params, *shapes)


def _on_results(
    noise: Noise, equation: compat.Equation, rule: FirstOrder
) -> NoiseSpec | None:
    """The elementwise noises that act on the results of an equation."""
    types = [getattr(aval, "dtype", bool) for aval in result_avals(equation)]
    if noise.results is None or not any(map(elementwise.has_noise, types)):
        return None
    name = equation.primitive.name
    found = [
        part
        for part in parts(noise.results)
        if (name in named(part) if named(part) else rule.rounds)
    ]
    return compose(*found) if found else None


def named(part: NoiseSpec) -> tuple[str, ...]:
    """The primitives that a noise on results is restricted to; none: not restricted."""
    return (part.primitives or ()) if isinstance(part, Elementwise) else ()


def result_avals(equation: compat.Equation) -> list[Any]:
    """Shapes and types of the results; of what is added to a mutable array, its own."""
    if equation.primitive.name == "addupdate":
        return [equation.invars[1].aval]
    return [var.aval for var in equation.outvars]


def result_type(equation: compat.Equation) -> Any:
    """Type of the first result; bool where there is none, or none with a type."""
    for aval in result_avals(equation):
        return getattr(aval, "dtype", np.dtype(bool))
    return np.dtype(bool)
