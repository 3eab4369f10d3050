"""Finds the sums and products of whole numbers that no order and no rounding changes.

Whole numbers below 2^(m + 1), for a mantissa of m bits, have no rounding error. So
neither has a sum of them, in any order, if the sum of their magnitudes is below that:
counts, numbers of positions, products of one-hot rows.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise.types import Params

# The number of terms of one result, from the parameters and the operands.
_TERMS: Mapping[str, Callable[..., int]] = MappingProxyType(
    {
        "reduce_sum": lambda params, x: _size(x, params["axes"]),
        "cumsum": lambda params, x: x.shape[params["axis"]],
        "reduce_window_sum": lambda params, x: math.prod(params["window_dimensions"]),
        "dot_general": lambda params, x, y: _size(x, params["dimension_numbers"][0][0]),
        **dict.fromkeys(
            ("scatter-add", "scatter-sub"),
            lambda params, x, indices, updates: 1 + math.prod(indices.shape[:-1]),
        ),
        "add_any": lambda params, *terms: len(terms),
    }
)
_POWERS = frozenset({"integer_pow", "reduce_prod", "cumprod"})
PRIMITIVES = _POWERS | _TERMS.keys()


def is_exact(
    name: str, params: Params, value: Array, operands: Sequence[Array]
) -> Array | None:
    """Returns where a result is a sum or a product of whole numbers without rounding.

    Args:
        name: the primitive's name.
        params: its parameters.
        value: its result, of a real floating-point type.
        operands: its operands.

    Returns:
        Booleans that broadcast to the value, or None for other primitives and types.
    """
    if name not in PRIMITIVES:
        return None
    operands = [jnp.asarray(x) for x in operands]  # Literals are no arrays.
    numbers = [operands[0], operands[2]] if name.startswith("scatter") else operands
    if any(jnp.issubdtype(x.dtype, jnp.complexfloating) for x in numbers):
        return None
    limit = 2.0 ** (jnp.finfo(value.dtype).nmant + 1)
    if name in _POWERS:
        # A partial product of whole numbers is not above the product, unless it is 0.
        whole = _largest(operands[0], range(operands[0].ndim)) < np.inf
        return whole & (abs(value) < limit) if params.get("y", 0) >= 0 else None
    terms = _TERMS[name](params, *operands)
    axes = params["axes"] if name == "reduce_sum" else None
    largest = [_largest(x, range(x.ndim) if axes is None else axes) for x in numbers]
    most = functools.reduce(lax.mul if name == "dot_general" else lax.max, largest)
    # The bound is computed in float32, where its own rounding stays below 2^-20.
    return most * np.float32(terms) <= np.float32(limit * (1 - 2.0**-20))


def _size(x: Array, axes: Sequence[int]) -> int:
    return math.prod(x.shape[axis] for axis in axes)


def _largest(x: Array, axes: Sequence[int]) -> Array:
    """Returns the largest magnitude of whole numbers, or infinity with any other."""
    # Few operations accept int4, and abs(-128) is -128 in int8.
    size = abs(lax.convert_element_type(x, jnp.float32))
    if jnp.issubdtype(x.dtype, jnp.floating):
        size = lax.select(x == lax.floor(x), size, lax.full_like(size, np.inf))
    return lax.reduce_max(size, tuple(axes))
