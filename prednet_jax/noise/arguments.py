"""The arguments of a transformed function: which are traced, and which are not.

Arrays are traced. Anything else (configurations, names, Python numbers) reaches the
function unchanged and is part of the identity of what is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array

from prednet_jax.noise.errors import NoiseError


@dataclass(frozen=True)
class Static:
    """The arguments of a call that are no arrays, and where the arrays go.

    Types and signs of the values are part of the identity: 1, 1.0 and True are equal,
    and so are 0.0 and -0.0. Beyond that they are what `==` says, as for the static
    arguments of `jax.jit`.
    """

    tree: Any
    values: tuple[Any, ...]
    kinds: tuple[Any, ...]

    def checked(self) -> Static:
        """Itself, if a compiled function can be kept for these arguments.

        Raises:
            NoiseError: when an argument is neither an array nor hashable. (To compile
                anew at each call would take seconds, in silence; to go by identity
                would miss a change of the argument.)
        """
        for value in self.values:
            try:
                hash(value)
            except TypeError:
                raise NoiseError(
                    f"argument {value!r}: expected arrays, or what can be hashed, such "
                    "as a frozen dataclass; or leave it out of the arguments, as in "
                    "inject(lambda x: fn(x, options), spec), kept between calls"
                ) from None
        return self

    def call(self, fn: Callable) -> Callable:
        """`fn` as a function of the arrays alone."""

        def of_arrays(*arrays: Array) -> Any:
            left = iter(arrays)
            leaves = [next(left) if v is _ARRAY else v for v in self.values]
            args, kwargs = jax.tree.unflatten(self.tree, leaves)
            return fn(*args, **kwargs)

        return of_arrays


def _kind(value: Any) -> Any:
    """What tells a value from an equal one."""
    if isinstance(value, complex):
        return type(value), _kind(value.real), _kind(value.imag)
    if isinstance(value, float):
        return type(value), math.copysign(1.0, value)
    return type(value)


_ARRAYS = jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct
_ARRAY = type("_Array", (), {"__repr__": lambda self: "<array>"})()


def split_static(arguments: Any) -> tuple[Static, list[Any]]:
    """The arrays among the leaves of `arguments`, and everything else."""
    leaves, tree = jax.tree.flatten(arguments)
    is_array = [isinstance(x, _ARRAYS) for x in leaves]
    values = tuple(_ARRAY if a else x for a, x in zip(is_array, leaves, strict=True))
    static = Static(tree, values, tuple(_kind(v) for v in values))
    return static, [x for a, x in zip(is_array, leaves, strict=True) if a]
