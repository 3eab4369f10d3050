"""Plans, once and statically, the noise of each equation of a program.

`plan(jaxpr, spec)` visits a jaxpr and all programs inside it. For each equation
(`Step`) it records the noise that acts (`Action`), the orders to draw and the results
to compute once. `run` evaluates a plan; `coverage` prints one.

A path names an equation, such as `3:scan/0:dot_general`: the positions and primitives
of the equations around it, then its own. Noise is a hash of the path of the first
equation that computes the same (`Step.salt`), so paths must never change. A plan is
made while the program is traced, because sums over a mesh axis need the size of the
axis.
"""

import functools
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jax import numpy as jnp

from prednet_jax.noise import compat, fusion, specs
from prednet_jax.noise.errors import UnsupportedPrimitiveError, expect
from prednet_jax.noise.order import permutations, profiles
from prednet_jax.noise.order.collectives import axes_of, cut_gathered
from prednet_jax.noise.order.partials import Cut, LeftAlone
from prednet_jax.noise.rounding import elementwise
from prednet_jax.noise.rounding.steps import is_wider
from prednet_jax.noise.rules import registry
from prednet_jax.noise.rules.primitives import (
    FRACTIONS,
    INTEGRAL,
    KERNELS,
    MATRIX_PRODUCTS,
    ROUTINES,
)
from prednet_jax.noise.rules.registry import FirstOrder, HigherOrder
from prednet_jax.noise.types import Atom, Aval, Values


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


@dataclass(eq=False)
class Step:
    """One equation of a plan.

    Attributes:
        equation: the equation of the jaxpr; the last one in a chain of cotangent sums.
        atoms: the inputs of the equation, or all terms of the chain.
        salt: the path of the first equation that computes the same of the same values,
            of which its noise is a hash: XLA computes the two once.
        scope: the named scopes around it, outermost first.
        action: the noise that acts on it; empty for a higher-order equation.
        factors: positions of factors that were converted from integers or booleans.
        counts: whether the operands may be whole numbers.
        within: the program that contains the equation, and the step around it.
        held: for each result, whether `fusion.materialised` is applied to it.
        bodies: plans of the programs inside, by label; see `HigherOrder`.
    """

    equation: compat.Equation
    atoms: Sequence[Atom]
    path: str
    scope: str
    action: Action
    within: "tuple[compat.Jaxpr, Step | None]"
    factors: tuple[int, ...] = ()
    counts: bool = False
    salt: str = ""
    held: tuple[bool, ...] = ()
    bodies: "dict[str, Plan]" = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Returns the primitive's name."""
        return self.equation.primitive.name

    @property
    def grid(self) -> tuple[int, ...] | None:
        """The shape of the array of orders for a sum of pieces, or None without one."""
        order, cut = self.action.order, self.action.cut
        if order is None or cut is None or cut.total is not None:
            return None
        shape = self.equation.outvars[0].aval.shape
        return permutations.tile_grid(shape, order.granularity, order.tile)

    @property
    def elements(self) -> int:
        """The size of the largest array whose elements noise moves, or 0 for none."""
        if not (self.action.any and self.action.results):
            return 0
        avals = [*(x.aval for x in self.atoms), *result_avals(self.equation)]
        return max(getattr(aval, "size", 0) for aval in avals)

    @functools.cached_property
    def source(self) -> str:
        """The user's line that made the equation, as "file.py:12 in function"."""
        jaxpr, around = self.within
        line = compat.source(self.equation, jaxpr)
        return line or (around.source if around is not None else "")

    @functools.cached_property
    def source_text(self) -> str:
        """The text of that line, or empty if it is not known."""
        jaxpr, around = self.within
        if around is None or compat.source(self.equation, jaxpr):
            return compat.source_text(self.equation, jaxpr)
        return around.source_text

    @functools.cached_property
    def communicates(self) -> bool:
        """Whether the equation or a body uses a collective or the device's index."""
        inside = (step for body in self.bodies.values() for step in body.steps)
        named = any(isinstance(a, str) for a in axes_of(self.equation.params))
        return named or any(step.communicates for step in inside)


@dataclass(frozen=True, eq=False)
class Plan:
    """The noise of one program, an open jaxpr with the values of its constants.

    `path` is the prefix of its equations' paths, and `salt` of those that noise is a
    hash of. `to_draw` are the sums, in this program and in bodies inlined in it, whose
    orders are drawn together. `values` name what its results are, as in `_Equal`.
    """

    jaxpr: compat.Jaxpr
    consts: Values
    path: str
    noise: Noise
    steps: Sequence[Step]
    to_draw: Sequence[Step]
    salt: str
    values: Sequence[Hashable]

    @functools.cached_property
    def elements(self) -> int:
        """The largest number of `Step.elements` in the program and inside it."""
        return max((step.elements for step in self.walk()), default=0)

    def programs(self) -> "Iterator[Plan]":
        """Yields this plan and the plans of all programs inside, depth first."""
        yield self
        for step in self.steps:
            for body in step.bodies.values():
                yield from body.programs()

    def walk(self) -> Iterator[Step]:
        """Yields all steps depth first, each followed by the steps of its bodies."""
        for step in self.steps:
            yield step
            for body in step.bodies.values():
                yield from body.walk()

    def paths(self) -> frozenset[str]:
        """Returns the paths of all equations, including those merged into chains."""
        every = {x for p in self.programs() for x in _paths(p.path, p.jaxpr)}
        return frozenset(every - {step.path for step in self.walk() if step.bodies})


def plan(
    jaxpr: compat.Jaxpr, spec: specs.NoiseSpec, only: Collection[str] | None = None
) -> Plan:
    """Returns the noise of `spec` in a program, closed or open without constants.

    `only` are the paths of the equations to perturb, as for `inject`, by default all.
    Equations that compute the same as one of these are perturbed, too. It raises
    UnsupportedPrimitiveError if a higher-order primitive has no rule.
    """
    acting = specs.at(spec, "computation")
    parts = () if acting is None else specs.parts(acting)

    def first(kind: type[specs.NoiseSpec]) -> Any:
        return next((part for part in parts if isinstance(part, kind)), None)

    noise = Noise(
        order=first(specs.ReductionOrder),
        fixed=first(specs.FixedOrder),
        operands=first(specs.ReducedPrecision),
        results=tuple(p for p in parts if isinstance(p, specs.Elementwise)),
    )
    if noise.fixed is not None:
        noise.fixed.prepare(jaxpr)
    planned = _plan(noise, jaxpr)
    if only is None:
        return planned
    salts = {step.salt for step in planned.walk() if step.path in only}
    equal = {step.path for step in planned.walk() if step.salt in salts}
    return _plan(noise._replace(only=equal.union(only)), jaxpr)


class _Equal(NamedTuple):
    """Finds equations that compute the same of the same values.

    A value is named by the equation that computes it first, and its position there.

    Attributes:
        first: by what an equation computes, the path of the first such equation.
        prefix: the prefix of these paths in one program.
        given: the names of the program's arguments. Defaults to their variables.
    """

    first: dict[Hashable, str]
    prefix: str = ""
    given: Sequence[Hashable] = ()


def _plan(
    noise: Noise,
    jaxpr: compat.Jaxpr,
    path: str = "",
    around: Step | None = None,
    readers: Sequence[int] | None = None,
    fractions: Collection[int] = (),
    equal: _Equal | None = None,
) -> Plan:
    """Plans one program, inside the step `around`.

    `readers` count for each result, and `fractions` are ids as for `_fractions`.
    """
    opened, consts = compat.open_jaxpr(jaxpr)
    first, prefix, given = equal or _Equal({})
    values: dict[Atom, Hashable] = dict(zip(opened.invars, given, strict=False))
    values.update(zip(opened.constvars, map(id, consts), strict=False))

    def named(atoms: Sequence[Atom]) -> tuple[Hashable, ...]:
        return tuple(
            (atom.aval, np.asarray(atom.val).tobytes())
            if compat.is_literal(atom)
            else values.get(atom, atom)
            for atom in atoms
        )

    fractions = _fractions(opened, fractions)
    steps, drawn = _steps(noise, opened, path, around, fractions)
    reads = fusion.readers(opened, readers)
    held = fusion.held([(s.equation, s.atoms, s.action.any) for s in steps], reads)
    # Orders are drawn for all chains, also for those that `only` leaves alone.
    chains = {id(step.equation): step for step in drawn}
    for step, hold in zip(steps, held, strict=True):
        equation, step.held = step.equation, hold
        chain = chains.get(id(equation), step)
        own, operands = prefix + step.path.removeprefix(path), named(chain.atoms)
        computed = _computed(equation, operands) or own
        step.salt = chain.salt = first.setdefault(computed, own)
        values.update((var, (step.salt, i)) for i, var in enumerate(equation.outvars))
        if step.grid is not None and step.name != "add_any":  # Chains are there.
            drawn.append(step)
        rule = _higher_order_rule(step)
        if rule is None:
            continue
        counts = [reads[var] for var in equation.outvars] if rule.inlined else None
        with compat.axes_in_scope(rule.axes(equation.params)):
            for label, body in rule.programs(equation).items():
                inside, of = f"{step.path}{label}/", _Equal({}, f"{step.salt}{label}/")
                some: Collection[int] = ()
                if rule.joins:
                    some = _handed(equation, body, fractions)
                    of = of._replace(first=first, given=operands)
                plan = _plan(noise, body, inside, step, counts, some, of)
                step.bodies[label] = plan
                if rule.joins:
                    values.update(zip(equation.outvars, plan.values, strict=True))
        if rule.inlined:
            drawn += [inner for body in step.bodies.values() for inner in body.to_draw]
    results = named(opened.outvars)
    return Plan(opened, consts, path, noise, steps, drawn, prefix, results)


def _computed(equation: compat.Equation, operands: Hashable) -> Hashable:
    """Returns what an equation computes of named values, None if it is unknown."""
    computed = equation.primitive, tuple(equation.params.items()), operands
    try:
        hash(computed)
    except TypeError:
        return None
    return None if equation.effects else computed


def _steps(
    noise: Noise,
    jaxpr: compat.Jaxpr,
    path: str,
    around: Step | None,
    fractions: set[int],
) -> tuple[list[Step], list[Step]]:
    """Returns the steps of a jaxpr, without bodies, with chains of sums merged."""
    paths = _paths(path, jaxpr)
    outer = "" if around is None else around.scope
    # Results of an all_gather, and the axis that numbers the devices.
    gathers = {
        equation.outvars[0]: equation.params["all_gather_dimension"]
        for equation in jaxpr.eqns
        if equation.primitive.name.startswith("all_gather")
        and not equation.params.get("tiled", True)
    }

    # Of exact products too, another noise rounds the factors, or is no rounding.
    only_ulp = all(isinstance(part, specs.UlpPerturbation) for part in noise.results)
    converted = _converted(jaxpr) if only_ulp else set()

    def step_of(i: int, atoms: Sequence[Atom]) -> Step:
        equation = jaxpr.eqns[i]
        scope = f"{outer}/{compat.scope(equation)}"
        action = _action(noise, equation, atoms, scope, gathers)
        chosen = noise.only is None or paths[i] in noise.only
        action = action._replace(chosen=chosen)
        within = jaxpr, around
        factors: tuple[int, ...] = ()
        if equation.primitive.name == "mul":
            some = enumerate(atoms)
            factors = tuple(k for k, atom in some if id(atom) in converted)
        counts = fractions.isdisjoint(map(id, atoms))
        return Step(equation, atoms, paths[i], scope, action, within, factors, counts)

    joined: dict[int, Step] = {}
    absorbed: set[int] = set()
    chains: list[Step] = []
    for i, (terms, before) in (_add_any_chains(jaxpr) if noise.order else {}).items():
        step = step_of(i, terms)
        if step.grid is not None:
            chains.append(step)
            if step.action.chosen:
                joined[i] = step
                absorbed |= before
    steps = [
        joined.get(i) or step_of(i, equation.invars)
        for i, equation in enumerate(jaxpr.eqns)
        if i not in absorbed
    ]
    return steps, chains


def _converted(jaxpr: compat.Jaxpr) -> set[int]:
    """Returns the ids of the float variables that integers or booleans become."""
    found: set[int] = set()
    for equation in jaxpr.eqns:
        name, atoms = equation.primitive.name, equation.invars
        moved = name in ("broadcast_in_dim", "reshape") and id(atoms[0]) in found
        cast = name == "convert_element_type" and not has_floats([atoms[0].aval])
        if moved or cast:
            found.add(id(equation.outvars[0]))
    return found


def _fractions(jaxpr: compat.Jaxpr, given: Collection[int] = ()) -> set[int]:
    """Returns the ids of the float variables that are hardly ever whole numbers.

    They are results of divisions and of functions such as exp, and what copies, sums
    and products make of these. Of several results, as of a loop, some may be whole.
    `given` are the ids of such arguments.
    """
    found = set(given)
    for equation in jaxpr.eqns:
        made = equation.outvars
        if (body := fusion.joined_body(equation)) is not None:
            inner, _ = compat.open_jaxpr(body)
            inside = _fractions(inner, _handed(equation, inner, found))
            results = zip(made, inner.outvars, strict=True)
            made = [var for var, result in results if id(result) in inside]
        elif equation.primitive.name not in FRACTIONS and (
            len(made) > 1
            or equation.primitive.name in INTEGRAL
            or found.isdisjoint(map(id, equation.invars))
        ):
            continue
        found |= {id(var) for var in made if has_floats([var.aval])}
    return found


def _handed(equation: compat.Equation, body: compat.Jaxpr, found: set[int]) -> set[int]:
    """Returns the ids of a body's arguments for which those of its call were found."""
    inner, _ = compat.open_jaxpr(body)
    pairs = zip(equation.invars, inner.invars, strict=True)
    return {id(var) for atom, var in pairs if id(atom) in found}


def _paths(prefix: str, jaxpr: compat.Jaxpr) -> list[str]:
    return [f"{prefix}{i}:{e.primitive.name}" for i, e in enumerate(jaxpr.eqns)]


def _higher_order_rule(step: Step) -> HigherOrder | None:
    """Returns the rule of a higher-order equation, or None for a first-order one."""
    if step.name not in registry.RULES and compat.sub_jaxprs(step.equation.params):
        accepted = sorted(filter(registry.higher_order, registry.RULES))
        raise UnsupportedPrimitiveError(
            f"noise cannot enter the higher-order primitive {step.name!r} at "
            f"{step.path!r}: expected one of {', '.join(accepted)}, or one with a rule "
            "of your own (noise.register_rule)"
        )
    return registry.higher_order(step.name)


def _action(
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
            known = isinstance(decided, Cut | LeftAlone | str)
            accepted = "a Cut, a LeftAlone or a text from the rule"
            expect(known, f"the cut of {name}", decided, accepted)
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


def _add_any_chains(jaxpr: compat.Jaxpr) -> dict[int, tuple[list[Atom], set[int]]]:
    """Returns sums of several cotangents, which JAX writes as chains of `add_any`.

    Only partial sums with a single reader are merged. The keys are the positions of the
    chains' last equations; the values are the atoms of the merged sum and the positions
    of the chain's other equations.
    """
    atoms = [a for e in jaxpr.eqns for a in e.invars] + list(jaxpr.outvars)
    uses = Counter(a for a in atoms if not compat.is_literal(a))
    position: dict[Atom, int] = {}
    chains: dict[int, tuple[list[Atom], set[int]]] = {}
    for i, equation in enumerate(jaxpr.eqns):
        if equation.primitive.name != "add_any":
            continue
        terms: list[Atom] = []
        before: set[int] = set()
        for atom in equation.invars:
            inner = None
            if not compat.is_literal(atom) and uses[atom] == 1:
                inner = position.get(atom)
            if inner is None:
                terms.append(atom)
            else:
                more, earlier = chains.pop(inner)
                terms += more
                before |= earlier | {inner}
        position[equation.outvars[0]] = i
        chains[i] = terms, before
    return chains
