"""Evaluate a plan: one short loop over its equations.

Each equation is evaluated as it stands, or with its noise (`first_order`), or, if it
runs other programs, by its rule (`rules`), which comes back here for its bodies. The
result is an ordinary JAX computation, to be compiled, differentiated, mapped and
nested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from jax import Array, lax
from jax import numpy as jnp
from jax.extend import core

from prednet_jax.noise import compat, first_order
from prednet_jax.noise.arithmetic import permutations, random_bits
from prednet_jax.noise.fusion import materialised
from prednet_jax.noise.plan import Draw, Plan, Step
from prednet_jax.noise.rules import registry
from prednet_jax.noise.rules.registry import HigherOrder
from prednet_jax.noise.words import Words, first_words, path_salt

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
        choices: unsigned integers by path, known at run time: each stands for another
            draw of the equation's noise (`worst_case`); None: the draws of the key.
    """

    switches: Mapping[str, Array] | None = None
    observe: Observer | None = None
    choices: Mapping[str, Array] | None = None


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

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    values.update(zip(plan.jaxpr.constvars, plan.consts, strict=True))
    values.update(zip(plan.jaxpr.invars, args, strict=True))
    if hooks.choices is not None:
        drawn = _NOTHING
    elif drawn is None:
        drawn = _draw_ahead(plan, words)
    for step in plan.steps:
        operands = [read(atom) for atom in step.atoms]
        with compat.context(step.equation):
            rule = registry.find(step.name)
            if isinstance(rule, HigherOrder):
                results = rule.run(Call(step, drawn, hooks), words, operands)
            else:
                results = _first_order(step, words, operands, drawn, hooks)
        values.update(
            (var, materialised(result) if hold else result)
            for var, result, hold in zip(
                step.equation.outvars, results, step.held, strict=True
            )
        )
    return [read(atom) for atom in plan.jaxpr.outvars]


def _first_order(
    step: Step, words: Words, operands: list[Any], drawn: Drawn, hooks: Hooks
) -> list[Any]:
    """The results of an equation without programs inside."""
    switch = None if hooks.switches is None else hooks.switches.get(step.path)
    choice = None if hooks.choices is None else hooks.choices.get(step.path)
    here = words if choice is None else words.chosen(choice)
    orders = drawn.get(step.path)
    results = first_order.evaluate(step, here, operands, orders, switch)
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
