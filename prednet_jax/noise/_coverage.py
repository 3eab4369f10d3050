"""Reports which equations of a function noise acts on, and why not on the others.

Equations are listed with the paths that `inject(only=...)` and `localize` take.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import jax

from prednet_jax.noise import compat
from prednet_jax.noise.actions import has_floats, result_avals
from prednet_jax.noise.arguments import pure
from prednet_jax.noise.order.partials import Cut, LeftAlone
from prednet_jax.noise.order.permutations import narrow_type
from prednet_jax.noise.order.products import CONVOLUTION_PIECES
from prednet_jax.noise.plan import Plan, Step, plan
from prednet_jax.noise.rounding.elementwise import has_noise
from prednet_jax.noise.rules import registry
from prednet_jax.noise.rules.primitives import EXACT, rounds_to
from prednet_jax.noise.specs import Elementwise, NoiseSpec, ReductionOrder, parts
from prednet_jax.noise.tables import bracketed
from prednet_jax.noise.types import Atom, PyTree


class CoverageEntry(NamedTuple):
    """What happens to one equation.

    Attributes:
        path: the equation's path, such as `3:scan/0:dot_general`.
        reason: the noise that acts on it, or why no noise does.
        has_order: False for a reduction of which every order gives the same bits.
        source: the user's line that made it, such as `model.py:12 in loss`.
        partials: the number of pieces of the sum. Defaults to None: no order is drawn.
    """

    primitive: str
    path: str
    reason: str
    has_order: bool = True
    source: str = ""
    partials: int | None = None


class CoverageReport(NamedTuple):
    """What happens to all equations of a function that do floating-point arithmetic.

    Attributes:
        perturbed: the equations on which noise acts, and which noise.
        untouched: the equations on which no noise acts, and why.
        single: operations that round but are not sums, under a spec that only reorders
            sums and so cannot affect them.
    """

    perturbed: tuple[CoverageEntry, ...]
    untouched: tuple[CoverageEntry, ...]
    single: tuple[CoverageEntry, ...] = ()

    def __str__(self) -> str:
        lines = [f"perturbed: {len(self.perturbed)}"]
        lines += map(_line, self.perturbed)
        lines += [f"untouched: {len(self.untouched)}"]
        lines += map(_line, self.untouched)
        if self.single:
            counts = Counter(entry.primitive for entry in self.single)
            named = ", ".join(f"{name} {n}" for name, n in counts.most_common(6))
            more = ", ..." if len(counts) > 6 else ""
            lines += [f"single operations, without an order: {named}{more}"]
        return "\n".join(lines)


def coverage(fn: Callable, spec: NoiseSpec) -> Callable[..., CoverageReport]:
    """Reports on the equations of `fn` under `spec`.

    Returns:
        A function of the arguments of `fn` (arrays or `jax.ShapeDtypeStruct` objects;
            nothing is computed) that gives the report. All floating-point arithmetic of
            `fn` is in one of its lists.

    Example:
        >>> import numpy as np
        >>> from prednet_jax import noise
        >>> x = np.ones((4, 300), np.float32)
        >>> report = noise.coverage(lambda x: -x.sum(), noise.ReductionOrder())(x)
        >>> [entry.primitive for entry in report.perturbed]
        ['reduce_sum']
    """
    parts(spec)

    def report(*args: PyTree, **kwargs: PyTree) -> CoverageReport:
        function, arrays = pure(fn, args, kwargs)
        return report_of(plan(jax.make_jaxpr(function)(*arrays), spec))

    return report


class Reach(NamedTuple):
    """The equations that one result of a program depends on, with and without noise.

    Attributes:
        reached: whether noise acts on anything.
        missed: floating-point arithmetic on which none acts.
        routines: library routines and kernels on whose operands noise acts.
    """

    reached: bool = False
    missed: frozenset[CoverageEntry] = frozenset()
    routines: frozenset[CoverageEntry] = frozenset()


def reach(planned: Plan) -> list[Reach]:
    """Returns, for each result of a program, whether noise reaches it.

    A loop or a branch counts as one operation, whose results all depend on all its
    operands. A call is entered.
    """
    report = report_of(planned)
    none: frozenset[CoverageEntry] = frozenset()
    acting = {x.path: frozenset([x]) for x in report.perturbed}
    missed = {x.path: frozenset([x]) for x in (*report.untouched, *report.single)}

    def joined(reaches: Iterable[Reach]) -> Reach:
        reached, entries, routines = zip(Reach(), *reaches, strict=True)
        return Reach(any(reached), none.union(*entries), none.union(*routines))

    def own(step: Step) -> Reach:
        inside = [own(s) for body in step.bodies.values() for s in body.steps]
        noises = acting.get(step.path, none)
        routines = noises if step.action.routine else none
        alone = Reach(bool(noises), missed.get(step.path, none), routines)
        return joined([alone, *inside])

    def through(program: Plan, operands: Sequence[Reach]) -> list[Reach]:
        by_atom = dict(zip(program.jaxpr.invars, operands, strict=True))

        def of(atom: Atom) -> Reach:
            return Reach() if compat.is_literal(atom) else by_atom.get(atom, Reach())

        for step in program.steps:
            before = [of(atom) for atom in step.atoms]
            rule = registry.higher_order(step.name)
            if rule is not None and rule.inlined:
                (body,) = step.bodies.values()
                after = through(body, before)
            else:
                after = [joined([own(step), *before])] * len(step.equation.outvars)
            by_atom.update(zip(step.equation.outvars, after, strict=True))
        return [of(atom) for atom in program.jaxpr.outvars]

    return through(planned, [Reach()] * len(planned.jaxpr.invars))


def report_of(planned: Plan) -> CoverageReport:
    """Returns a report of the noise that a plan adds to each equation."""
    perturbed: list[CoverageEntry] = []
    untouched: list[CoverageEntry] = []
    single: list[CoverageEntry] = []
    for program in planned.programs():
        for step in program.steps:
            if step.bodies:
                continue
            if step.action.any:
                perturbed.append(_perturbed(step))
            elif exempt := _left_alone(step, bool(planned.noise.results)):
                untouched.append(_entry(step, exempt.reason, not exempt.harmless))
            elif reason := _rounding(step, bool(planned.noise.results)):
                (untouched if planned.noise.results else single).append(
                    _entry(step, reason, has_order=False)
                )
    return CoverageReport(tuple(perturbed), tuple(untouched), tuple(single))


def _entry(step: Step, reason: str, has_order: bool = True) -> CoverageEntry:
    return CoverageEntry(step.name, step.path, reason, has_order, step.source)


def _line(entry: CoverageEntry) -> str:
    return f"  {entry.path}  {entry.reason}{bracketed(entry.source)}"


def _perturbed(step: Step) -> CoverageEntry:
    action, reasons = step.action, []
    pieces = None
    if action.operands is not None:
        reasons.append(f"operands in {action.operands.format}")
    if action.order is not None and action.cut is not None:
        pieces, order = action.cut.pieces, action.order
        reasons.append(f"{pieces} pieces in random order, {order.granularity}")
        if pieces != order.partials:
            reasons.append(_fewer(step.name, order, action.cut))
        types = [atom.aval.dtype for atom in step.atoms]
        kept = narrow_type(order.accumulate, types)
        if kept is not None:
            reasons.append(f"partial sums in {kept}")
    if action.replay is not None:
        reasons.append(action.replay.reason)
    if action.results is not None:
        reasons += [type(part).__name__ for part in parts(action.results)]
        if action.routine and any(
            isinstance(p, Elementwise) and p.routines for p in parts(action.results)
        ):
            reasons.append("on the operands too")
    return _entry(step, "; ".join(reasons))._replace(partials=pieces)


def _fewer(name: str, order: ReductionOrder, cut: Cut) -> str:
    """Returns why a sum has fewer pieces than `spec.partials`."""
    asked = f"partials={order.partials} became {cut.pieces}"
    if name == "conv_general_dilated" and cut.pieces == CONVOLUTION_PIECES:
        return f"{asked}: the most pieces of a convolution"
    if 0 < cut.terms < order.partials:
        return f"{asked}: there are {cut.terms} terms"
    if 0 < cut.terms < order.partials * order.shortest:
        few = f"{cut.terms} terms are fewer than {order.partials} x"
        return f"{asked}: {few} shortest={order.shortest}"
    return f"{asked}: no axis of the sum is cut into as many"


def _left_alone(step: Step, acts: bool) -> LeftAlone | None:
    """Returns why a sum has no drawn order; None if it has one or is not a sum."""
    rule = registry.RULES.get(step.name)
    if not _has_floats(step):
        return None
    if rule is None and step.name not in EXACT:
        return LeftAlone("a primitive that noise does not know (noise.register_rule)")
    if not isinstance(rule, registry.FirstOrder):
        return None
    if rule.cut is not None or rule.left_alone:
        return step.action.left_alone
    unmoved = rule.rounds and not acts
    if unmoved and compat.is_written_by(step.equation, "associative_scan"):
        return LeftAlone("a step of associative_scan, whose order the program fixes")
    return None


def _has_floats(step: Step) -> bool:
    """Returns whether a result (or an operand, without results) is floating-point."""
    avals = result_avals(step.equation) or [atom.aval for atom in step.atoms]
    return has_floats(avals)


def _rounding(step: Step, acts: bool) -> str:
    """Returns why no noise acts on an operation that rounds; "" if it does not."""
    avals = result_avals(step.equation)
    if not _has_floats(step) or not any(getattr(aval, "size", 1) for aval in avals):
        return ""
    rule = registry.RULES.get(step.name)
    if not (isinstance(rule, registry.FirstOrder) and rule.rounds):
        return rounds_to(step.equation)
    if acts and not any(has_noise(aval.dtype) for aval in avals):
        return f"arithmetic in {avals[0].dtype}, a type that has no noise"
    return "not among what the spec perturbs"
