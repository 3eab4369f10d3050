"""Loops, branches and calls, rebuilt around the evaluation of their bodies.

One function for each higher-order primitive; `HIGHER_ORDER` names them. Each takes the
equation, its operands and its place, whose method `inside` evaluates a jaxpr of the
equation under noise. The public functions of JAX rebuild the loop, so that whatever
derivative or batching rule they have holds for the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.sharding import PartitionSpec, Sharding

from prednet_jax.noise import compat
from prednet_jax.noise.streams import State, at_step

Equation = compat.Equation


class Place(Protocol):
    """An equation's surroundings, as `transform` knows them."""

    def inside(
        self,
        state: State,
        jaxpr: Any,
        args: Sequence[Any],
        label: str = "",
        inlined: bool = False,
    ) -> list[Any]:
        """Evaluate a jaxpr of the equation; see `transform`."""
        ...


def _inline(here: Place, state: State, equation: Equation, operands: list) -> list:
    """A call without a rule of its own: its body."""
    jaxpr = compat.sub_jaxprs(equation.params)[0]
    return here.inside(state, jaxpr, operands, inlined=True)


def _jit(here: Place, state: State, equation: Equation, operands: list) -> list:
    """A compiled call: its body, with its shardings as constraints."""
    params = equation.params
    operands = _constrain(operands, params["in_shardings"])
    results = here.inside(state, params["jaxpr"], operands, inlined=True)
    return _constrain(results, params["out_shardings"])


def _constrain(values: list, shardings: Sequence[Any]) -> list:
    return [
        lax.with_sharding_constraint(v, s) if isinstance(s, Sharding) else v
        for v, s in zip(values, shardings, strict=True)
    ]


def _scan(here: Place, state: State, equation: Equation, operands: list) -> list:
    params = equation.params
    n_consts, n_carry = compat.scan_counts(params)
    consts, rest = operands[:n_consts], operands[n_consts:]

    def body(carry: list, x: tuple) -> tuple[list, list]:
        step, xs = x
        out = here.inside(at_step(state, step), params["jaxpr"], [*consts, *carry, *xs])
        return out[:n_carry], out[n_carry:]

    carry, ys = lax.scan(
        body,
        rest[:n_carry],
        (lax.iota(jnp.uint32, params["length"]), rest[n_carry:]),
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*carry, *ys]


def _while(here: Place, state: State, equation: Equation, operands: list) -> list:
    """A while loop with a step counter; its predicate is perturbed as well.

    After vmap the predicate may have axes: each element then stops on its own, and the
    body keeps the values of those that have stopped.
    """
    params = equation.params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts = operands[:n_cond]
    body_consts = operands[n_cond : n_cond + n_body]

    def predicate(step: Array, carry: list) -> Array:
        inner = at_step(state, step)
        args = [*cond_consts, *carry]
        return here.inside(inner, params["cond_jaxpr"], args, "[cond]")[0]

    def cond(carry: tuple[Array, list]) -> Array:
        return jnp.any(predicate(*carry))

    def body(carry: tuple[Array, list]) -> tuple[Array, list]:
        step, old = carry
        inner = at_step(state, step)
        args = [*body_consts, *old]
        new = here.inside(inner, params["body_jaxpr"], args, "[body]")
        going = predicate(step, old)
        if going.ndim:
            new = [_keep(going, n, o) for n, o in zip(new, old, strict=True)]
        return step + np.uint32(1), new

    start = (jnp.zeros((), jnp.uint32), operands[n_cond + n_body :])
    return list(lax.while_loop(cond, body, start)[1])


def _keep(going: Array, new: Array, old: Array) -> Array:
    going = lax.broadcast_in_dim(going, jnp.shape(new), tuple(range(going.ndim)))
    return jnp.where(going, new, old)


def _cond(here: Place, state: State, equation: Equation, operands: list) -> list:
    index, *args = operands

    def branch(i: int, jaxpr: Any) -> Callable:
        return lambda state, *args: here.inside(state, jaxpr, args, f"[{i}]")

    params = equation.params
    branches = [branch(i, jaxpr) for i, jaxpr in enumerate(params["branches"])]
    platforms = params.get("branches_platforms")
    if platforms is None:
        return list(lax.switch(index, branches, state, *args))
    named = {
        platform: function
        for function, names in zip(branches, platforms, strict=True)
        for platform in names or ("default",)
    }
    return list(lax.platform_dependent(state, *args, **named))


def _remat(here: Place, state: State, equation: Equation, operands: list) -> list:
    params = equation.params
    if params["differentiated"]:
        # Part of a backward pass: recomputed here, once and for all. The barrier keeps
        # XLA from sharing with the forward pass, as JAX's own lowering does.
        if params["prevent_cse"]:
            operands = _barrier(operands)
        return here.inside(state, params["jaxpr"], operands)

    def function(state: State, *args: Any) -> list:
        return here.inside(state, params["jaxpr"], args)

    checkpointed = jax.checkpoint(
        function, prevent_cse=params["prevent_cse"], policy=params["policy"]
    )
    return list(checkpointed(state, *operands))


def _barrier(values: list) -> list:
    """`optimization_barrier`, of which all results vary over all axes of any value."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for i, value in enumerate(values):
        alike.setdefault(compat.varying_axes(value), []).append(i)
    held = list(values)
    for indices in alike.values():
        results = lax.optimization_barrier([values[i] for i in indices])
        for i, result in zip(indices, results, strict=True):
            held[i] = result
    return held


def _custom(here: Place, state: State, equation: Equation, operands: list) -> list:
    """custom_jvp and custom_vjp: perturbed inside, their rule kept for a later grad."""
    jaxpr = equation.params["call_jaxpr"]

    @jax.custom_jvp
    def function(state: State, *args: Any) -> list:
        return here.inside(state, jaxpr, args)

    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple:
        args, dots = primals[1:], tangents[1:]
        # A custom_vjp function refuses derivatives by what it closes over, zeros too.
        moving = [i for i, dot in enumerate(dots) if not isinstance(dot, SymbolicZero)]

        def plain(*some: Any) -> list:
            given = dict(zip(moving, some, strict=True))
            return compat.bind(equation, *(given.get(i, x) for i, x in enumerate(args)))

        tangent = jax.jvp(plain, [args[i] for i in moving], [dots[i] for i in moving])
        return function(*primals), tangent[1]

    function.defjvp(rule, symbolic_zeros=True)
    return list(function(state, *operands))


def _shard_map(here: Place, state: State, equation: Equation, operands: list) -> list:
    params = equation.params

    def function(state: State, *args: Any) -> tuple:
        return tuple(here.inside(state, params["jaxpr"], args))

    everywhere: Any = State(*(PartitionSpec() for _ in state))  # type: ignore[arg-type]
    mapped = jax.shard_map(
        function,
        mesh=params["mesh"],
        in_specs=(everywhere, *params["in_specs"]),
        out_specs=tuple(params["out_specs"]),
        axis_names=compat.manual_axes(params),
        check_vma=params["check_vma"],
    )
    return list(mapped(state, *operands))


HIGHER_ORDER: Mapping[str, Callable[..., list]] = MappingProxyType(
    {
        "jit": _jit,
        "pjit": _jit,
        **dict.fromkeys(compat.CALLS, _inline),
        "scan": _scan,
        "while": _while,
        "cond": _cond,
        "remat2": _remat,
        "checkpoint": _remat,
        "custom_jvp_call": _custom,
        "custom_vjp_call": _custom,
        "shard_map": _shard_map,
    }
)

# Those whose body is evaluated exactly once, in the place of the equation.
INLINED = frozenset({"jit", "pjit", *compat.CALLS})

# Those whose body becomes a part of the program around it.
RUN_ONCE = INLINED | {"custom_jvp_call", "custom_vjp_call"}
