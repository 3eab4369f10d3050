"""The arguments of a transformed function: which are traced, and which are not.

Arrays are traced. Anything else (configurations, names, Python numbers) reaches the
function unchanged and is part of the identity of what is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array


@dataclass(frozen=True)
class Static:
    """The arguments of a call that are no arrays, and where the arrays go.

    The types of the values are part of the identity: 1, 1.0 and True are equal.
    """

    tree: Any
    values: tuple[Any, ...]
    types: tuple[type, ...]

    @property
    def hashable(self) -> bool:
        """Whether a compiled function can be kept for these arguments."""
        try:
            hash(self)
        except TypeError:
            return False
        return True

    def call(self, fn: Callable) -> Callable:
        """`fn` as a function of the arrays alone."""

        def of_arrays(*arrays: Array) -> Any:
            left = iter(arrays)
            leaves = [next(left) if v is _ARRAY else v for v in self.values]
            args, kwargs = jax.tree.unflatten(self.tree, leaves)
            return fn(*args, **kwargs)

        return of_arrays


_ARRAYS = jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct
_ARRAY = type("_Array", (), {"__repr__": lambda self: "<array>"})()


def split_static(arguments: Any) -> tuple[Static, list[Any]]:
    """The arrays among the leaves of `arguments`, and everything else."""
    leaves, tree = jax.tree.flatten(arguments)
    is_array = [isinstance(x, _ARRAYS) for x in leaves]
    values = tuple(_ARRAY if a else x for a, x in zip(is_array, leaves, strict=True))
    static = Static(tree, values, tuple(type(v) for v in values))
    return static, [x for a, x in zip(is_array, leaves, strict=True) if a]
