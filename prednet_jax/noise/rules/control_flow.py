"""Rebuilds loops, branches and calls around the noisy evaluation of their bodies.

`HIGHER_ORDER` names one function for each higher-order primitive. JAX's public
functions rebuild the primitive, so that their derivative and batching rules hold.
Products and sums of sparse arrays are replaced by the programs with which JAX computes
them on a CPU. docs/noise/limits.md describes linear solvers.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero, zero_from_primal
from jax.sharding import PartitionSpec, Sharding

from prednet_jax.noise import compat, loops
from prednet_jax.noise.fusion import materialised
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.rules.registry import HigherOrder
from prednet_jax.noise.types import Params, PyTree, Values

Call = Any  # `run.Call`, or what stands for it


def _inline(call: Call, words: Words, operands: list) -> list:
    """Evaluates the body of a call that needs no rule of its own."""
    return call.body(words, operands)


def _jit(call: Call, words: Words, operands: list) -> list:
    """Evaluates the body of a compiled call, with its shardings as constraints."""
    operands = _constrain(operands, call.params["in_shardings"])
    results = call.body(words, operands)
    if not call.step.bodies[""].steps:
        # Noise inside the noisy function made the call, so that XLA keeps it.
        results = [materialised(x) for x in results]
    return _constrain(results, call.params["out_shardings"])


def _constrain(values: list, shardings: Sequence[jax.sharding.Sharding]) -> list:
    return [
        lax.with_sharding_constraint(v, s) if isinstance(s, Sharding) else v
        for v, s in zip(values, shardings, strict=True)
    ]


def _scan(call: Call, words: Words, operands: list) -> list:
    params = call.params
    n_consts, n_carry = compat.scan_counts(params)
    consts, rest = operands[:n_consts], operands[n_consts:]

    def body(carry: list, x: tuple) -> tuple[list, list]:
        step, xs = x
        out = call.body(words.at_step(step), [*consts, *carry, *xs])
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


def _while(call: Call, words: Words, operands: list) -> list:
    """Rebuilds a while loop with a step counter; its predicate is perturbed as well.

    `loops` decides which loops are stopped, and when.
    """
    if loops.PLAIN in call.step.scope:
        return call.bind(*operands)
    params = call.params
    carried = loops.deciding(params) if call.evaluation.changes else None
    guarded = carried is not None and loops.BOUNDED not in call.step.scope
    limit, plain, most = loops.current().factor, None, None
    if guarded:
        counting = call.evaluation.is_plain
        counted = call.evaluation.counted.get(call.step.path)
        if counted is not None and not counting:
            plain = loops.PlainSteps(jnp.uint32(counted), jnp.bool_(False))
        else:
            plain, end = loops.plain_steps(
                params,
                operands if counting else loops.with_own_refs(operands),
                carried or [],
                functools.partial(call.plainly, words, label="[cond]"),
                functools.partial(call.plainly, words, label="[body]"),
            )
        if counting:  # A run without noise, or inside of another loop's.
            if call.evaluation.refuses_loops:
                where = call.evaluation.changes
                loops.refuse(call.step.source, limit, plain.repeats, plain, where)
            call.decided(words, plain.steps)
            return end
        most = jnp.minimum(plain.steps, np.uint32(2**32 // limit - 1))
        most = jnp.maximum(most, 1) * np.uint32(limit)
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts = operands[:n_cond]
    body_consts = operands[n_cond : n_cond + n_body]

    def predicate(step: Array, carry: list) -> Array:
        args = [*cond_consts, *carry]
        return call.body(words.at_step(step), args, "[cond]")[0]

    def cond(carry: tuple[Array, Array, list]) -> Array:
        going = jnp.any(carry[1])
        return going if most is None else going & (carry[0] < most)

    def body(carry: tuple[Array, Array, list]) -> tuple[Array, Array, list]:
        step, going, old = carry
        new = call.body(words.at_step(step), [*body_consts, *old], "[body]")
        step, kept = step + np.uint32(1), list(loops.stopping(going, new, old))
        # A stopped loop stays stopped, whatever noise makes of its predicate.
        return step, going & predicate(step, kept), kept

    first, init = jnp.zeros((), jnp.uint32), operands[n_cond + n_body :]
    start = first, predicate(first, init), init
    with jax.named_scope(loops.BOUNDED) if guarded else contextlib.nullcontext():
        steps, going, results = lax.while_loop(cond, body, start)
    if plain is not None and call.evaluation.refuses_loops:
        where = call.evaluation.changes
        loops.refuse(call.step.source, limit, jnp.any(going), plain, where)
    call.decided(words, steps)
    return list(results)


def _cond(call: Call, words: Words, operands: list) -> list:
    index, *args = operands
    call.decided(words, index)

    def branch(i: int) -> Callable:
        return lambda words, *args: call.body(words, args, f"[{i}]")

    params = call.params
    passing = [i for i, b in enumerate(params["branches"]) if not compat.is_check(b)]
    if not loops.current().checks and len(passing) == 1 < len(params["branches"]):
        return branch(passing[0])(words, *args)
    branches = [branch(i) for i in range(len(params["branches"]))]
    return list(compat.branch(params, index, branches, words, *args))


def body_operands(name: str, params: Params, operands: Values, label: str) -> Values:
    """Returns the operands of an equation that one of its bodies gets, in its order."""
    if name == "cond":
        return operands[1:]
    if name == "while" and label == "[cond]":
        n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
        return [*operands[:n_cond], *operands[n_cond + n_body :]]
    if name == "while":
        return operands[params["cond_nconsts"] :]
    if name == "custom_linear_solve":
        _, of_solve, _, b = _split(params, operands)
        return [*of_solve, *b]
    return operands


def _remat(call: Call, words: Words, operands: list) -> list:
    params = call.params
    if params["differentiated"]:
        # Part of a backward pass: recomputed here, once and for all. The barrier keeps
        # XLA from sharing with the forward pass, as JAX's own lowering does.
        if params["prevent_cse"]:
            operands = _barrier(operands)
        return call.body(words, operands)

    def function(words: Words, *args: PyTree) -> list:
        return call.body(words, args)

    checkpointed = jax.checkpoint(
        function, prevent_cse=params["prevent_cse"], policy=params["policy"]
    )
    return list(checkpointed(words, *operands))


def _barrier(values: list) -> list:
    """Applies `optimization_barrier`; all results vary over the axes of any value."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for i, value in enumerate(values):
        alike.setdefault(compat.varying_axes(value), []).append(i)
    held = list(values)
    for indices in alike.values():
        results = lax.optimization_barrier([values[i] for i in indices])
        for i, result in zip(indices, results, strict=True):
            held[i] = result
    return held


def _jvp(function: Callable, args: Values, dots: Values) -> tuple:
    """Returns the derivative along all `dots` that are not symbolic zeros."""
    # A custom_vjp function refuses derivatives by what it closes over, zeros too.
    moving = [i for i, dot in enumerate(dots) if not isinstance(dot, SymbolicZero)]

    def of_moving(*primals: Array) -> list:
        by_index = dict(zip(moving, primals, strict=True))
        return function(*(by_index.get(i, x) for i, x in enumerate(args)))

    return jax.jvp(of_moving, [args[i] for i in moving], [dots[i] for i in moving])[1]


def _custom(call: Call, words: Words, operands: list) -> list:
    """Perturbs custom_jvp and custom_vjp inside, and keeps their rule for grad."""

    @jax.custom_jvp
    def function(words: Words, *args: PyTree) -> list:
        return call.body(words, args)

    def rule(primals: Values, tangents: Values) -> tuple:
        tangent = _jvp(call.bind, primals[1:], tangents[1:])
        return function(*primals), tangent

    function.defjvp(rule, symbolic_zeros=True)
    return list(function(words, *operands))


def _shard_map(call: Call, words: Words, operands: list) -> list:
    params = call.params

    def function(words: Words, *args: PyTree) -> tuple:
        return tuple(call.body(words, args))

    everywhere: PyTree = jax.tree.map(lambda _: PartitionSpec(), words)
    over_mesh = jax.shard_map(
        function,
        mesh=params["mesh"],
        in_specs=(everywhere, *params["in_specs"]),
        out_specs=tuple(params["out_specs"]),
        axis_names=frozenset(params["newly_manual_axes"]),
        check_vma=params["check_vma"],
    )
    return list(over_mesh(words, *operands))


def _split(params: Params, operands: Values) -> tuple:
    """Returns the constants of `matvec` and of `solve`, all constants, and b."""
    lengths = params["const_lengths"]
    count, before = sum(lengths), lengths.matvec + lengths.vecmat
    return (
        operands[: lengths.matvec],
        operands[before : before + lengths.solve],
        operands[:count],
        operands[count:],
    )


def _solve(call: Call, words: Words, operands: list) -> list:
    @jax.custom_jvp
    def solved(words: Words, *operands: Array) -> list:
        _, of_solve, _, b = _split(call.params, operands)
        return call.body(words, [*of_solve, *b], "[solve]")

    def rule(primals: Values, tangents: Values) -> tuple:
        results = solved(*primals)
        of_matvec, _, constants, b = _split(call.params, primals[1:])
        moved, _, _, b_dots = _split(call.params, tangents[1:])
        right = [
            jnp.zeros_like(x) if isinstance(dot, SymbolicZero) else dot
            for x, dot in zip(b, b_dots, strict=True)
        ]
        if not all(isinstance(dot, SymbolicZero) for dot in moved):
            matvec = compat.as_function(call.params["jaxprs"].matvec)
            x = results[: len(b)]
            change = _jvp(lambda *consts: matvec(*consts, *x), of_matvec, moved)
            right = [r - c for r, c in zip(right, change, strict=True)]
        dots = call.bind(*constants, *right)[: len(b)]
        # A solver's results other than x have no derivative.
        return results, [*dots, *zero_from_primal(results[len(b) :])]

    solved.defjvp(rule, symbolic_zeros=True)
    return list(solved(words, *operands))


# Primitives of sparse arrays, by their module in `jax.experimental.sparse`.
_SPARSE = {
    "bcoo": (
        *("bcoo_dot_general", "bcoo_dot_general_sampled", "bcoo_spdot_general"),
        *("bcoo_sum_duplicates", "bcoo_todense"),
    ),
    "bcsr": ("bcsr_dot_general", "bcsr_todense"),
    "coo": ("coo_matmat", "coo_matvec", "coo_todense"),
    "csr": ("csr_matmat", "csr_matvec", "csr_todense"),
    "api": ("todense",),
}


def _sparse(module: str, equation: compat.Equation) -> dict[str, compat.Jaxpr]:
    """Returns the program that replaces an equation of sparse arrays."""
    loaded = sys.modules[f"jax.experimental.sparse.{module}"]
    return _program(getattr(loaded, f"_{equation.primitive.name}_impl"), equation)


def _program(
    function: Callable[..., PyTree], equation: compat.Equation
) -> dict[str, compat.Jaxpr]:
    """Traces a function of an equation's operands and parameters."""
    shapes = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in equation.invars]
    with compat.settings(equation):
        traced = jax.make_jaxpr(lambda *xs: function(*xs, **equation.params))(*shapes)
    return {"": traced}


_CUSTOM = HigherOrder(_custom, lambda e: {"": e.params["call_jaxpr"]}, joins=True)
_REMAT = HigherOrder(_remat)
_JIT = HigherOrder(_jit, inlined=True, joins=True)
_CALL = HigherOrder(_inline, inlined=True, joins=True)

HIGHER_ORDER: Mapping[str, HigherOrder] = MappingProxyType(
    {
        "jit": _JIT,
        "pjit": _JIT,
        # Since JAX 0.11 all of these are one primitive, `eval_jaxpr`.
        **dict.fromkeys(("closed_call", "core_call", "call", "eval_jaxpr"), _CALL),
        "scan": HigherOrder(_scan),
        "while": HigherOrder(
            _while,
            lambda e: {f"[{n}]": e.params[f"{n}_jaxpr"] for n in ("cond", "body")},
        ),
        "cond": HigherOrder(
            _cond, lambda e: {f"[{i}]": b for i, b in enumerate(e.params["branches"])}
        ),
        "remat2": _REMAT,
        "checkpoint": _REMAT,
        "custom_jvp_call": _CUSTOM,
        "custom_vjp_call": _CUSTOM,
        "shard_map": HigherOrder(_shard_map, axes=compat.manual_axis_sizes),
        "composite": _CALL,
        # Under vmap the noisy body has JAX's own rule, not the user's.
        "custom_vmap_call": _CALL,
        # From Lineax, and the same under vmap: evaluated as Equinox does.
        **dict.fromkeys(
            ("linear_solve", "vprim"),
            HigherOrder(_custom, lambda e: _program(e.primitive.impl, e)),
        ),
        # From Equinox: it refuses vmap, and Lineax uses it only outside of vmap.
        "nontraceable": HigherOrder(lambda call, words, operands: operands),
        "custom_linear_solve": HigherOrder(
            _solve, lambda e: {"[solve]": e.params["jaxprs"].solve}
        ),
        **{
            name: HigherOrder(_inline, functools.partial(_sparse, module), inlined=True)
            for module, names in _SPARSE.items()
            for name in names
        },
    }
)
