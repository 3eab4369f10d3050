"""Evaluate a plan: one short loop over its equations.

Each equation is evaluated as it stands, or with its noise, or, if it runs other
programs, by its rule (`rules`), which comes back here for its bodies. The
result is an ordinary JAX computation, to be compiled, differentiated, mapped and
nested.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from jax.extend import core

from prednet_jax.noise import compat, random_bits
from prednet_jax.noise.fusion import materialised
from prednet_jax.noise.order import permutations
from prednet_jax.noise.plan import Action, Draw, Plan, Step, result_type
from prednet_jax.noise.random_bits import Words, first_words, on_device, path_salt
from prednet_jax.noise.rounding import elementwise
from prednet_jax.noise.rules import registry
from prednet_jax.noise.rules.registry import HigherOrder

# For the path of an equation, its drawn orders: arrays over its grid of tiles.
Drawn = Mapping[str, tuple[Array, ...]]
_NOTHING: Drawn = MappingProxyType({})


# `observe(step, words, operands, results)` of each first-order equation, and of loops
# and branches with the number of steps or of the branch as only result.
Observer = Callable[[Step, Words, Sequence[Any], Sequence[Any]], None]


class Hooks(NamedTuple):
    """What a search asks of an evaluation.

    Attributes:
        switches: booleans by path, known at run time: where False, the noise of the
            equation is computed and discarded (`localize`); None: all True.
        observe: is shown what was computed, while the program is traced.
        finished: is shown the results of each equation that runs other programs.
    """

    switches: Mapping[str, Array] | None = None
    observe: Observer | None = None
    finished: Callable[[Step, Sequence[Any]], None] | None = None


class Call(NamedTuple):
    """A higher-order equation while it is evaluated; see `registry.Call`."""

    step: Step
    drawn: Drawn
    hooks: Hooks

    @property
    def params(self) -> dict[str, Any]:
        """The equation's parameters."""
        return self.step.equation.params

    def bind(self, *operands: Any) -> list[Any]:
        """Evaluate the equation as it stands, without noise."""
        return compat.bind(self.step.equation, *operands)

    def body(self, words: Words, operands: Sequence[Any], label: str = "") -> list[Any]:
        """Evaluate one of the equation's bodies under noise."""
        rule = registry.find(self.step.name)
        inlined = isinstance(rule, HigherOrder) and rule.inlined
        drawn = self.drawn if inlined else None
        return _evaluate(self.step.bodies[label], words, operands, drawn, self.hooks)

    def decided(self, words: Words, number: Any) -> None:
        """Tell an observer what the equation itself decided."""
        if self.hooks.observe is not None:
            self.hooks.observe(self.step, words, (), (number,))


def run(
    plan: Plan,
    key: Array,
    args: Sequence[Any],
    *,
    run_key: Array | None = None,
    hooks: Hooks = Hooks(),  # noqa: B008 (a constant)
) -> list[Any]:
    """Evaluate a plan.

    Args:
        plan: of `plan.plan`, made in the same trace.
        key: typed or raw PRNG key; consumed here.
        args: values of the arguments of the plan's jaxpr.
        run_key: from which orders of `schedule="run"` are drawn; None: from `key`.
        hooks: of a search.

    Returns:
        The values of the jaxpr's results.
    """
    return _evaluate(plan, first_words(key, run_key), args, None, hooks)


def _evaluate(
    plan: Plan,
    words: Words,
    args: Sequence[Any],
    drawn: Drawn | None,
    hooks: Hooks,
) -> list[Any]:
    """Evaluate a plan at given words.

    `drawn` holds the orders that were drawn ahead by an enclosing plan, of which this
    one is an inlined part; None: this one draws its own.
    """
    values: dict[Any, Any] = {}
    values.update(zip(plan.jaxpr.constvars, plan.consts, strict=True))
    values.update(zip(plan.jaxpr.invars, args, strict=True))
    if drawn is None:
        drawn = _draw_ahead(plan, words)
    told = any(isinstance(x, compat.BatchTracer) for x in args)
    if words.places and (told or any(step.communicates for step in plan.steps)):
        _in_step(plan, words, values, drawn, hooks, told)
    else:
        _advance(plan.steps, words, values, drawn, hooks)
    return [_read(values, atom) for atom in plan.jaxpr.outvars]


def _advance(
    steps: Sequence[Step],
    words: Words,
    values: dict[Any, Any],
    drawn: Drawn,
    hooks: Hooks,
) -> None:
    """Evaluate steps one after another; `values`, by variable, grows."""
    for step in steps:
        operands = [_read(values, atom) for atom in step.atoms]
        with compat.context(step.equation):
            rule = registry.find(step.name)
            if isinstance(rule, HigherOrder):
                results = rule.run(Call(step, drawn, hooks), words, operands)
                if hooks.finished is not None:
                    hooks.finished(step, results)
            else:
                results = _first_order(step, words, operands, drawn, hooks)
        values.update(
            (var, materialised(result) if hold else result)
            for var, result, hold in zip(
                step.equation.outvars, results, step.held, strict=True
            )
        )


def _read(values: Mapping[Any, Any], atom: Any) -> Any:
    return atom.val if isinstance(atom, core.Literal) else values[atom]


def _in_step(
    plan: Plan,
    words: Words,
    values: dict[Any, Any],
    drawn: Drawn,
    hooks: Hooks,
    told: bool,
) -> None:
    """Evaluate the steps of all devices of a logical mesh, between collectives apart.

    A collective is evaluated for all devices at once, under the mapped axes of the
    mesh; so is what is the same on all of them. Everything else waits until a
    collective reads it, and then runs device by device.

    `told` says whether values tell what differs from device to device; in the body of a
    loop they do not.
    """
    results = [v for v in plan.jaxpr.outvars if not isinstance(v, core.Literal)]
    waiting: dict[Step, None] = {}
    made: set[Any] = set()

    def variables(step: Step) -> list[Any]:
        return [atom for atom in step.atoms if not isinstance(atom, core.Literal)]

    def catch_up() -> None:
        others = (variables(step) for step in plan.steps if step not in waiting)
        read = [v for step in waiting for v in variables(step)]
        names = [v for v in dict.fromkeys(read) if v not in made]
        later = [v for reads in (*others, results) for v in reads]
        wanted = [v for v in dict.fromkeys(later) if v in made]
        steps = list(waiting)

        @jax.custom_batching.sequential_vmap
        def alone(words: Words, drawn: dict, given: list) -> list:
            inner = dict(zip(names, given, strict=True))
            _advance(steps, words, inner, drawn, hooks)
            return [inner[v] for v in wanted]

        now = alone(words, dict(drawn), [values[v] for v in names])
        values.update(zip(wanted, now, strict=True))
        waiting.clear()
        made.clear()

    for step in plan.steps:
        reads = variables(step)
        waits = not made.isdisjoint(reads)
        differs = not told or any(
            isinstance(values.get(v), compat.BatchTracer) for v in reads
        )
        if step.communicates:
            if waits:
                catch_up()
            _advance([step], words, values, drawn, hooks)
        elif waits or differs:
            waiting[step] = None
            made.update(step.equation.outvars)
        else:
            _advance([step], words, values, drawn, hooks)
    if waiting:
        catch_up()


def _first_order(
    step: Step, words: Words, operands: list[Any], drawn: Drawn, hooks: Hooks
) -> list[Any]:
    """The results of an equation without programs inside."""
    switch = None if hooks.switches is None else hooks.switches.get(step.path)
    orders = drawn.get(step.path)
    results = _perturb(step, words, operands, orders, switch)
    if hooks.observe is not None:
        hooks.observe(step, words, operands, results)
    return results


def _draw_ahead(plan: Plan, words: Words) -> Drawn:
    """Draw the orders of all equations of a plan at once.

    A draw for each equation would double the size of the program. An order for each
    output is drawn on the spot instead, where XLA fuses it with the sum.
    """
    if plan.order is None or plan.order.granularity == "element" or not plan.draws:
        return _NOTHING
    source = words.of(plan.order.schedule)
    salt = path_salt(plan.path)
    alike: dict[int, list[Draw]] = {}
    for draw in sorted(plan.draws, key=lambda d: d.pieces):
        alike.setdefault(draw.pieces, []).append(draw)
    totals = {n: sum(math.prod(d.grid) for d in draws) for n, draws in alike.items()}

    def half(_: None, step: Array) -> tuple[None, dict[int, tuple[Array, ...]]]:
        inner = random_bits.fold(source, step)
        return None, {
            n: permutations.draw_orders(inner, (-(-total // 2),), n, (*salt, n))
            for n, total in totals.items()
        }

    # In a loop of two steps, since XLA fuses nothing out of a loop: it would repeat the
    # draw in the kernel of each sum.
    _, halves = lax.scan(half, None, lax.iota(jnp.uint32, 2))
    drawn = {}
    for n, draws in alike.items():
        flat = [lax.reshape(word, (word.size,)) for word in halves[n]]
        start = 0
        for draw in draws:
            stop = start + math.prod(draw.grid)
            drawn[draw.path] = tuple(
                lax.reshape(word[start:stop], draw.grid) for word in flat
            )
            start = stop
    return drawn


def _perturb(
    step: Step,
    words: Words,
    operands: list[Any],
    orders: tuple[Array, ...] | None,
    switch: Array | None,
) -> list[Any]:
    """The results of a step.

    Args:
        step: of a plan, its primitive first-order.
        words: of the generator, here.
        operands: values of `step.atoms`.
        orders: drawn ahead, over the grid of the sum; None: to be drawn here.
        switch: bool []; where False, the results are those without noise; None: True.
    """
    equation, action = step.equation, step.action
    if not action.any:
        return compat.bind(equation, *operands)
    # Literals are bare numbers, whose type only the equation knows.
    operands = [
        x if hasattr(x, "aval") else np.asarray(x, atom.aval.dtype)
        for x, atom in zip(operands, step.atoms, strict=True)
    ]
    if step.name == "addupdate":
        return _accumulated(step, words, operands, switch)
    clean = _plain(step, operands) if switch is not None else []
    summed_over = equation.params["axes"] if step.name.startswith("psum") else ()
    types = [atom.aval for atom in step.atoms]
    here = on_device(words, types, summed_over)
    salt = path_salt(step.path)
    if action.operands is not None:
        operands = [elementwise.round_operand(action.operands, x) for x in operands]
    if action.results is not None:
        operands = list(
            elementwise.perturb_operands(
                action.results,
                step.name,
                operands,
                here.call,
                salt[0],
                routine=action.routine,
            )
        )
    if action.order is not None:
        results = [_ordered(step, here, operands, orders if here is words else None)]
    elif action.replay is not None:
        results = [_with_plain_derivative(step, action.replay.evaluate)(*operands)]
    else:
        results = compat.bind(equation, *operands)
    if action.results is not None:
        results = _perturbed(step, action, results, operands, here.call, salt[0])
    if switch is not None:
        results = [jnp.where(switch, r, c) for r, c in zip(results, clean, strict=True)]
    return results


def _accumulated(
    step: Step, words: Words, operands: Sequence[Any], switch: Array | None
) -> list[Any]:
    """A sum into a mutable array, then the noise on what the array holds there.

    Indices may repeat, so that old value and addend do not tell the rounding error: it
    is modelled, as for operations whose exact result is unknown.
    """
    spec, (ref, addend, *indices) = step.action.results, operands
    assert spec is not None
    here = on_device(words, [step.atoms[1].aval]).call
    salt = path_salt(step.path)[0]
    (moved,) = elementwise.perturb_operands(spec, step.name, [addend], here, salt)
    if switch is not None:
        moved = jnp.where(switch, moved, addend)
    compat.bind(step.equation, ref, moved, *indices)
    value = compat.array_in(step.equation, ref, indices)
    noisy = elementwise.apply(spec, value, (), here, salt, primitive=step.name)
    if switch is not None:
        noisy = jnp.where(switch, noisy, value)
    compat.put_array(step.equation, ref, noisy, indices)
    return []


def _perturbed(
    step: Step,
    action: Action,
    results: Sequence[Any],
    operands: Sequence[Any],
    words: Array,
    salt: int,
) -> list[Any]:
    """The noises on results; of types that have none, the results as they are."""
    assert action.results is not None
    return [
        elementwise.apply(
            action.results, r, operands, words, salt + i, primitive=step.name
        )
        if elementwise.has_noise(r.dtype)
        else r
        for i, r in enumerate(results)
    ]


def _plain(step: Step, operands: Sequence[Any]) -> list[Any]:
    """A step without noise; add_any of a joined chain has many terms."""
    if step.name == "add_any":
        return [functools.reduce(lax.add, operands)]
    return compat.bind(step.equation, *operands)


def _with_plain_derivative(
    step: Step, evaluate: Callable[..., Array]
) -> Callable[..., Array]:
    """Another way to evaluate a sum, with the derivative of the plain sum."""
    replayed = jax.custom_jvp(compat.automatic(evaluate, step.equation))

    @replayed.defjvp
    def rule(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple:
        def plain(*operands: Array) -> Array:
            return _plain(step, operands)[0]

        return replayed(*primals), jax.jvp(plain, primals, tangents)[1]

    return replayed


def _ordered(
    step: Step,
    words: Words,
    operands: Sequence[Any],
    drawn: tuple[Array, ...] | None,
) -> Array:
    """A sum in drawn order, with the derivative of the plain sum."""
    spec, cut = step.action.order, step.action.cut
    assert spec is not None
    assert cut is not None
    dtype = result_type(step.equation)
    # Indices of a scatter are integers, and none of these.
    narrow = permutations.narrow_type(spec.accumulate, [x.dtype for x in operands])

    @jax.custom_jvp
    def ordered(source: Any, *operands: Array) -> Array:
        return compat.automatic(added, step.equation)(source, *operands)

    def added(source: Any, *operands: Array) -> Array:
        salt = path_salt(step.path)
        if cut.total is not None:
            total = cut.total(source, salt, *operands)
            return lax.convert_element_type(total, dtype)
        initial, sums = cut.split(*operands)
        if drawn is None:
            grid = permutations.tile_grid(sums[0].shape, spec.granularity, spec.tile)
            orders = permutations.draw_orders(source, grid, cut.pieces, salt)
        else:
            orders = source
        total = permutations.randomly_ordered_sum(
            orders, sums, spec.tile, initial, narrow
        )
        return lax.convert_element_type(total, dtype)

    @ordered.defjvp
    def rule(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple:
        def plain(*operands: Array) -> Array:
            return _plain(step, operands)[0]

        tangent = jax.jvp(plain, primals[1:], tangents[1:])[1]
        return ordered(*primals), tangent

    return ordered(words.of(spec.schedule) if drawn is None else drawn, *operands)
