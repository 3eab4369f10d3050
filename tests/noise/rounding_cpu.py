"""Makes this CPU multiply as an accelerator does by default.

    with multiplying("tf32"):   # as an A100, H100 or H200: 10 bits of mantissa
        ...

Operands of float32 products and convolutions are rounded unless the precision asks for
more. Checked against an H200: for `noise_programs.mlp` the default differs from the
highest precision by 4.5396e-4 there and here. (The H200 keeps some small products
inside loops in float32; this does not.) Uses internals of JAX 0.10 and 0.11.
"""

import contextlib

import jax
import jax.numpy as jnp
from jax import lax
from jax._src.interpreters import mlir

from prednet_jax.noise.questions import precision

BITS = {"tf32": 10, "bf16": 7}


@contextlib.contextmanager
def multiplying(name):
    """Rounds the operands of float32 products to a format inside of the context."""
    table = mlir._platform_specific_lowerings["cpu"]
    products = lax.dot_general_p, lax.conv_general_dilated_p
    before = {p: table[p] for p in products if p in table}
    for primitive in products:
        _replace(primitive, table, BITS[name])
    _forget()
    try:
        yield
    finally:
        for primitive in products:
            table.pop(primitive, None)
        table.update(before)
        _forget()


def _forget():
    jax.clear_caches()
    precision._TRIED.clear()


def _replace(primitive, table, bits):
    rule = table.get(primitive) or mlir._lowerings[primitive]
    plain = getattr(rule, "rule", rule)

    def rounded(a, b, **params):
        a, b = (lax.reduce_precision(x, 8, bits) for x in (a, b))
        params["precision"] = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)
        return primitive.bind(a, b, **params)

    lowered = mlir.lower_fun(rounded, multiple_results=False)

    def rule(ctx, *args, **params):
        asked = params.get("precision")
        asked = asked if isinstance(asked, tuple) else (asked,)
        more = any(x not in (None, lax.Precision.DEFAULT) for x in asked)
        if more or any(aval.dtype != jnp.float32 for aval in ctx.avals_in[:2]):
            return plain(ctx, *args, **params)
        return lowered(ctx, *args, **params)

    mlir.register_lowering(primitive, rule, platform="cpu")
