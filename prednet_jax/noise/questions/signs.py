"""Aligns factors that are unique up to signs, or phases if complex: `FREE_SIGNS`.

docs/noise/explain.md explains when a leaf depends on them and how it is compared.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.noise import random_bits
from prednet_jax.noise.leaves import Result, rms, subtract, wide_leaves
from prednet_jax.noise.loops import CheckError
from prednet_jax.noise.plan import Step
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
NOTE = "its signs are free: a library routine chooses them"


class _Turned(Evaluation):
    """Evaluates a program with some vectors times `sign`; `first` says which."""

    changes = "with other signs of vectors"
    watches = True  # Loops count their steps.

    def __init__(self, first: PyTree, sign: PyTree) -> None:
        super().__init__()
        self.count = 0
        self.first, self.sign = first, sign

    def first_order(self, call: Call, words: Words, operands: list) -> list:
        """Turns what Q is multiplied by, where the product has the columns of Q."""
        if call.step.name == "ormqr" and not _turns_result(call.step):
            reflectors, taus, x = operands
            turned = self._turned(x, _axes_of_product(call.step), words)
            operands = [reflectors, taus, turned]
        return super().first_order(call, words, operands)

    def after(self, step: Step, words: Words, operands: list, results: list) -> list:
        """Turns the vectors that a routine returns."""
        results = list(results)
        # The factors of one matrix have the same signs.
        self.count += step.name in FREE_SIGNS.keys() - {"householder_product"}
        if step.name == "ormqr" and _turns_result(step):
            results = [self._turned(results[0], _axes_of_product(step), words)]
        for i, axes in FREE_SIGNS.get(step.name, {}).items():
            # Vectors that were not asked for are no results.
            for x in results[i : i + 1]:
                turned = self._turned(x, axes, words)
                if step.name in _STORES_REFLECTORS:
                    below = _STORES_REFLECTORS[step.name] - 1
                    stored = jnp.tril(jnp.ones(x.shape, bool), below)
                    turned = jnp.where(stored, x, turned)
                results[i] = turned
        return results

    def _turned(self, x: Array, axes: Sequence[int], words: Words) -> Array:
        """Returns an array with a random half of the slices of its axes turned.

        They differ between factorizations, steps of loops and matrices of a batch.
        """
        salt = [np.uint32(word) for word in random_bits.salt_words(self.count)]
        for axis in axes:
            axes_of_index = [i % x.ndim for i in (*range(x.ndim - 2), axis)]
            index = [lax.broadcasted_iota(int, x.shape, i) for i in axes_of_index]
            bits = jnp.zeros((), jnp.uint32)
            for part in (*(words.steps or ()), *index):
                number = jnp.asarray(part).astype(jnp.uint32)
                bits = random_bits.hash_counter(bits ^ number, *salt)
            # The first bit and its opposite, so that each slice turns; then the second.
            first = jnp.asarray(self.first, jnp.uint32)
            turns = (bits >> (first // 2)) % 2 == first % 2
            x = jnp.where(turns, x * self.sign, x).astype(x.dtype)
        return x


def _turns_result(step: Step) -> bool:
    """Returns whether a product with Q has the signs of Q: Q* x and x Q, not Q x."""
    params = step.equation.params
    return bool(params["left"] == params["transpose"])


def _axes_of_product(step: Step) -> tuple[int, ...]:
    """Returns the axis along which a product with Q, or its factor, has the signs."""
    return (-2,) if step.equation.params["left"] else (-1,)


# Gives an array the signs of another one.
_Align = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Signs(NamedTuple):
    """How to give the leaves that depend on signs those of known values.

    Attributes:
        free: by the number of a leaf, what gives it these signs.
        known: the leaves of a result, whose signs are taken.
    """

    free: Mapping[int, _Align] = {}
    known: Sequence[np.ndarray] = ()

    def settled(self, values: Result) -> Result:
        """Returns a result with the signs of the known one where they are free."""
        return [
            self.free[i](x, self.known[i]) if i in self.free else x
            for i, x in enumerate(values)
        ]

    def align(self, result: PyTree) -> PyTree:
        """Returns a result, a pytree, with these signs, in its own types."""
        leaves, tree = jax.tree.flatten(result)
        for i, aligned in self.free.items():
            own = wide_leaves(leaves[i])[0]
            leaves[i] = aligned(own, self.known[i]).astype(leaves[i].dtype)
        return jax.tree.unflatten(tree, leaves)


def signs(call: BoundCall, known: Result | None = None) -> Signs:
    """Returns which leaves of the result of a call depend on signs, found by trying.

    Args:
        call: the function with its arguments.
        known: the result whose signs are taken. Defaults to the call's own result,
            which is computed if the program has a factor with free signs.
    """
    if FREE_SIGNS.keys().isdisjoint(step.name for step in call.equations()):
        return Signs()
    if known is None:
        known = wide_leaves(call.result())

    run = call.hooked(Identity(), _Turned)
    try:
        # A form such as T is the same if all vectors change sign.
        plain, *turned = (
            wide_leaves(run(jax.random.key(0), first, sign).result())
            for first, sign in ((0, 1), (0, -1), (1, -1), (2, -1))
        )
    except CheckError:
        # The function itself takes a result of other signs for a failure.
        return Signs()
    results = enumerate(zip(plain, *turned, strict=True))
    free = {
        i: _way(x, several)
        for i, (x, *several) in results
        if any(rms(subtract(y, x)) > MOVED * rms(x) for y in several)
    }
    return Signs(free, known)


def _way(plain: np.ndarray, turned: Sequence[np.ndarray]) -> _Align:
    """Returns what undoes the signs of other vectors.

    A sign belongs to the whole array, or to each of a batch, to each vector along an
    axis, or to a form T that becomes S T S*. The fewest signs that suffice are taken.
    """
    last = [tuple(range(-i, 0)) for i in range(plain.ndim, 0, -1)]
    axes = [*last, *((-i,) for i in range(2, plain.ndim + 1))]
    several = [x for x in axes if math.prod(plain.shape[i] for i in x) > 1]
    ways: list[_Align] = [functools.partial(_along, axis=x) for x in several]
    if plain.ndim > 1 and plain.shape[-1] == plain.shape[-2] > 1:
        ways.append(_as_form)

    def left(way: _Align) -> float:
        return max(rms(subtract(way(x, plain), plain)) for x in turned)

    enough = (way for way in ways if left(way) <= MOVED * rms(plain))
    return next(enough, None) or min([lambda x, _: x, *ways], key=left)


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


def _phases(inner: np.ndarray) -> np.ndarray:
    """Returns numbers of magnitude 1 with the same phases; 1 for zero and NaN."""
    size = np.abs(inner)
    known = (size > 0) & np.isfinite(size)
    return np.where(known, inner / np.where(known, size, 1), 1)
