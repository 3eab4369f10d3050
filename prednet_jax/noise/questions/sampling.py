"""Runs a function under noise, in the same way for every question.

    call = BoundCall(fn, args, kwargs)
    noisy = inject(fn, spec)
    tree, means, deviations = sample_moments(call.draw(noisy, key, draws))

`call.result()` is the result without noise, and `call.draw` yields results under noise,
one draw after another. `with_routines` adds noise on library routines, for questions
that must not overlook them. `unreached_leaves` and `reach_notes` list the leaves and
operations without noise.
"""

import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from prednet_jax.noise import compat, random_bits, specs
from prednet_jax.noise._coverage import Reach, reach
from prednet_jax.noise._inject import Traced, traced
from prednet_jax.noise.arguments import pure, split
from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.plan import plan
from prednet_jax.noise.questions.leaves import Leaf, Result, subtract, wide_leaves
from prednet_jax.noise.rules.primitives import KERNELS, ROUTINES
from prednet_jax.noise.specs import Elementwise, NoiseSpec, StochasticRounding

# Seconds after which a tool reports how far it is.
_SILENCE = 60.0


def draw_keys(key: Array, draws: int) -> Iterator[Array]:
    """Yields the key of each noisy run.

    Progress is written to the standard error once a minute, after a run.
    """
    start = shown = time.monotonic()
    for i, one in enumerate(random_bits.split(key, draws)):
        yield one
        now = time.monotonic()
        if now - shown > _SILENCE:
            shown = now
            done = f"{i + 1} of {draws} noisy runs in {now - start:.0f} s"
            print(done, file=sys.stderr, flush=True)


class BoundCall(NamedTuple):
    """A function with its arguments, which no run consumes or changes.

    Attributes:
        fn: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """

    fn: Callable
    args: Sequence[Any]
    kwargs: dict[str, Any]

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns copies that a run may donate or change, Flax NNX objects included."""
        static, arrays, _ = split((self.args, self.kwargs))
        copies = [x.copy() if hasattr(x, "copy") else x for x in arrays]
        return static.filled(copies)[0]

    def result(self, *first: Any) -> Any:
        """Returns `fn(*first, *args, **kwargs)` of copies of the arguments."""
        args, kwargs = self.arguments()
        return self.fn(*first, *args, **kwargs)

    def draw(self, noisy: Callable, key: Array, draws: int) -> Iterator[Any]:
        """Yields results under noise, each a pytree of NumPy arrays.

        Args:
            noisy: `inject(fn, spec)`.
            key: from which the key of each draw is split.
            draws: number of results.
        """
        for one in draw_keys(key, draws):
            yield jax.device_get(self._replace(fn=noisy).result(one))

    def pure(self) -> tuple[Callable, list[Any]]:
        """Returns the call as a function of arrays alone, and these arrays.

        The function gives an `Outcome`, whose `result()` is the result.
        """
        return pure(self.fn, self.args, self.kwargs)

    def program(self) -> Traced:
        """Returns the traced program, with its jaxpr and the shapes of its outcome."""
        return traced(*self.pure())

    def traced_once(self) -> "BoundCall":
        """Returns the call of the program as it is traced now, a pure function."""
        program, arrays = self.program(), self.pure()[1]

        def run(*arrays: Any) -> Any:
            results = compat.evaluate(program.jaxpr, arrays)
            structure = jax.tree.structure(program.shapes)
            return jax.tree.unflatten(structure, results).result()

        return BoundCall(run, arrays, {})

    def reaches(self, spec: NoiseSpec) -> list[Reach]:
        """Returns the reach of noise for each array of the result, in order."""
        program = self.program()
        return reach(plan(program.jaxpr, spec))[: len(program.shapes.arrays)]


def computation_part(spec: NoiseSpec) -> NoiseSpec:
    """Returns the part of a spec that acts on a computation.

    Raises:
        NoiseError: no part does, such as noise on weights alone.
    """
    on_computation = specs.at(spec, "computation")
    if on_computation is None:
        raise NoiseError(f"spec={spec!r}: expected a noise that acts on a computation")
    return on_computation


# Noise on library routines and kernels alone: their operands and results are rounded.
_ROUTINES = StochasticRounding(
    primitives=tuple(sorted(ROUTINES | KERNELS)), routines=True
)


def with_routines(spec: NoiseSpec) -> NoiseSpec:
    """Returns the part on the computation, which rounds operands of routines as well.

    Otherwise a result would seem to have all digits, whatever a library routine loses.
    """
    rounding = [
        dataclasses.replace(part, routines=True)
        if isinstance(part, Elementwise)
        else part
        for part in specs.parts(computation_part(spec))
    ]
    if not any(isinstance(part, Elementwise) for part in rounding):
        rounding.append(_ROUTINES)
    return specs.compose(*rounding)


def unreached_leaves(tree: Any, reaches: Sequence[Reach]) -> list[bool]:
    """Returns for each leaf of a result whether noise reaches none of its arithmetic.

    Args:
        tree: the result.
        reaches: `BoundCall.reaches(spec)`.
    """
    # Only arrays come from equations, never a text or a Python number.
    kinds = (jax.Array, np.ndarray, np.generic)
    blind = (bool(r.missed) and not r.reached for r in reaches)
    leaves = jax.tree.leaves(tree)
    return [isinstance(leaf, kinds) and next(blind, False) for leaf in leaves]


def reach_notes(reaches: Sequence[Reach]) -> tuple[str, ...]:
    """Returns lines that name operations without noise, and library routines.

    Args:
        reaches: `BoundCall.reaches(spec)`.
    """
    missed = {e for r in reaches for e in r.missed if e.has_order or not r.reached}
    routines = {e for r in reaches for e in r.routines}
    lines = []
    for what, entries in (
        ("not reached by this noise", missed),
        ("routines, perturbed by a rounding of their operands", routines),
    ):
        named = [
            f"{e.path} [{e.source}]" if e.source else e.path
            for e in sorted(entries, key=lambda e: e.path)
        ]
        more = f", and {len(named) - 4} more" if len(named) > 4 else ""
        lines += [f"{what}: {', '.join(named[:4])}{more}"] * bool(named)
    return tuple(lines)


class FiniteRuns:
    """Counts in how many runs each element of a result is a finite number."""

    def __init__(self) -> None:
        self.runs = 0
        self._finite: list[np.ndarray] = []

    def counted(self, results: Iterable[Any]) -> Iterator[Any]:
        """Yields the results, and counts them."""
        for result in results:
            finite = [np.isfinite(x).astype(int) for x in wide_leaves(result)]
            pairs = zip(self._finite or finite, finite, strict=True)
            self._finite = [x + y for x, y in pairs] if self.runs else finite
            self.runs += 1
            yield result

    def notes(self, described: Sequence[Leaf]) -> tuple[str, ...]:
        """Returns a line for each leaf that is finite in only some of the runs."""
        lines = []
        for leaf, finite in zip(described, self._finite, strict=True):
            some = (finite > 0) & (finite < self.runs)
            if some.any():
                runs = self.runs - int(finite[some].min())
                lines.append(
                    f"{leaf.path}: noise alone makes {np.count_nonzero(some)} of "
                    f"{some.size} elements NaN or infinite, in up to {runs} of "
                    f"{self.runs} runs"
                )
        return tuple(lines)


def sample_moments(results: Iterator[Any]) -> tuple[Any, Result, Result]:
    """Returns the first result, and mean and standard deviation of each element.

    Welford's recurrence (B. P. Welford, Technometrics 4, 1962) runs on differences from
    the first result. An element is NaN or infinite if it is so in one of the results.

    Args:
        results: results as `BoundCall.draw` yields them, at least two.
    """
    tree = next(results)
    first = wide_leaves(tree)
    shift = [np.zeros_like(x) for x in first]
    squares = [np.zeros(x.shape) for x in first]
    count = 1
    with np.errstate(invalid="ignore", over="ignore"):
        for result in results:
            count += 1
            for i, x in enumerate(wide_leaves(result)):
                now = subtract(x, first[i])
                old = now - shift[i]
                shift[i] = shift[i] + old / count
                squares[i] = squares[i] + (old * np.conj(now - shift[i])).real
        means = [x + d for x, d in zip(first, shift, strict=True)]
        return tree, means, [np.sqrt(q / (count - 1)) for q in squares]
