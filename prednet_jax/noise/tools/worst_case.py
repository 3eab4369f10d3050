"""The draw that moves a number most: a worst case beside the random one.

Random orders rarely meet their worst: a sum of k independent deviations grows as
sqrt(k), their worst case as k. `worst_case` searches the draws of each equation, all of
which the noise allows:

1. `draws` random runs; the one that moves the number furthest is where to start.
2. One equation after another, in the order of the program: `draws` other draws for it
   with all others kept; the best is kept. This is one pass of coordinate ascent, of
   (equations * draws) runs.

What is found is reached: a lower bound of what noise can do, and a number people can
quote ("an order of sums within the model moves this loss by 3e-6"). It is no upper
bound. Inside one equation all outputs are drawn together, and loops draw anew at each
step from the same choice, so that large arrays and long loops are searched coarsely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp

from prednet_jax.noise.arguments import split_static
from prednet_jax.noise.coverage import coverage
from prednet_jax.noise.errors import NoiseError, integer
from prednet_jax.noise.inject import evaluate, traced
from prednet_jax.noise.run import Hooks
from prednet_jax.noise.specs import NoiseSpec
from prednet_jax.noise.tools import runs


class WorstCase(NamedTuple):
    """The draw that was found, and what it does.

    Attributes:
        value: of the function at this draw.
        clean: without noise.
        deviation: `value - clean`.
        random: largest deviation, as a magnitude, among the random draws.
        choices: number of the draw of each equation, by path: with the key it gives
            the draw again, by `replay`.
        evaluations: number of runs.
    """

    value: float
    clean: float
    deviation: float
    random: float
    choices: Mapping[str, int]
    evaluations: int

    def __str__(self) -> str:
        return (
            f"clean {self.clean:.9g}, worst found {self.value:.9g}: moved by "
            f"{self.deviation:.3g}; furthest of the random draws {self.random:.3g} "
            f"({len(self.choices)} equations, {self.evaluations} runs)"
        )


def worst_case(
    fn: Callable, spec: NoiseSpec, *, draws: int = 16
) -> Callable[..., WorstCase]:
    """Search the draw of the noise that moves the result of `fn` most.

    Args:
        fn: as for `inject`, with a scalar result, such as a loss.
        spec: the noise; its parts that act on a computation.
        draws: random runs to begin with, and draws tried for each equation, 2 or more.

    Returns:
        `search(key, *args, **kwargs)` that gives the worst draw found.

    Raises:
        NoiseError: when `draws` is too small, `spec` acts on no computation, or (on a
            call) the result is not one floating-point number.
    """
    integer("draws", draws, 2)

    def search(key: Array, /, *args: Any, **kwargs: Any) -> WorstCase:
        paths, run = _runs(fn, spec, args, kwargs)
        values: dict[tuple[int, ...], float] = {}

        def moved(choice: np.ndarray) -> float:
            place = tuple(choice.tolist())
            if place not in values:
                values[place] = run(key, True, choice) - clean
            return values[place]

        clean = run(key, False, np.zeros(len(paths), np.uint32))
        starts = [np.full(len(paths), i, np.uint32) for i in range(draws)]
        best = max(starts, key=lambda c: abs(moved(c)))
        random, sign = abs(moved(best)), np.sign(moved(best))
        for i in range(len(paths)):
            tried = [best.copy() for _ in range(draws)]
            for number, choice in enumerate(tried):
                choice[i] = number
            best = max([best, *tried], key=lambda c: sign * moved(c))
        value = clean + moved(best)
        choices = dict(zip(paths, best.tolist(), strict=True))
        return WorstCase(value, clean, moved(best), random, choices, 1 + len(values))

    return search


def replay(
    fn: Callable, spec: NoiseSpec, choices: Mapping[str, int]
) -> Callable[..., float]:
    """The run that `worst_case` found.

    Args:
        fn: as given to `worst_case`.
        spec: likewise.
        choices: of the `WorstCase`.

    Returns:
        `again(key, *args, **kwargs)`: its value, for the key that it was found with.

    Raises:
        NoiseError: on a call, when `choices` are not those of this function.
    """

    def again(key: Array, /, *args: Any, **kwargs: Any) -> float:
        paths, run = _runs(fn, spec, args, kwargs)
        if set(paths) != set(choices):
            raise NoiseError(
                f"choices of {len(choices)} equations: expected those of the "
                f"{len(paths)} that coverage lists for this function"
            )
        return run(key, True, np.asarray([choices[p] for p in paths], np.uint32))

    return again


def _runs(
    fn: Callable, spec: NoiseSpec, args: Any, kwargs: Any
) -> tuple[list[str], Callable[[Array, bool, np.ndarray], float]]:
    """The perturbed equations, and the value of `fn` at chosen draws of each."""
    acting = runs.acting(spec)
    paths = [e.path for e in coverage(fn, acting)(*args, **kwargs).perturbed]
    static, arrays = split_static((args, kwargs))

    @jax.jit
    def compiled(key: Array, noise: Array, choice: Array, *arrays: Array) -> Any:
        program = traced(static.call(fn), arrays)
        hooks = Hooks(
            switches=dict.fromkeys(paths, noise),
            choices={path: choice[i] for i, path in enumerate(paths)},
        )
        return evaluate(acting, key, program, arrays, hooks=hooks)

    def run(key: Array, noise: bool, choice: np.ndarray) -> float:
        result = compiled(key, noise, choice, *arrays).result()
        if not (
            isinstance(result, jax.Array)
            and result.shape == ()
            and jnp.issubdtype(result.dtype, jnp.floating)
        ):
            kind = getattr(result, "shape", None) or type(result).__name__
            raise NoiseError(
                f"a result that is {kind}: expected one floating-point number, such as "
                "a loss"
            )
        return float(result)

    return paths, run
