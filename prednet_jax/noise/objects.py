"""Mutable objects among arguments and results: those of Flax NNX.

JAX traces pure functions. An NNX module or optimiser is an object whose variables a
function replaces: it is taken apart into its definition, which can be hashed, and its
arrays, and put together from other arrays where the function runs. NNX's own
transformations do the same (`flax.nnx.split`, `merge`, `update`). Several objects are
taken apart together, so that what they share stays shared.

Nothing here imports Flax: an object of NNX can only be met where `flax.nnx` is loaded.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

from prednet_jax.noise.errors import NoiseError


class _Definition(NamedTuple):
    """What objects are without their arrays."""

    graph: Any
    tree: Any


def is_mutable(value: Any) -> bool:
    """Whether a value is an object of Flax NNX: a module, an optimiser, a variable."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, (nnx.Pytree, nnx.Variable))


def taken_apart(found: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The definition of objects, all together, and their arrays; None without any."""
    if not found:
        return None, []
    graph, state = sys.modules["flax.nnx"].split(list(found))
    arrays, tree = jax.tree.flatten(state)
    return _Definition(graph, tree), arrays


def joined(definition: Any, arrays: Sequence[Any]) -> list[Any]:
    """New objects of a definition and arrays."""
    if definition is None:
        return []
    state = jax.tree.unflatten(definition.tree, arrays)
    return list(sys.modules["flax.nnx"].merge(definition.graph, state))


def update(found: Sequence[Any], arrays: Sequence[Any]) -> None:
    """Gives objects other arrays, in the order of `taken_apart`."""
    if found:
        definition, _ = taken_apart(found)
        state = jax.tree.unflatten(definition.tree, arrays)
        sys.modules["flax.nnx"].update(list(found), state)


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """Says what to do about an object that a function reaches otherwise and mutates."""
    try:
        yield
    except Exception as error:
        if "flax.nnx" in sys.modules and "different trace level" in str(error):
            raise NoiseError(
                "the function mutates a Flax NNX object that is not among its "
                "arguments: expected every nnx module, optimiser and Rngs that it "
                f"changes as an argument ({str(error).splitlines()[0]})"
            ) from error
        raise
