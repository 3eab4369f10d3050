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


# An input of an equation, a variable or a literal: JAX types no attribute of its value.
Atom: TypeAlias = Any


class Aval(Protocol):
    """The shape and type of a value; an array has them too."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the sizes of the axes."""

    @property
    def dtype(self) -> np.dtype:
        """Returns the type of the elements."""

    @property
    def size(self) -> int:
        """Returns the number of elements."""

    @property
    def ndim(self) -> int:
        """Returns the number of axes."""

    @property
    def sharding(self) -> Any:
        """Returns how it lies on devices."""
