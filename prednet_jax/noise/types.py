"""Names for types that JAX leaves open."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import jax
import numpy as np

# Containers around arrays and any other leaves; an array is one too.
PyTree: TypeAlias = Any
# A function of a user, which JAX can trace.
Function: TypeAlias = Callable[..., Any]
# The parameters of an equation.
Params: TypeAlias = Mapping[str, Any]
# The values that equations read and write: arrays, while traced or not.
Values: TypeAlias = Sequence[jax.Array]


class Aval(Protocol):
    """The shape and type of a value."""

    shape: tuple[int, ...]
    dtype: np.dtype
    size: int
    ndim: int
    sharding: jax.sharding.NamedSharding


class Atom(Protocol):
    """An input of an equation: a variable or a literal."""

    aval: Aval
    val: Any

    def __hash__(self) -> int: ...
