"""`lax.custom_linear_solve`: behind `jnp.linalg.solve`, `cg` and `gmres`.

The primitive has four programs: `matvec`, x -> A x; `vecmat`, x -> A' x; `solve`,
b -> x; and `transpose_solve`. Only `solve` runs when a system is solved; the others
serve derivatives. So:

    inject(f)        perturbs `solve`: in an iterative solver each step, the products
                     with A among them; in `jnp.linalg.solve` the triangular solves.
    inject(grad(f))  holds two systems, the second with `transpose_solve` in the place
                     of `solve`, and the products with A and its derivative as ordinary
                     equations: all are perturbed.
    grad(inject(f))  is the plain implicit derivative at the perturbed solution x:
                     dx = A^-1 (db - dA x), the second system solved without noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend import core

from prednet_jax.noise.rules.registry import Call, HigherOrder
from prednet_jax.noise.words import Words


def _split(params: Mapping[str, Any], operands: Sequence[Any]) -> tuple:
    """The constants of `matvec` and of `solve`, all constants, and b."""
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
    def solved(words: Words, *operands: Any) -> list:
        _, of_solve, _, b = _split(call.params, operands)
        return call.body(words, [*of_solve, *b], "[solve]")

    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple:
        results = solved(*primals)
        of_matvec, _, constants, b = _split(call.params, primals[1:])
        moved, _, _, b_dots = _split(call.params, tangents[1:])
        right = [_filled(x, dot) for x, dot in zip(b, b_dots, strict=True)]
        moving = [i for i, dot in enumerate(moved) if not isinstance(dot, SymbolicZero)]

        def product(*some: Any) -> list:
            """A x, of the constants of A that have a derivative."""
            given = list(of_matvec)
            for i, x in zip(moving, some, strict=True):
                given[i] = x
            matvec = core.jaxpr_as_fun(call.params["jaxprs"].matvec)
            return matvec(*given, *results[: len(b)])

        if moving:
            at, along = [of_matvec[i] for i in moving], [moved[i] for i in moving]
            _, change = jax.jvp(product, at, along)
            right = [r - c for r, c in zip(right, change, strict=True)]
        dots = call.bind(*constants, *right)[: len(b)]
        # What a solver tells beside x has no derivative.
        return results, [*dots, *map(_nothing, results[len(b) :])]

    solved.defjvp(rule, symbolic_zeros=True)
    return list(solved(words, *operands))


def _filled(x: Any, dot: Any) -> Any:
    return jnp.zeros_like(x) if isinstance(dot, SymbolicZero) else dot


def _nothing(x: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)


RULE = HigherOrder(_solve, lambda params: {"[solve]": params["jaxprs"].solve})
