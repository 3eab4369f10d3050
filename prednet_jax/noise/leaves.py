"""Results of a function as lists of NumPy arrays, one for each leaf, and their sizes.

    described = check_same_structure("a", a, "b", b)     # paths, types and shapes
    for leaf, x, y in zip(described, wide_leaves(a), wide_leaves(b), strict=True):
        print(leaf.path, rms(subtract(x, y)) / rms(y))

Every function of this module treats NaN as equal to NaN. `wide_leaves` holds the
numbers in float64 or complex128, which represent all narrower types exactly.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp
from jax.typing import DTypeLike

from prednet_jax.noise.arguments import is_number
from prednet_jax.noise.errors import NoiseError, shown
from prednet_jax.noise.types import PyTree

# The leaves of one result in float64 or complex128, in the order of `jax.tree.leaves`.
Result = list[np.ndarray]


class Leaf(NamedTuple):
    """One array of a result.

    Attributes:
        path: its path in the pytree, or `result` if the result is one array.
        dtype: name of its type.
        shape: its shape.
        precision: decimal digits of the type (7.2 for float32, which has 24 bits).
        epsilon: distance from 1 to the next number of the type; 0 for integers.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    precision: float
    epsilon: float


def named_leaves(tree: PyTree) -> list[tuple[str, PyTree]]:
    """Returns pairs of the path and the value of each leaf, unchanged."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path) or "result", x) for path, x in leaves]


def describe_leaves(tree: PyTree) -> list[Leaf]:
    """Returns the path, type and shape of each leaf of a result."""
    described = []
    for path, x in named_leaves(tree):
        x, epsilon = as_array(x, path), 0.0
        if jnp.issubdtype(x.dtype, jnp.inexact):
            info = jnp.finfo(x.dtype)
            bits, epsilon = info.nmant + 1, float(info.eps)
        elif x.dtype == np.bool_:
            bits = 1
        else:
            integers = jnp.iinfo(x.dtype)
            bits = integers.bits - (integers.min < 0)
        precision = bits * math.log10(2)
        described.append(Leaf(path, str(x.dtype), x.shape, precision, epsilon))
    return described


def own_leaves(tree: PyTree) -> Result:
    """Returns the leaves in their own types; it raises the errors of `as_array`."""
    return [as_array(x, path) for path, x in named_leaves(tree)]


def check_some(result: PyTree) -> None:
    """Refuses a result without any leaf, as of a function that forgets to return one.

    Whatever judges a result would find nothing wrong with it.
    """
    if not jax.tree.leaves(result):
        raise NoiseError(
            f"the result is {shown(result)}: expected numbers; let the function return "
            "its arrays"
        )


def wide_leaves(tree: PyTree) -> Result:
    """Returns the leaves in float64 or complex128, as `own_leaves`."""
    arrays = own_leaves(tree)
    return [x.astype(complex if np.iscomplexobj(x) else float) for x in arrays]


def rebuilt(tree: PyTree, leaves: Sequence[object]) -> PyTree:
    """Returns a pytree of the same structure with other leaves."""
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def as_array(x: object, path: str = "result") -> np.ndarray:
    """Returns a leaf as a NumPy array of its own type.

    A PRNG key becomes its data.

    Args:
        x: the leaf.
        path: the leaf's name in the error message.

    Raises:
        NoiseError: the leaf is not a number, for example a function, a text or a date,
            or some of its elements are masked.
    """
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if isinstance(x, np.ndarray) and x.dtype == jax.dtypes.float0:
        x = np.zeros(x.shape)
    if not is_number(x):
        text = shown(x) if len(shown(x)) < 60 else f"a {type(x).__name__}"
        raise NoiseError(
            f"{path} is {text}: expected numbers; let the function return its arrays "
            "alone"
        )
    array = np.asarray(x)
    if array.dtype == object:  # A whole number of more than 64 bits.
        raise NoiseError(f"{path} is a whole number beyond 64 bits: expected a float")
    return array


def check_no_texts(tree: PyTree) -> None:
    """Refuses a result that holds a text or a date, as `as_array` does.

    Arrays of texts never get here: `inject` refuses a function that returns them.
    """
    for path, x in named_leaves(tree):
        if isinstance(x, str | bytes | np.datetime64 | np.timedelta64):
            as_array(x, path)


def given_array(x: object, name: str, expected: str) -> np.ndarray:
    """Returns an array or a list that a user gives, also of arrays of JAX, as an array.

    Raises:
        NoiseError: the list has no shape; `expected` are the words for its elements.
    """
    try:
        return x if isinstance(x, np.ndarray) else np.asanyarray(jax.device_get(x))
    except (TypeError, ValueError):
        raise NoiseError(f"{name}: expected {expected}") from None


def real_numbers(x: object, path: str) -> np.ndarray:
    """Returns an array in float64, and refuses complex numbers too, as `as_array`."""
    array = as_array(x, path)
    if np.iscomplexobj(array):
        raise NoiseError(
            f"{path} is complex: expected real numbers; return "
            "jnp.real and jnp.imag of it"
        )
    return array.astype(np.float64)


def check_same_structure(name: str, a: PyTree, other: str, b: PyTree) -> list[Leaf]:
    """Returns the leaves of `b`, described.

    Args:
        name: the name of `a` in the error message.
        a: a pytree.
        other: the name of `b` in the error message.
        b: a pytree.

    A tuple stands for any named tuple, such as those that JAX returns.

    Raises:
        NoiseError: the pytrees differ in structure, or in the shape of a leaf.
    """
    pairs = (a, b), (_as_tuples(a), b), (a, _as_tuples(b))
    structure: Any = jax.tree.structure
    if not any(structure(x) == structure(y) for x, y in pairs):
        structures = f"{name} is {in_words(a)} and {other} {in_words(b)}"
        raise NoiseError(f"{structures}: expected the same")
    described = describe_leaves(b)
    for leaf, expected in zip(describe_leaves(a), described, strict=True):
        if leaf.shape != expected.shape:
            raise NoiseError(
                f"{expected.path}: {name} has shape {leaf.shape} and {other} "
                f"{expected.shape}: expected the same"
            )
    return described


def _as_tuples(tree: PyTree) -> PyTree:
    """Returns a pytree with tuples in the place of named tuples."""

    def is_named(x: object) -> bool:
        return isinstance(x, tuple) and hasattr(x, "_fields")

    def plain(x: PyTree) -> PyTree:
        return tuple(map(_as_tuples, x)) if is_named(x) else x

    return jax.tree.map(plain, tree, is_leaf=is_named)


def in_words(tree: PyTree) -> str:
    """Returns the kind of a pytree and the paths of its first leaves, in words."""
    paths = [path for path, _ in named_leaves(tree)]
    if paths == ["result"]:
        return "one array"
    first = ", ".join([*paths[:4], *["..."] * (len(paths) > 4)])
    many = f"of {len(paths)} array{'s' * (len(paths) != 1)}"
    return f"a {type(tree).__name__} {many}{f' ({first})' * bool(paths)}"


def is_float(x: Any) -> bool:
    """Returns whether an array or a Python number is floating-point, and real."""
    return jnp.issubdtype(jnp.result_type(x), jnp.floating)


def subtract(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns `x - y`, and 0 where both are NaN or the same infinity."""
    with np.errstate(invalid="ignore"):
        return np.where(equal_elements(x, y), 0, np.subtract(x, y))


def equal_elements(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns which elements are equal; NaN equals NaN, and -0 equals 0."""
    return (x == y) | (np.isnan(x) & np.isnan(y))


def fits_in(x: np.ndarray, dtype: DTypeLike) -> bool:
    """Returns whether a type of real or complex numbers holds all numbers exactly."""
    (wide,) = wide_leaves([x])
    parts, own = (wide.real, wide.imag), jnp.finfo(dtype).dtype
    with np.errstate(over="ignore"):
        same = (equal_elements(x.astype(own).astype(x.dtype), x) for x in parts)
        return all(each.all() for each in same)


def rms(x: np.ndarray) -> float:
    """Returns the root mean square of the magnitudes; 0 for an empty array.

    The largest magnitude is divided out first, so that squares do not overflow.
    """
    largest = float(np.max(np.abs(x), initial=0))
    if largest == 0 or not math.isfinite(largest):
        return largest
    return largest * float(np.sqrt(np.mean(np.square(np.abs(x) / largest))))


def units_in_the_last_place(x: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """Returns the distances of numbers to the next ones of a type."""
    info = jnp.finfo(dtype)
    # Below the least normal number they are the same as at it.
    exponent = np.where(x == 0, info.minexp, np.frexp(x)[1] - 1)
    return np.ldexp(float(info.eps), np.maximum(exponent, int(info.minexp)))
