"""What a noise reaches in a function, and what it leaves alone: a plan, printed.

Every decision of the plan that `inject` would run is listed, with the path by which
`inject(only=...)` and `localize` know the equation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from prednet_jax.noise.action import result_type
from prednet_jax.noise.arguments import split_static
from prednet_jax.noise.arithmetic.partials import NoOrder
from prednet_jax.noise.errors import UncoveredReductionError
from prednet_jax.noise.plan import Plan, Step, plan
from prednet_jax.noise.rules import registry
from prednet_jax.noise.specs import NoiseSpec, parts


class Entry(NamedTuple):
    """What happens to one equation.

    Attributes:
        primitive: its name.
        path: where it is, such as `3:scan/0:dot_general`.
        reason: the noise that acts on it, or why none does.
        has_order: False for a reduction of which every order gives the same bits.
        source: the user's line that made it, such as `model.py:12 in loss`.
    """

    primitive: str
    path: str
    reason: str
    has_order: bool = True
    source: str = ""


class Report(NamedTuple):
    """What happens to the equations of a function.

    Attributes:
        perturbed: the equations on which noise acts, and which noise.
        untouched: the float reductions on which none does, and why.
    """

    perturbed: tuple[Entry, ...]
    untouched: tuple[Entry, ...]

    @property
    def uncovered(self) -> tuple[Entry, ...]:
        """The untouched reductions that do have more than one order."""
        return tuple(entry for entry in self.untouched if entry.has_order)

    def __str__(self) -> str:
        lines = [f"perturbed: {len(self.perturbed)}"]
        lines += map(_line, self.perturbed)
        lines += [f"untouched: {len(self.untouched)}"]
        lines += map(_line, self.untouched)
        return "\n".join(lines)


def coverage(
    fn: Callable, spec: NoiseSpec, *, strict: bool = False
) -> Callable[..., Report]:
    """Report on the equations of `fn` under `spec`.

    Args:
        fn: as for `inject`.
        spec: any noise spec.
        strict: raise when a float reduction that has an order is left alone.

    Returns:
        A function of the arguments of `fn` (arrays or `jax.ShapeDtypeStruct`s; nothing
        is computed) that gives the report. Every float reduction of `fn` is in one of
        its two lists.

    Raises:
        NoiseError: when `spec` is no noise spec.
        UncoveredReductionError: on a call, under `strict`, naming the reductions.
    """
    parts(spec)

    def report(*args: Any, **kwargs: Any) -> Report:
        static, arrays = split_static((args, kwargs))
        closed = jax.make_jaxpr(static.call(fn))(*arrays)
        found = Report(*entries(plan(closed, spec)))
        if strict and found.uncovered:
            listed = "; ".join(f"{e.path} ({e.reason})" for e in found.uncovered)
            raise UncoveredReductionError(
                f"left alone by {spec!r}: {listed}; expected every float reduction to "
                "be perturbed"
            )
        return found

    return report


def entries(made: Plan) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """The perturbed equations of a plan, and the float reductions left alone."""
    perturbed, untouched = [], []
    for step in made.walk():
        if step.bodies:
            continue
        if step.action.any:
            perturbed.append(
                Entry(step.name, step.path, _noises(step), True, step.source)
            )
        elif _is_float_reduction(step):
            reason = step.action.reason
            ordered = not isinstance(reason, NoOrder)
            untouched.append(
                Entry(step.name, step.path, str(reason), ordered, step.source)
            )
    return tuple(perturbed), tuple(untouched)


def _line(entry: Entry) -> str:
    where = f"  [{entry.source}]" if entry.source else ""
    return f"  {entry.path}  {entry.reason}{where}"


def _noises(step: Step) -> str:
    """What acts on a step, in words."""
    action, found = step.action, []
    if action.operands is not None:
        found.append(f"operands in {action.operands.format}")
    if action.order is not None and action.cut is not None:
        order = action.order.granularity
        found.append(f"{action.cut.pieces} pieces in random order, {order}")
    if action.results is not None:
        found += [type(part).__name__ for part in parts(action.results)]
    return "; ".join(found)


def _is_float_reduction(step: Step) -> bool:
    rule = registry.find(step.name)
    if not isinstance(rule, registry.FirstOrder):
        return False
    is_sum = rule.cut is not None or bool(rule.left_alone)
    return is_sum and jax.numpy.issubdtype(
        result_type(step.equation), jax.numpy.inexact
    )
