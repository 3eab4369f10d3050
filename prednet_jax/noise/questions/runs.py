"""What the questions share: runs of a function under noise, and their differences.

A result is a list of arrays, one per leaf, in float64 or complex128, which hold the
numbers of all narrower types exactly.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp

from prednet_jax.noise import random_bits, specs
from prednet_jax.noise.arguments import pure, split
from prednet_jax.noise.coverage import Reach, reach
from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.inject import Traced, traced
from prednet_jax.noise.plan import plan
from prednet_jax.noise.rules.primitives import KERNELS, ROUTINES
from prednet_jax.noise.specs import Elementwise, NoiseSpec, StochasticRounding

Result = list[np.ndarray]


class Call(NamedTuple):
    """A function at its arguments, which no run consumes or changes."""

    fn: Callable
    args: Sequence[Any]
    kwargs: dict[str, Any]

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Copies, which a run may donate, change or, of Flax NNX objects, train."""
        static, arrays, _ = split((self.args, self.kwargs))
        own = [x.copy() if hasattr(x, "copy") else x for x in arrays]
        return static.filled(own)[0]

    def result(self, *first: Any) -> Any:
        """`fn(*first, *args, **kwargs)`."""
        args, kwargs = self.arguments()
        return self.fn(*first, *args, **kwargs)

    def draw(self, noisy: Callable, key: Array, draws: int) -> Iterator[Any]:
        """Results of what `inject` gave, each under noise of its own."""
        for one in random_bits.split(key, draws):
            yield jax.device_get(self._replace(fn=noisy).result(one))

    def pure(self) -> tuple[Callable, list[Any]]:
        """The function of its arrays alone, giving an `Outcome`, and the arrays."""
        return pure(self.fn, self.args, self.kwargs)

    def program(self) -> Traced:
        """The traced program."""
        return traced(*self.pure())

    def reaches(self, spec: NoiseSpec) -> list[Reach]:
        """What noise reaches of each array of the result, in order."""
        program = self.program()
        return reach(plan(program.jaxpr, spec))[: len(program.shapes.arrays)]


def acting(spec: NoiseSpec) -> NoiseSpec:
    """The part of a spec that acts on a computation. NoiseError: there is none."""
    on_computation = specs.at(spec, "computation")
    if on_computation is None:
        raise NoiseError(f"spec={spec!r}: expected a noise that acts on a computation")
    return on_computation


# Noise on library routines and kernels alone: their operands and results are rounded.
_ROUTINES = StochasticRounding(
    primitives=tuple(sorted(ROUTINES | KERNELS)), routines=True
)


def reaching(spec: NoiseSpec) -> NoiseSpec:
    """`acting(spec)`, which rounds the operands of library routines as well.

    Without it a result would seem to have all digits, whatever the routine loses.
    """
    rounding = [
        dataclasses.replace(part, routines=True)
        if isinstance(part, Elementwise)
        else part
        for part in specs.parts(acting(spec))
    ]
    if not any(isinstance(part, Elementwise) for part in rounding):
        rounding.append(_ROUTINES)
    return specs.compose(*rounding)


def not_reached(tree: Any, reaches: Sequence[Reach]) -> list[bool]:
    """For each leaf of a result, whether noise reaches none of its arithmetic."""
    # Only arrays come from equations; not a text, nor a Python number.
    kinds = (jax.Array, np.ndarray, np.generic)
    blind = (bool(r.missed) and not r.reached for r in reaches)
    leaves = jax.tree.leaves(tree)
    return [isinstance(leaf, kinds) and next(blind, False) for leaf in leaves]


def notes(reaches: Sequence[Reach]) -> tuple[str, ...]:
    """In words, what noise did not reach, and the routines that it reached outside."""
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


class Leaf(NamedTuple):
    """One array of a result: its path (`result` if it is all there is) and type.

    `precision` is in decimal digits (7.2 for float32, of 24 bits), `epsilon` from 1 to
    the next number; 0 for integers.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    precision: float
    epsilon: float


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of a pytree with their paths."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path) or "result", x) for path, x in leaves]


def leaves(tree: Any) -> list[Leaf]:
    """The leaves of a result, described."""
    described = []
    for path, x in named_leaves(tree):
        x, epsilon = array(x), 0.0
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


def values(tree: Any) -> Result:
    """The leaves of a result in float64 or complex128. What is no number is 0."""
    arrays = map(array, jax.tree.leaves(tree))
    return [x.astype(complex if np.iscomplexobj(x) else float) for x in arrays]


def array(x: Any) -> np.ndarray:
    """A leaf as NumPy's array: of keys the data, of what is no number a zero."""
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if not isinstance(x, jax.Array | np.ndarray | np.generic | int | float | complex):
        x = 0
    if getattr(x, "dtype", None) == jax.dtypes.float0:
        x = np.zeros(x.shape)
    return np.asarray(x)


def check_alike(name: str, a: Any, other: str, b: Any) -> list[Leaf]:
    """The leaves of `b`, refusing an `a` of other structure or shapes."""
    mine: Any = jax.tree.structure(a)
    yours: Any = jax.tree.structure(b)
    if mine != yours:
        raise NoiseError(f"{name} is {mine} and {other} {yours}: expected the same")
    described = leaves(b)
    for leaf, expected in zip(leaves(a), described, strict=True):
        if leaf.shape != expected.shape:
            raise NoiseError(
                f"{expected.path}: {name} has shape {leaf.shape} and {other} "
                f"{expected.shape}: expected the same"
            )
    return described


def difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`x - y`; 0 where both are NaN or the same infinity."""
    with np.errstate(invalid="ignore"):
        return np.where(same(x, y), 0, np.subtract(x, y))


def same(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which elements are equal; NaN equals NaN, and -0 equals 0."""
    return (x == y) | (np.isnan(x) & np.isnan(y))


def rms(x: np.ndarray) -> float:
    """Root mean square magnitude; 0 of no elements."""
    largest = float(np.max(np.abs(x), initial=0))
    if largest == 0 or not math.isfinite(largest):
        return largest
    return largest * float(np.sqrt(np.mean(np.square(np.abs(x) / largest))))


def moments(results: Iterator[Any]) -> tuple[Any, Result, Result]:
    """One of the results, and mean and standard deviation of each element.

    By B. P. Welford's recurrence (Technometrics 4, 1962), on differences from the first
    result. NaN or infinite where an element is so in some of them.
    """
    tree = next(results)
    first = values(tree)
    shift = [np.zeros_like(x) for x in first]
    squares = [np.zeros(x.shape) for x in first]
    count = 1
    with np.errstate(invalid="ignore", over="ignore"):
        for result in results:
            count += 1
            for i, x in enumerate(values(result)):
                now = difference(x, first[i])
                old = now - shift[i]
                shift[i] = shift[i] + old / count
                squares[i] = squares[i] + (old * np.conj(now - shift[i])).real
        means = [x + d for x, d in zip(first, shift, strict=True)]
        return tree, means, [np.sqrt(q / (count - 1)) for q in squares]


def cell(x: Any) -> str:
    """What a table shows: of a number two digits, `-` for one that is not known."""
    if isinstance(x, float):
        return f"{x:.2g}"
    return "-" if x is None else str(x)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], align: str) -> list[str]:
    """Lines of columns; `align` has < or > for each, the last < is not padded."""
    every = [list(map(cell, row)) for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    columns = [f"{{:{a}{w}}}" for a, w in zip(align, widths, strict=True)]
    return ["  ".join(columns).format(*row).rstrip() for row in every]
