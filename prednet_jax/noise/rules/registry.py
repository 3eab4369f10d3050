"""Holds the table of rules: the noise at each primitive.

This package's rules and a user's own are in the same table. A higher-order primitive
without a rule is refused. A first-order one is evaluated without noise, and `coverage`
lists it unless it is known to be exact (`primitives.EXACT`).
"""

import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend import core

from prednet_jax.noise import compat
from prednet_jax.noise.errors import NoiseError, check_function, expect, flag, shown
from prednet_jax.noise.order.partials import Cut, LeftAlone
from prednet_jax.noise.types import Params, PyTree, Values


@dataclass(frozen=True)
class FirstOrder:
    """The rule of a primitive without programs among its parameters.

    Attributes:
        rounds: whether noises on results (ulp, Gaussian, ...) act on it when they name
            no primitives: True for arithmetic, False for copies and comparisons.
        cut: for a sum whose order `ReductionOrder` draws, `cut(spec, params, *shapes)`,
            which returns a `Cut` into partial sums or, if this equation has no cut, a
            `LeftAlone` or its reason as a text.
        left_alone: the reason why the order of this float reduction is not drawn, as
            `coverage` reports it. Empty if the primitive is not a reduction.
    """

    rounds: bool = True
    cut: Callable[..., Cut | LeftAlone | str] | None = None
    left_alone: str = ""

    def __post_init__(self) -> None:
        flag("rounds", self.rounds)
        if self.cut is not None:
            check_function(self.cut, "cut")
        expect(
            isinstance(self.left_alone, str), "left_alone", self.left_alone, "a text"
        )


def labelled(equation: compat.Equation) -> dict[str, compat.Jaxpr]:
    """Returns an equation's jaxprs by label: a parameter, a number, or "" for one."""
    jaxprs = {}
    for name, value in equation.params.items():
        if compat.is_jaxpr(value):
            jaxprs[f"[{name}]"] = value
        elif isinstance(value, tuple | list):
            jaxprs |= {f"[{i}]": v for i, v in enumerate(value) if compat.is_jaxpr(v)}
    return {"": next(iter(jaxprs.values()))} if len(jaxprs) == 1 else jaxprs


@dataclass(frozen=True)
class HigherOrder:
    """The rule of a primitive with programs among its parameters.

    Attributes:
        run: `run(call, words, operands)` returns the list of results: the primitive
            rebuilt with JAX's public functions around `call.body(words, operands,
            label)`, which evaluates a body under noise. In a loop use
            `words.at_step(i)`, otherwise each step repeats the noise of the first.
            `call.params` are the equation's parameters, and `call.bind(*operands)`
            evaluates the equation without noise. A function that JAX traces separately
            must take `words` (a pytree) as an argument.
        programs: a function of the equation that returns the bodies that `run`
            evaluates, by label. A label is a part of the paths of their equations.
        inlined: whether the only body runs exactly once, in the place of the equation
            and with its words.
        joins: whether the only body becomes a part of the program around it, so that
            XLA may fuse the two.
        axes: a function of the parameters that returns the names and sizes of mesh axes
            that the bodies use.
    """

    run: Callable[..., Values]
    programs: Callable[[compat.Equation], Mapping[str, compat.Jaxpr]] = labelled
    inlined: bool = False
    joins: bool = False
    axes: Callable[[Params], Mapping[str, int]] = lambda params: {}

    def __post_init__(self) -> None:
        for name in ("run", "programs", "axes"):
            check_function(getattr(self, name), name)
        for name in ("inlined", "joins"):
            flag(name, getattr(self, name))


Rule = FirstOrder | HigherOrder

# By name of the primitive.
RULES: dict[str, Rule] = {}


def higher_order(name: str) -> HigherOrder | None:
    """Returns the rule of a primitive that runs other programs, or None."""
    rule = RULES.get(name)
    return rule if isinstance(rule, HigherOrder) else None


def register_rule(primitive: core.Primitive, rule: Rule) -> None:
    """Registers a rule for a primitive of your own, by the primitive's name.

    Register it before the first call of a noisy function, because compiled functions
    keep their rules. A NoiseError is raised if `primitive` is not a primitive or has a
    rule already, or if `rule` is not a rule. docs/noise.md has an example.
    """
    accepted = "a jax.extend.core.Primitive"
    expect(isinstance(primitive, core.Primitive), "primitive", primitive, accepted)
    accepted = "a noise.FirstOrder or a noise.HigherOrder"
    expect(isinstance(rule, Rule), "rule", rule, accepted)
    accepted = "one without a rule, and this name has one already"
    expect(primitive.name not in RULES, "primitive", primitive, accepted)
    if isinstance(rule, HigherOrder):
        rule = replace(rule, run=_checked(primitive.name, rule.run))
    RULES[primitive.name] = rule


def _checked(name: str, run: Callable[..., Values]) -> Callable[..., Values]:
    """Returns a user's `run`, which refuses results unlike those of the primitive."""

    @functools.wraps(run)
    def checked(call: Any, words: PyTree, operands: Values) -> Values:
        results, types = run(call, words, operands), None
        wanted = [var.aval for var in call.step.equation.outvars]
        if isinstance(results, list | tuple):
            with contextlib.suppress(TypeError):  # Of what is no array.
                types = list(map(jax.typeof, results))
        fit = types is not None and len(types) == len(wanted)
        for result, own in zip(types or (), wanted, strict=False):
            accepted = own.dtype, call.evaluation.wide_type(own.dtype)
            fit = fit and result.shape == own.shape and result.dtype in accepted
        returned = shown(results) if types is None else _listed(types)
        if not fit:
            raise NoiseError(
                f"the rule of {name} (run={shown(run)}) returns {returned}: expected "
                f"{_listed(wanted)}, a list of arrays as the primitive returns them"
            )
        return results

    return checked


def _listed(types: list) -> str:
    return f"[{', '.join(x.str_short() for x in types)}]"
