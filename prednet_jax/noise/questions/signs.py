"""Vectors of any sign: those of `eigh`, `eig` and `svd`, if complex of any phase.

docs/noise/explain.md says when a leaf depends on them and how it is then compared.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from prednet_jax.noise._inject import evaluate, traced
from prednet_jax.noise.plan import Step, plan
from prednet_jax.noise.questions.leaves import (
    Result,
    rms,
    subtract,
    wide_leaves,
)
from prednet_jax.noise.questions.sampling import (
    BoundCall,
)
from prednet_jax.noise.random_bits import Words
from prednet_jax.noise.run import Evaluation
from prednet_jax.noise.specs import Identity

# Of each routine which results are vectors, and the axis that numbers these.
VECTORS = {"eig": {1: -1, 2: -1}, "eigh": {0: -1}, "svd": {1: -1, 2: -2}}
# A leaf that moves by less, relatively, does not depend on signs.
MOVED = 1e-2
NOTE = "its signs are free: a library routine chooses them"


class _Turned(Evaluation):
    """An evaluation in which every other vector has the opposite sign."""

    def __init__(self, first: Any) -> None:
        super().__init__()
        self.first = first

    def after(self, step: Step, words: Words, operands: list, results: list) -> list:
        """From the vector `first` on, every other one is turned."""
        results = list(results)
        for i, axis in VECTORS.get(step.name, {}).items():
            for x in results[i : i + 1]:
                number = jnp.arange(x.shape[axis]) + self.first
                signs = jnp.where(number % 2 == 0, -1, 1).astype(x.dtype)
                results[i] = x * (signs if axis == -1 else signs[:, None])
        return results


class Signs(NamedTuple):
    """Which leaves of a result depend on signs, and values to take these from."""

    is_free: list[bool]
    known: Result

    def settled(self, values: Result) -> Result:
        """A result with the signs of the known one where they are free."""
        return [
            _nearest(x, y) if free else x
            for x, y, free in zip(values, self.known, self.is_free, strict=True)
        ]


def signs(call: BoundCall, known: Result) -> Signs:
    """Tries which leaves of the result of a call depend on signs."""
    pure, arrays = call.pure()
    steps = plan(traced(pure, arrays).jaxpr, Identity()).walk()
    if VECTORS.keys().isdisjoint(step.name for step in steps):
        return Signs([False] * len(known), known)

    @jax.jit
    def run(first: Any, *arrays: Any) -> Any:
        program, key = traced(pure, arrays), jax.random.key(0)
        return evaluate(Identity(), key, program, arrays, hooks=_Turned(first))

    one, other = (wide_leaves(run(first, *arrays).result()) for first in (0, 1))
    moved = [
        rms(subtract(x, y)) > MOVED * rms(y) for x, y in zip(one, other, strict=True)
    ]
    return Signs(moved, known)


def _nearest(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """An array with the signs of its columns or rows that bring it nearest to `y`."""
    candidates = [x]
    for axis in (-1, -2)[: x.ndim]:
        inner = np.sum(np.conj(x) * y, axis, keepdims=True)
        size = np.abs(inner)
        known = (size > 0) & np.isfinite(size)
        phase = np.where(known, inner / np.where(known, size, 1), 1)
        candidates += [x * phase] if x.shape[axis] > 1 else []
    return min(candidates, key=lambda turned: rms(subtract(turned, y)))
