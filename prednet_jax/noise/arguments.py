"""Splits the arguments and results of a transformed function into arrays and the rest.

Arrays are traced. Each other argument is part of the identity of the compiled program,
and any other leaf of a result is returned unchanged.

Flax NNX objects are mutable. The objects of a call are split together, so that shared
parts stay shared, into a hashable definition and arrays. The function runs on new
objects, and `Outcome.write_back` copies their final state to the caller's objects. Flax
is not imported here, because its objects can only be passed where it is already loaded.
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

from prednet_jax.noise.errors import NoiseError, check_function, shown
from prednet_jax.noise.types import PyTree, Values

# JAX has no such types.
TOO_WIDE = {np.dtype(np.longdouble), np.dtype(np.clongdouble)} - {
    np.dtype(np.float64),
    np.dtype(np.complex128),
}


@dataclass(frozen=True)
class Static:
    """The arguments of a call that are not arrays, and the positions of the arrays.

    Attributes:
        tree: structure of the arguments.
        values: the leaves of `tree`, with marks in place of arrays and mutable objects.
        kinds: types and signs of the values, because 1, 1.0 and True are equal.
        definition: the definition of all mutable objects, whose arrays come last.
    """

    tree: PyTree
    values: tuple[object, ...]
    kinds: tuple[object, ...]
    definition: PyTree = None

    def checked(self) -> "Static":
        """Returns itself, or raises an error for a value that cannot be hashed.

        Without this check each call would be compiled anew, which takes seconds.
        """
        for value in self.values:
            try:
                hash(value)
            except TypeError:
                raise NoiseError(
                    f"argument {shown(value)}: expected arrays, or an object that can "
                    "be hashed, such as a frozen dataclass; or bind it outside of the "
                    "arguments, as in inject(lambda x: fn(x, options), spec)"
                ) from None
        return self

    def filled(self, arrays: Values) -> tuple[PyTree, list]:
        """Returns the arguments with these arrays, and new mutable objects."""
        remaining = iter(arrays)
        leaves = [next(remaining) if v is _ARRAY else v for v in self.values]
        objects = merge_objects(self.definition, list(remaining))
        unused = iter(objects)
        leaves = [next(unused) if v is _OBJECT else v for v in leaves]
        return jax.tree.unflatten(self.tree, leaves), objects

    def call(self, fn: Callable) -> "Callable[..., Outcome]":
        """Returns `fn` as a pure function of the arrays alone."""
        check_function(fn)

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
    """The result of a call: a pytree whose leaves are the arrays of the result.

    `states` are the arrays of the mutable arguments after the call; `rest` is the
    structure and the other leaves of the result.
    """

    arrays: Sequence[Any]
    states: Sequence[Any]
    rest: Static

    def result(self, given: Sequence[PyTree] = ()) -> PyTree:
        """Returns the result; `given` are the caller's mutable objects, if any."""
        remaining = iter(self.arrays)
        leaves: list[object] = []
        for value in self.rest.values:
            if value is _ARRAY:
                leaves.append(next(remaining))
            elif isinstance(value, _ResultObject):
                arrays = [next(remaining) for _ in range(value.arrays)]
                if given and value.position is not None:
                    leaves.append(given[value.position])
                else:
                    leaves += merge_objects(value.definition, arrays)
            else:
                leaves.append(value)
        return jax.tree.unflatten(self.rest.tree, leaves)

    def write_back(self, given: Sequence[PyTree]) -> None:
        """Copies the state after the call to the caller's mutable objects."""
        if given:
            (_, tree), _ = split_objects(given)
            state = jax.tree.unflatten(tree, self.states)
            sys.modules["flax.nnx"].update(list(given), state)


@dataclass(frozen=True)
class _ResultObject:
    """Stands in a result for a mutable object with this number of arrays.

    `position` is that of the argument which it is, if it is one.
    """

    definition: PyTree
    arrays: int
    position: int | None


def _outcome(result: PyTree, given: Sequence[PyTree], definition: PyTree) -> Outcome:
    """Splits the mutable objects of a result, and adds the states of the given ones."""
    leaves, tree = jax.tree.flatten(result, is_leaf=is_mutable)
    arrays: list[Array] = []
    values: list[object] = []
    for leaf in leaves:
        known = [i for i, x in enumerate(given) if x is leaf]
        if _is_array(leaf):
            values.append(_ARRAY)
            arrays.append(_native(leaf))
        elif isinstance(leaf, np.ndarray | np.void):
            # JAX compares values, and these refuse to be compared.
            raise NoiseError(
                f"the function returns an array of type {leaf.dtype}: expected an "
                "array of numbers, without a mask"
            )
        elif not is_mutable(leaf):
            values.append(leaf)
        else:
            own, inside = split_objects([leaf])
            position = known[0] if known else None
            values.append(_ResultObject(own, len(inside), position))
            arrays += inside
    after, states = split_objects(given)
    if after != definition:
        raise NoiseError(
            "the function changes what a Flax NNX object consists of (a new or lost "
            "variable, or an attribute that is no array): expected a function that "
            "mutates values alone; make the change before the call"
        )
    return Outcome(arrays, states, Static(tree, tuple(values), ()))


def _kind(value: object) -> object:
    """Returns a key that distinguishes a value from equal values of other types."""
    if isinstance(value, complex):
        return type(value), _kind(value.real), _kind(value.imag)
    if isinstance(value, float):
        return type(value), math.copysign(1.0, value)
    return type(value)


_ARRAY = type("_Array", (), {"__repr__": lambda self: "<array>"})()
_OBJECT = type("_Object", (), {"__repr__": lambda self: "<object>"})()


def holds_numbers(value: Any) -> bool:
    """Returns whether NumPy holds numbers here: no texts, records or masked elements.

    `float0`, the type of derivatives by integers, counts as a number.

    Raises:
        NoiseError: the numbers are of a type that is wider than all types of JAX.
    """
    kind = value.dtype
    if kind in TOO_WIDE:
        raise NoiseError(
            f"an array of type {kind}: expected float64, complex128 or a narrower "
            "type, since JAX has no wider ones; convert it with .astype"
        )
    number = any(jax.numpy.issubdtype(kind, k) for k in (np.number, np.bool_))
    number = number and kind.kind != "m"  # A duration counts as an integer of NumPy.
    return not isinstance(value, np.ma.MaskedArray) and (
        number or kind == jax.dtypes.float0
    )


def is_number(value: object) -> bool:
    """Returns whether a value is an array of numbers, or a number of Python."""
    kinds = jax.Array | np.ndarray | np.generic | int | float | complex
    if not isinstance(value, kinds):
        return False
    return not hasattr(value, "dtype") or holds_numbers(value)


def _is_array(value: object) -> bool:
    """Returns whether a leaf is an array; NumPy texts and objects do not count."""
    if isinstance(value, np.ndarray | np.generic):
        return holds_numbers(value)
    return isinstance(value, jax.Array | jax.ShapeDtypeStruct)


def _native(x: Any) -> Any:
    """Returns an array in this machine's order of bytes, the only one of JAX."""
    if isinstance(x, np.ndarray) and not x.dtype.isnative:
        return x.astype(x.dtype.newbyteorder("="))
    return x


def split(arguments: PyTree) -> tuple[Static, list[Array], list]:
    """Returns the static part, the arrays (mutable objects' last) and the objects."""
    leaves, tree = jax.tree.flatten(arguments, is_leaf=is_mutable)
    values = tuple(
        _OBJECT if is_mutable(leaf) else _ARRAY if _is_array(leaf) else leaf
        for leaf in leaves
    )
    pairs = zip(leaves, values, strict=True)
    arrays = [_native(x) for x, value in pairs if value is _ARRAY]
    objects = [leaf for leaf in leaves if is_mutable(leaf)]
    definition, states = split_objects(objects)
    kinds = tuple(map(_kind, values))
    return Static(tree, values, kinds, definition), arrays + states, objects


def _named(arguments: PyTree) -> list[tuple[str, object]]:
    """Returns the leaves of positional and named arguments, with names."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(arguments, is_leaf=is_mutable)
    return [(f"argument{jax.tree_util.keystr(path[1:])}", x) for path, x in leaves]


def python_numbers(arguments: PyTree) -> list[tuple[str, np.ndarray]]:
    """Returns the names and the values of the arguments that are Python numbers."""
    kinds = bool | int | float | complex
    named = ((p, np.asarray(x)) for p, x in _named(arguments) if isinstance(x, kinds))
    numbers = ((p, x) for p, x in named if x.dtype != object)  # Of 64 bits at most.
    with np.errstate(over="ignore"):
        own = jax.dtypes.canonicalize_dtype
        return [(path, x.astype(own(x.dtype))) for path, x in numbers]


def array_paths(arguments: PyTree) -> tuple[list[str], list[str]]:
    """Returns the names of the arrays of `split`: direct, then inside objects.

    `arguments` are positional and named ones, which their names tell apart.
    """
    keystr, named = jax.tree_util.keystr, _named(arguments)
    plain = [path for path, x in named if not is_mutable(x) and _is_array(x)]
    objects = [(path, x) for path, x in named if is_mutable(x)]
    if not objects:
        return plain, []
    _, state = sys.modules["flax.nnx"].split([x for _, x in objects])
    inside = [path for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    # The first key is the number of the object.
    numbers = [getattr(path[0], "key", getattr(path[0], "idx", 0)) for path in inside]
    paths = zip(numbers, inside, strict=True)
    return plain, [objects[n][0] + keystr(path[1:]) for n, path in paths]


def pure(
    fn: Callable, args: Sequence[PyTree], kwargs: Mapping[str, PyTree]
) -> tuple[Callable[..., Outcome], list[Array]]:
    """Returns a call as a function of its arrays alone, and the arrays."""
    static, arrays, _ = split((args, kwargs))
    return static.call(fn), arrays


def is_mutable(value: object) -> bool:
    """Returns whether a value is a Flax NNX object: module, optimiser or variable."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, (nnx.Pytree, nnx.Variable))


def split_objects(objects: Sequence[PyTree]) -> tuple[PyTree, list]:
    """Splits objects, together, into a definition and arrays; None without objects.

    A definition is the graph and the tree of arrays, as Flax defines them.
    """
    if not objects:
        return None, []
    graph, state = sys.modules["flax.nnx"].split(list(objects))
    arrays, tree = jax.tree.flatten(state)
    return (graph, tree), arrays


def merge_objects(definition: PyTree, arrays: Values) -> list:
    """Returns new objects built from a definition and arrays."""
    if definition is None:
        return []
    graph, tree = definition
    state = jax.tree.unflatten(tree, arrays)
    return list(sys.modules["flax.nnx"].merge(graph, state))
