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
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from prednet_jax.noise import compat, facts, fusion, specs
from prednet_jax.noise.actions import Action, Noise, action_on, noise_of, result_avals
from prednet_jax.noise.errors import UnsupportedPrimitiveError
from prednet_jax.noise.order import permutations
from prednet_jax.noise.order.collectives import axes_of
from prednet_jax.noise.rules import registry
from prednet_jax.noise.rules.registry import HigherOrder
from prednet_jax.noise.types import Atom, Values


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
        every = {x for p in self.programs() for x in facts.paths(p.path, p.jaxpr)}
        return frozenset(every - {step.path for step in self.walk() if step.bodies})


def plan(
    jaxpr: compat.Jaxpr, spec: specs.NoiseSpec, only: Collection[str] | None = None
) -> Plan:
    """Returns the noise of `spec` in a program, closed or open without constants.

    `only` are the paths of the equations to perturb, as for `inject`, by default all.
    Equations that compute the same as one of these are perturbed, too. It raises
    UnsupportedPrimitiveError if a higher-order primitive has no rule.
    """
    noise = noise_of(spec)
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

    `readers` count for each result, and `fractions` are ids as for `facts.fractions`.
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

    fractions = facts.fractions(opened, fractions)
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
                handed: Collection[int] = ()
                if rule.joins:
                    handed = facts.handed(equation, body, fractions)
                    of = of._replace(first=first, given=operands)
                plan = _plan(noise, body, inside, step, counts, handed, of)
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
    paths = facts.paths(path, jaxpr)
    outer = "" if around is None else around.scope
    gathers = facts.gathers(jaxpr)
    # Of exact products too, another noise rounds the factors, or is no rounding.
    only_ulp = all(isinstance(part, specs.UlpPerturbation) for part in noise.results)
    converted = facts.converted(jaxpr) if only_ulp else set()

    is_long = noise.order is not None and noise.order.chain == "terms"
    whole = facts.joined_sums(jaxpr) if is_long else {}

    def step_of(i: int, atoms: Sequence[Atom]) -> Step:
        chosen = noise.only is None or paths[i] in noise.only
        equation = jaxpr.eqns[i]
        if chosen and i in whole:
            equation, atoms = whole[i], whole[i].invars
        scope = f"{outer}/{compat.scope(equation)}"
        action = action_on(noise, equation, atoms, scope, gathers)
        action = action._replace(chosen=chosen)
        within = jaxpr, around
        factors: tuple[int, ...] = ()
        if equation.primitive.name == "mul":
            numbered = enumerate(atoms)
            factors = tuple(k for k, atom in numbered if id(atom) in converted)
        counts = fractions.isdisjoint(map(id, atoms))
        return Step(equation, atoms, paths[i], scope, action, within, factors, counts)

    joined: dict[int, Step] = {}
    absorbed: set[int] = set()
    chains: list[Step] = []
    for i, (terms, before) in (
        facts.add_any_chains(jaxpr) if noise.order else {}
    ).items():
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
