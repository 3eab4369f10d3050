"""What goes into a transformed function, and what comes out: arrays, and the rest.

Arrays are traced. Anything else among the arguments is part of the identity of what is
compiled, and among the results it comes back unchanged.

Flax NNX objects are mutable: those of a call are taken apart together, so that what
they share stays shared, into a definition, which can be hashed, and arrays; the
function runs on new ones, and `Outcome.put` does to the caller's what it did to them.
Flax is not imported here: its objects can only be met where it is loaded.
"""

import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array

from prednet_jax.noise.errors import NoiseError


@dataclass(frozen=True)
class Static:
    """The arguments of a call that are no arrays, and where the arrays go.

    Attributes:
        tree: structure of the arguments.
        values: its leaves, with marks where arrays and mutable objects go.
        kinds: types and signs of the values: 1, 1.0 and True are equal.
        definition: of all mutable objects together, whose arrays come last.
    """

    tree: Any
    values: tuple[Any, ...]
    kinds: tuple[Any, ...]
    definition: Any = None

    def checked(self) -> "Static":
        """Returns itself, and refuses what is neither an array nor hashable.

        To compile anew at each call would take seconds, in silence.
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

    def filled(self, arrays: Sequence[Any]) -> tuple[Any, list[Any]]:
        """The arguments with these arrays, and the new mutable objects among them."""
        remaining = iter(arrays)
        leaves = [next(remaining) if v is _ARRAY else v for v in self.values]
        objects = joined(self.definition, list(remaining))
        unused = iter(objects)
        leaves = [next(unused) if v is _OBJECT else v for v in leaves]
        return jax.tree.unflatten(self.tree, leaves), objects

    def call(self, fn: Callable) -> "Callable[..., Outcome]":
        """Returns `fn` as a pure function of the arrays alone."""

        def of_arrays(*arrays: Array) -> Outcome:
            (args, kwargs), objects = self.filled(arrays)
            try:
                result = fn(*args, **kwargs)
            except Exception as error:
                if "flax.nnx" in sys.modules and "different trace level" in str(error):
                    raise NoiseError(
                        "the function mutates a Flax NNX object that is not among its "
                        "arguments: expected every nnx module, optimiser and Rngs that "
                        f"it changes as an argument ({str(error).splitlines()[0]})"
                    ) from error
                raise
            return _outcome(result, objects, self.definition)

        return of_arrays


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["arrays", "states"],
    meta_fields=["rest"],
)
@dataclass(frozen=True, eq=False)
class Outcome:
    """What a call gave: a pytree whose leaves are the arrays of the result.

    `states` are arrays of the mutable arguments after the call; `rest` is the structure
    and the other leaves of the result.
    """

    arrays: Sequence[Any]
    states: Sequence[Any]
    rest: Static

    def result(self, given: Sequence[Any] = ()) -> Any:
        """The result; `given` are the caller's mutable objects, which it may hold."""
        remaining = iter(self.arrays)
        leaves: list[Any] = []
        for value in self.rest.values:
            if value is _ARRAY:
                leaves.append(next(remaining))
            elif isinstance(value, _Given):
                leaves.append(given[value.position] if given else None)
            elif isinstance(value, _Made):
                arrays = [next(remaining) for _ in range(value.arrays)]
                leaves += joined(value.definition, arrays)
            else:
                leaves.append(value)
        return jax.tree.unflatten(self.rest.tree, leaves)

    def put(self, given: Sequence[Any]) -> None:
        """Brings the caller's mutable objects to the state after the call."""
        if given:
            (_, tree), _ = taken_apart(given)
            state = jax.tree.unflatten(tree, self.states)
            sys.modules["flax.nnx"].update(list(given), state)


@dataclass(frozen=True)
class _Given:
    """In a result: the mutable argument of this position."""

    position: int


@dataclass(frozen=True)
class _Made:
    """In a result: a mutable object that the function made, of so many arrays."""

    definition: Any
    arrays: int


def _outcome(result: Any, given: Sequence[Any], definition: Any) -> Outcome:
    """A result whose mutable objects are taken apart, and the states of those given."""
    leaves, tree = jax.tree.flatten(result, is_leaf=is_mutable)
    arrays: list[Any] = []
    values: list[Any] = []
    for leaf in leaves:
        known = [i for i, x in enumerate(given) if x is leaf]
        if _is_array(leaf):
            values.append(_ARRAY)
            arrays.append(leaf)
        elif not is_mutable(leaf):
            values.append(leaf)
        elif known:
            values.append(_Given(known[0]))
        else:
            own, inside = taken_apart([leaf])
            values.append(_Made(own, len(inside)))
            arrays += inside
    after, states = taken_apart(given)
    if after != definition:
        raise NoiseError(
            "the function changes what a Flax NNX object consists of (a new or lost "
            "variable, or an attribute that is no array): expected a function that "
            "mutates values alone; make the change before the call"
        )
    return Outcome(arrays, states, Static(tree, tuple(values), ()))


def _kind(value: Any) -> Any:
    """Returns what tells a value from an equal one."""
    if isinstance(value, complex):
        return type(value), _kind(value.real), _kind(value.imag)
    if isinstance(value, float):
        return type(value), math.copysign(1.0, value)
    return type(value)


_ARRAY = type("_Array", (), {"__repr__": lambda self: "<array>"})()
_OBJECT = type("_Object", (), {"__repr__": lambda self: "<object>"})()


def _is_array(value: Any) -> bool:
    """Returns whether a leaf is an array; NumPy's texts and objects are none."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind not in "OSUMm"
    return isinstance(value, jax.Array | jax.ShapeDtypeStruct)


def split(arguments: Any) -> tuple[Static, list[Any], list[Any]]:
    """Returns what is no array, the arrays (of mutable objects last), the objects."""
    leaves, tree = jax.tree.flatten(arguments, is_leaf=is_mutable)
    values = tuple(
        _OBJECT if is_mutable(leaf) else _ARRAY if _is_array(leaf) else leaf
        for leaf in leaves
    )
    arrays = [x for x, value in zip(leaves, values, strict=True) if value is _ARRAY]
    objects = [leaf for leaf in leaves if is_mutable(leaf)]
    definition, states = taken_apart(objects)
    kinds = tuple(map(_kind, values))
    return Static(tree, values, kinds, definition), arrays + states, objects


def array_paths(arguments: Any) -> tuple[list[str], list[str]]:
    """Returns the paths of the arrays of `split`: plain ones, then those in objects."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(arguments, is_leaf=is_mutable)
    named = [(jax.tree_util.keystr(path), x) for path, x in leaves]
    plain = [path for path, x in named if not is_mutable(x) and _is_array(x)]
    objects = [(path, x) for path, x in named if is_mutable(x)]
    if not objects:
        return plain, []
    _, state = sys.modules["flax.nnx"].split([x for _, x in objects])
    inside = [path for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    # The first key is the number of the object.
    numbers = [getattr(path[0], "key", getattr(path[0], "idx", 0)) for path in inside]
    paths = zip(numbers, inside, strict=True)
    return plain, [objects[n][0] + jax.tree_util.keystr(path[1:]) for n, path in paths]


def pure(
    fn: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Outcome], list[Any]]:
    """Returns a call as a function of its arrays alone, and the arrays."""
    static, arrays, _ = split((args, kwargs))
    return static.call(fn), arrays


def is_mutable(value: Any) -> bool:
    """Whether a value is an object of Flax NNX: a module, an optimiser, a variable."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, (nnx.Pytree, nnx.Variable))


def taken_apart(objects: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The definition of objects, all together, and their arrays; None without any.

    A definition is the graph and the tree of arrays, as Flax has them.
    """
    if not objects:
        return None, []
    graph, state = sys.modules["flax.nnx"].split(list(objects))
    arrays, tree = jax.tree.flatten(state)
    return (graph, tree), arrays


def joined(definition: Any, arrays: Sequence[Any]) -> list[Any]:
    """Returns new objects of a definition and arrays."""
    if definition is None:
        return []
    graph, tree = definition
    state = jax.tree.unflatten(tree, arrays)
    return list(sys.modules["flax.nnx"].merge(graph, state))
