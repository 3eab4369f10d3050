"""Aligns vectors that are unique up to signs (phases), their order or a rotation.

`FREE_SIGNS` lists the routines with free signs, and `bases` what else is free.
docs/noise/explain.md explains when a leaf depends on them and how it is compared.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import random_bits
from prednet_jax.noise.leaves import Result, rms, subtract, wide_leaves
from prednet_jax.noise.loops import CheckError
from prednet_jax.noise.plan import Step
from prednet_jax.noise.questions.bases import BASES, in_another_basis
from prednet_jax.noise.questions.sampling import BoundCall
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.run import Call, Evaluation
from prednet_jax.noise.specs import Identity
from prednet_jax.noise.types import PyTree

# For each routine, the results that have free signs, and the axes of these signs:
# vectors are numbered by one axis, forms such as T of A = Q T Q* by both.
FREE_SIGNS: dict[str, dict[int, tuple[int, ...]]] = {
    "eig": {1: (-1,), 2: (-1,)},
    "eigh": {0: (-1,)},
    "svd": {1: (-1,), 2: (-2,)},
    "schur": {0: (-2, -1), 1: (-1,)},
    "qr": {0: (-1,), 1: (-2,)},
    "geqrf": {0: (-2,)},
    "geqp3": {0: (-2,)},
    "hessenberg": {0: (-2, -1)},
    "householder_product": {0: (-1,)},
}
# Results whose lower triangle, up to a diagonal, holds reflectors; their signs are
# part of how a matrix is stored.
_STORES_REFLECTORS = {"geqrf": 0, "geqp3": 0, "hessenberg": -1}
# A leaf that moves by less, relatively, does not depend on signs.
MOVED = 1e-2
# More vectors are not brought into another order or basis: all pairs are compared.
_MOST = 1000
# Smaller components of a vector of length 1 are the rounding of zero.
_NONE = 1e-12


class _Turned(Evaluation):
    """Evaluates a program with some vectors times `sign`; `first` says which.

    If `other` is true, it takes another one of the equally right bases, or orders, too.
    """

    changes = "with other signs of vectors"
    watches = True  # Loops count their steps.

    def __init__(self, first: PyTree, sign: PyTree, other: PyTree) -> None:
        super().__init__()
        self.first, self.sign, self.other = first, sign, other

    def first_order(self, call: Call, words: Words, operands: list) -> list:
        """Turns what Q is multiplied by, where the product has the columns of Q."""
        if call.step.name == "ormqr" and not _turns_result(call.step):
            reflectors, taus, x = operands
            turned = self._turned(x, _axes_of_product(call.step), _hash(taus, 1))
            operands = [reflectors, taus, turned]
        return super().first_order(call, words, operands)

    def after(self, step: Step, words: Words, operands: list, results: list) -> list:
        """Turns the vectors that a routine returns."""
        axes_of_results = FREE_SIGNS.get(step.name, {})
        if step.name == "ormqr" and _turns_result(step):
            axes_of_results = {0: _axes_of_product(step)}
        if not axes_of_results:
            return results
        # The factors of one matrix have the same signs, whichever calls return them.
        # Reflectors and their factors, the taus, stand for the matrix.
        results, matrix, rank = list(results), operands[0], 2
        if step.name in ("householder_product", "ormqr"):
            matrix, rank = operands[1], 1
        elif step.name in _STORES_REFLECTORS:
            matrix, rank = results[-1], 1
        which = _hash(matrix, rank)
        if step.name in BASES:
            first = jnp.sum(which, dtype=np.uint32)
            rotated = in_another_basis(step.name, results, first)
            results = [
                jnp.where(self.other, x, y)
                for x, y in zip(rotated, results, strict=True)
            ]
        for i, axes in axes_of_results.items():
            # Vectors that were not asked for are no results.
            for x in results[i : i + 1]:
                turned = self._turned(x, axes, which)
                if step.name in _STORES_REFLECTORS:
                    below = _STORES_REFLECTORS[step.name] - 1
                    stored = jnp.tril(jnp.ones(x.shape, bool), below)
                    turned = jnp.where(stored, x, turned)
                results[i] = turned
        return results

    def _turned(self, x: Array, axes: Sequence[int], which: Array) -> Array:
        """Returns an array with a random half of the slices of its axes turned.

        They differ between matrices, which have the numbers `which`, uint32 [...].
        """
        for axis in axes:
            # Like x, which may be sharded over an explicit mesh.
            bits = which[..., None, None] ^ jnp.zeros_like(x, np.uint32)
            index = lax.broadcasted_iota(np.uint32, x.shape, axis % x.ndim)
            bits = random_bits.mix(bits ^ index)
            # The first bit and its opposite, so that each slice turns; then the second.
            first = jnp.asarray(self.first, jnp.uint32)
            turns = (bits >> (first // 2)) % 2 == first % 2
            x = jnp.where(turns, x * self.sign, x).astype(x.dtype)
        return x


def _hash(x: Array, axes: int) -> Array:
    """Returns numbers made of the bits of the last axes of an array, uint32 [...]."""
    total, lead = jnp.zeros((), jnp.uint32), x.ndim - axes
    for part in [x.real, x.imag] if jnp.iscomplexobj(x) else [x]:
        bits = lax.bitcast_convert_type(part, jnp.uint32)
        for axis in range(lead, bits.ndim):
            index = lax.broadcasted_iota(np.uint32, bits.shape, axis)
            bits = random_bits.mix(bits ^ index)
        inner = tuple(range(lead, bits.ndim))
        total = random_bits.mix(total ^ jnp.sum(bits, inner, dtype=jnp.uint32))
    return total


def _turns_result(step: Step) -> bool:
    """Returns whether a product with Q has the signs of Q: Q* x and x Q, not Q x."""
    params = step.equation.params
    return bool(params["left"] == params["transpose"])


def _axes_of_product(step: Step) -> tuple[int, ...]:
    """Returns the axis along which a product with Q, or its factor, has the signs."""
    return (-2,) if step.equation.params["left"] else (-1,)


# Gives an array of a result, the first one, the signs of the other result.
_Align = Callable[[Result, Result], np.ndarray]


class Signs(NamedTuple):
    """How to give the leaves that depend on signs those of known values.

    Attributes:
        free: by the number of a leaf, what gives it these signs, and this order and
            basis of vectors.
        known: the leaves of a result, whose signs are taken.
        notes: by the number of a leaf, what is free.
    """

    free: Mapping[int, _Align] = {}
    known: Result = []  # noqa: RUF012
    notes: Mapping[int, str] = {}

    def settled(self, values: Result) -> Result:
        """Returns a result with the signs of the known one where they are free."""
        return [
            self.free[i](values, self.known) if i in self.free else x
            for i, x in enumerate(values)
        ]

    def align(self, result: PyTree) -> PyTree:
        """Returns a result, a pytree, with these signs, in its own types."""
        leaves, tree = jax.tree.flatten(result)
        own = wide_leaves(leaves)
        for i, aligned in self.free.items():
            leaves[i] = aligned(own, self.known).astype(leaves[i].dtype)
        return jax.tree.unflatten(tree, leaves)


def signs(call: BoundCall, known: Result | None = None) -> Signs:
    """Returns which leaves of the result of a call depend on signs, found by trying.

    Args:
        call: the function with its arguments.
        known: the result whose signs are taken. Defaults to the call's own result,
            which is computed if the program has a factor with free signs.
    """
    names = {step.name for step in call.equations()}
    if FREE_SIGNS.keys().isdisjoint(names):
        return Signs()
    if known is None:
        known = wide_leaves(call.result())

    run = call.hooked(Identity(), _Turned)
    # A form such as T is the same if all vectors change sign.
    tries = [(0, 1, 0), (0, -1, 0), (1, -1, 0), (2, -1, 0)]
    tries += [(0, 1, 1)] * (not BASES.keys().isdisjoint(names))
    try:
        plain, *turned = (
            wide_leaves(run(jax.random.key(0), first, sign, np.bool_(other)).result())
            for first, sign, other in tries
        )
    except CheckError:
        # The function itself takes a result of other signs for a failure.
        return Signs()
    free: dict[int, _Align] = {}
    notes: dict[int, str] = {}
    for i, x in enumerate(plain):
        moved = [rms(subtract(y[i], x)) > MOVED * rms(x) for y in turned]
        if any(moved):
            free[i] = _way(i, plain, turned, any(moved[3:]))
            notes[i] = choices(sorted(names), has_signs=any(moved[:3]))
    return Signs(free, known, notes)


def choices(names: Iterable[str], *, has_signs: bool = True) -> str:
    """Returns which of several right results these primitives choose."""
    what = ["signs of vectors"] * has_signs
    what += [BASES[name] for name in names if name in BASES]
    chosen = ", ".join(what)
    return f"a library routine chooses {chosen}: compare what does not depend on it"


def _way(i: int, plain: Result, turned: Sequence[Result], has_basis: bool) -> _Align:
    """Returns what undoes the signs of other vectors in leaf `i`.

    A sign belongs to the whole array, or to each of a batch, to each vector along an
    axis, to a form T that becomes S T S*, to rows and columns, or to each element (the
    first of each vector). The fewest signs that suffice are taken. If the leaf also
    depends on a basis, or order, the last of `turned` has another one.
    """
    x = plain[i]
    last = [tuple(range(-k, 0)) for k in range(x.ndim, 0, -1)]
    axes = [*last, *((-k,) for k in range(2, x.ndim + 1))]
    candidates = [a for a in axes if math.prod(x.shape[k] for k in a) > 1]
    ways = [_of_leaf(i, functools.partial(_along, axis=a)) for a in candidates]
    is_square = x.ndim > 1 and x.shape[-1] == x.shape[-2] > 1
    ways += [_of_leaf(i, _as_form)] * is_square
    ways += [_of_leaf(i, _by_rows_and_columns)] * (x.ndim > 1)
    if has_basis:
        ways += _ways_of_bases(i, plain, turned[-1], is_square)

    def left(way: _Align) -> float:
        return max(rms(subtract(way(y, plain), x)) for y in turned)

    each = _of_leaf(i, functools.partial(_along, axis=()))
    enough = (way for way in (*ways, each) if left(way) <= MOVED * rms(x))
    return next(enough, None) or min([lambda y, _: y[i], *ways], key=left)


def _of_leaf(i: int, way: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> _Align:
    return lambda x, y: way(x[i], y[i])


def _ways_of_bases(
    i: int, plain: Result, other: Result, is_square: bool
) -> Iterator[_Align]:
    """Yields what may undo another basis, or order, of vectors in leaf `i`.

    The vectors are columns, rows, or those of another leaf, in which T is a form.
    """
    shape = plain[i].shape
    axes = [k for k in (-1, -2) if len(shape) > 1 and shape[k] <= _MOST]
    is_square = is_square and len(axes) == 2
    groups = [(axis, _together(plain[i], other[i], axis)) for axis in axes]
    # Columns of a square matrix in another basis are rows that are all rotated. A few
    # vectors, such as a basis of a null space, may all be rotated.
    for axis, of in sorted(groups, key=lambda group: np.count_nonzero(group[1])):
        if not of.all() or shape[axis] < shape[-3 - axis]:
            yield _of_leaf(i, functools.partial(_in_basis, axis=axis, of=of))
    for k, x in enumerate(plain):
        if is_square and k != i and x.shape[-1:] == shape[-1:] and x.ndim > 1:
            of = _together(x, other[k], -1)
            yield functools.partial(_as_form_in, i=i, k=k, of=of)
    for axis in axes:
        yield _of_leaf(i, functools.partial(_in_order, axis=axis))
    if shape and shape[-1] <= _MOST:
        yield _of_leaf(i, functools.partial(_in_order, axis=None))


def _together(x: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
    """Returns which vectors along an axis are rotated together from `x` to `y`.

    It is bool [..., n, n].
    """
    x, y = (np.moveaxis(z, axis, -1) for z in (x, y))
    together = np.eye(x.shape[-1], dtype=bool)
    if np.isfinite(x).all() and np.isfinite(y).all():
        size = np.abs(np.linalg.pinv(x) @ y)
        # Vectors in another order are not rotated.
        mixed = (size > MOVED) & (size < 1 - MOVED)
        together = mixed | np.swapaxes(mixed, -1, -2) | together
    for _ in range(x.shape[-1].bit_length()):
        steps = together.astype(np.float32)  # Products of booleans are slow.
        together = steps @ steps > 0
    return together


def _rotation(x: np.ndarray, y: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Returns the unitary matrix that brings columns of `x` nearest to those of `y`.

    It mixes the columns that are together `of`.
    """
    inner = np.where(of, np.conj(np.swapaxes(x, -1, -2)) @ y, 0)
    if not np.isfinite(inner).all():
        return np.eye(x.shape[-1])
    u, _, v = np.linalg.svd(inner)
    return u @ v


def _in_basis(x: np.ndarray, y: np.ndarray, axis: int, of: np.ndarray) -> np.ndarray:
    """Returns an array with the vectors along an axis in the basis of those of `y`."""
    x, y = (np.moveaxis(z, axis, -1) for z in (x, y))
    return np.moveaxis(x @ _rotation(x, y, of), -1, axis)


def _as_form_in(x: Result, y: Result, i: int, k: int, of: np.ndarray) -> np.ndarray:
    """Returns R* T R, where R brings the vectors of leaf `k` to those of `y`."""
    rotation = _rotation(x[k], y[k], of)
    return np.conj(np.swapaxes(rotation, -1, -2)) @ x[i] @ rotation


def _in_order(x: np.ndarray, y: np.ndarray, axis: int | None) -> np.ndarray:
    """Returns an array with the vectors along an axis in the order of those of `y`.

    Their phases are those of `y`, too. The axis None stands for the numbers of the
    last axis instead.
    """
    from scipy.optimize import linear_sum_assignment

    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return x
    if axis is None:
        here, costs = x[..., None, :], np.abs(x[..., :, None] - y[..., None, :])
    else:
        here, there = (np.moveaxis(z, axis, -1) for z in (x, y))
        inner = np.conj(np.swapaxes(here, -1, -2)) @ there
        sizes = (np.linalg.norm(z, axis=-2) for z in (here, there))
        x_norm, y_norm = (np.where(size, size, 1) for size in sizes)
        costs = -np.abs(inner) / x_norm[..., :, None] / y_norm[..., None, :]
    order = np.zeros(costs.shape[:-1], int)
    for index in np.ndindex(*costs.shape[:-2]):
        rows, columns = linear_sum_assignment(costs[index])
        order[(*index, columns)] = rows
    ordered = np.take_along_axis(here, order[..., None, :], -1)
    if axis is None:
        return ordered[..., 0, :]
    return np.moveaxis(_along(ordered, there, (-2,)), -1, axis)


def _along(x: np.ndarray, y: np.ndarray, axis: tuple[int, ...]) -> np.ndarray:
    """Returns an array whose parts along some axes have the phases of those of `y`."""
    return x * _phases(np.sum(np.conj(x) * y, axis, keepdims=True))


def _as_form(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns S x S*, with the phases S that bring it nearest to `y`."""
    # conj(x) y is p p* times what is positive, if y is P x P*.
    inner = np.conj(x) * y
    if not np.isfinite(inner).all():
        return x
    _, vectors = np.linalg.eigh(inner + np.conj(np.swapaxes(inner, -1, -2)))
    phase = _phases(vectors[..., -1])
    return x * phase[..., :, None] * np.conj(phase)[..., None, :]


def _by_rows_and_columns(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns S x R, with the phases S and R that bring it nearest to `y`."""
    inner = np.conj(x) * y
    if not np.isfinite(inner).all():
        return x
    rows, columns = np.zeros_like(inner[..., :1]), np.zeros_like(inner[..., :1, :])
    # Of blocks that have no rows and no columns in common, each has its own vectors.
    for _ in range(min(inner.shape[-2:])):
        if not inner.any():
            break
        u, _, v = np.linalg.svd(inner, full_matrices=False)
        for signs, new in (rows, u[..., :1]), (columns, v[..., :1, :]):
            np.copyto(signs, new, where=(signs == 0) & (np.abs(new) > _NONE))
        inner = np.where((rows == 0) & (columns == 0), inner, 0)
    return x * _phases(rows) * _phases(columns)


def _phases(inner: np.ndarray) -> np.ndarray:
    """Returns numbers of magnitude 1 with the same phases; 1 for zero and NaN."""
    size = np.abs(inner)
    valid = (size > 0) & np.isfinite(size)
    return np.where(valid, inner / np.where(valid, size, 1), 1)
