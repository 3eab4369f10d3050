"""Products and sums of sparse arrays (BCOO, BCSR, COO, CSR), by JAX's own programs.

On a CPU JAX evaluates each of these primitives by a function written in JAX: gathers,
products, scatter-adds. That program is traced and stands in the primitive's place, so
that noise acts on its sums and products as on any others. (On a GPU some of them call
cuSPARSE instead, which adds in its own order.)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax

from prednet_jax.noise import compat
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.rules.registry import Call, HigherOrder

# Primitives and the modules of `jax.experimental.sparse` that implement them.
_MODULES = MappingProxyType(
    {
        "bcoo_dot_general": "bcoo",
        "bcoo_dot_general_sampled": "bcoo",
        "bcoo_spdot_general": "bcoo",
        "bcoo_sum_duplicates": "bcoo",
        "bcoo_todense": "bcoo",
        "bcsr_dot_general": "bcsr",
        "bcsr_todense": "bcsr",
        "coo_matmat": "coo",
        "coo_matvec": "coo",
        "coo_todense": "coo",
        "csr_matmat": "csr",
        "csr_matvec": "csr",
        "csr_todense": "csr",
        "todense": "api",
    }
)


def _program(equation: compat.Equation) -> dict[str, Any]:
    """The program that stands for an equation."""
    name = equation.primitive.name
    module = sys.modules[f"jax.experimental.sparse.{_MODULES[name]}"]
    function = getattr(module, f"_{name}_impl")
    shapes = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in equation.invars]
    with compat.settings(equation):
        traced = jax.make_jaxpr(lambda *xs: function(*xs, **equation.params))(*shapes)
    return {"": traced}


def _inline(call: Call, words: Words, operands: list) -> list:
    return call.body(words, operands)


EXPANDED: Mapping[str, HigherOrder] = MappingProxyType(
    dict.fromkeys(_MODULES, HigherOrder(_inline, inlined=True, program=_program))
)
