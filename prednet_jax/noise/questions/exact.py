"""What the result of a call would be without rounding errors: in float64.

Chaos loses its 16 digits too: runs under stochastic rounding show it (`Exact.errors`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp

from prednet_jax.noise import float64, random_bits
from prednet_jax.noise.inject import inject, traced
from prednet_jax.noise.questions import runs
from prednet_jax.noise.questions.runs import Call, Result
from prednet_jax.noise.random_bits import first_words
from prednet_jax.noise.specs import ReductionOrder, StochasticRounding, compose


class Exact(NamedTuple):
    """A result in float64; `errors`: for each leaf, the RMS of its own rounding."""

    values: Result
    errors: list[float]


# Runs that show the error of float64, and their noise.
_DRAWS = 4
_NOISE = runs.reaching(compose(ReductionOrder(), StochasticRounding()))


def exact(
    call: Call, key: Array, settled: Callable[[Result], Result] = lambda values: values
) -> Exact:
    """The result of a call in float64, as `settled` makes it comparable."""
    pure, arrays = call.pure()
    program = traced(pure, arrays)

    def wide(*arrays: Array) -> list[Any]:
        return float64.evaluate(program.jaxpr, arrays, first_words(key))

    def values(fn: Callable, *given: Any) -> Result:
        outcome = jax.tree.unflatten(jax.tree.structure(program.shapes), fn(*given))
        return settled(runs.values(jax.device_get(outcome).result()))

    with jax.enable_x64(True):
        given = [float64.widened(jnp.array(x)) for x in arrays]
        truth = values(jax.jit(wide), *given)
        noisy = inject(wide, _NOISE)
        drawn = [values(noisy, k, *given) for k in random_bits.split(key, _DRAWS)]
    errors = [
        runs.rms(np.array([runs.rms(runs.difference(x, right)) for x in of_leaf]))
        for right, *of_leaf in zip(truth, *drawn, strict=True)
    ]
    return Exact(truth, errors)
