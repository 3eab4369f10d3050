"""The type of the operands of the networks' products.

JAX's own setting `jax_default_matmul_precision` decides. Under `bfloat16` the operands
of products and convolutions are bfloat16 numbers on every device, while parameters,
states, elementwise arithmetic and the optimiser keep their type (Micikevicius et al.,
arXiv 1710.03740, section 3.1). Under every other setting operands keep their type, and
the device decides how it multiplies float32.
"""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


def operand_dtype(dtype: DTypeLike) -> jnp.dtype:
    """Returns the type in which products of arrays of `dtype` take their operands."""
    narrow = jax.config.values["jax_default_matmul_precision"] == "bfloat16"
    return jnp.dtype(jnp.bfloat16 if narrow and dtype == jnp.float32 else dtype)


def operand(x: jax.Array) -> jax.Array:
    """Returns an array as an operand of a product, rounded as JAX is configured."""
    return x.astype(operand_dtype(x.dtype))


def sum_dtype(dtype: DTypeLike) -> jnp.dtype:
    """Returns the type in which products of operands of `dtype` are added up."""
    return jnp.dtype(jnp.float32 if dtype == jnp.bfloat16 else dtype)
