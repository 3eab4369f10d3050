"""Names for types that JAX leaves open, and texts that list names."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax

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
# The shape, type and sharding of a value, or an array, which has them too.
Aval: TypeAlias = Any


def names_in(text: str) -> frozenset[str]:
    """Returns the names in a text, which blanks separate."""
    return frozenset(text.split())
