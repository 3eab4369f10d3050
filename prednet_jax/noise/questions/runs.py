"""What the tools share: runs of a function with and without noise, as NumPy arrays.

A result is a list of arrays, one per leaf, in float64 or complex128, which hold the
numbers of all narrower types exactly.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp

from prednet_jax.noise import random_bits
from prednet_jax.noise.arguments import split_static
from prednet_jax.noise.coverage import Reach, reach
from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.inject import inject, traced
from prednet_jax.noise.plan import plan
from prednet_jax.noise.rules.primitives import KERNELS, ROUTINES
from prednet_jax.noise.specs import (
    Elementwise,
    NoiseSpec,
    StochasticRounding,
    at,
    compose,
    parts,
)

Result = list[np.ndarray]


class Leaf(NamedTuple):
    """One array of a result.

    Attributes:
        path: as `jax.tree_util.keystr` writes it; `result` if it is all there is.
        dtype: its type, such as `float32`.
        shape: its shape.
        precision: decimal digits of the type: 7.2 for float32 (24 bits).
        epsilon: from 1 to the next number of the type; 0 for integers.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    precision: float
    epsilon: float


def leaves(tree: Any) -> list[Leaf]:
    """The leaves of a result, described."""
    return [
        _leaf(jax.tree_util.keystr(path) or "result", x)
        for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]


def values(tree: Any) -> Result:
    """The leaves of a result in float64 or complex128. What is no number is 0."""
    return [_wide(_array(x)) for x in jax.tree.leaves(tree)]


def acting(spec: NoiseSpec) -> NoiseSpec:
    """The part of a spec that acts on a computation.

    Raises:
        NoiseError: there is none.
    """
    found = at(spec, "computation")
    if found is None:
        raise NoiseError(f"spec={spec!r}: expected a noise that acts on a computation")
    return found


# Noise on library routines and kernels alone: their operands and results are rounded.
_ROUTINES = StochasticRounding(
    primitives=tuple(sorted(ROUTINES | KERNELS)), routines=True
)


def reaching(spec: NoiseSpec) -> NoiseSpec:
    """`acting(spec)`, which perturbs the operands of library routines as well.

    Their error is that of a rounding of the operands. Without it a result would seem to
    have all digits, whatever the routine loses.
    """
    found = parts(acting(spec))
    if any(isinstance(part, Elementwise) for part in found):
        return compose(
            *(
                dataclasses.replace(part, routines=True)
                if isinstance(part, Elementwise)
                else part
                for part in found
            )
        )
    return compose(*found, _ROUTINES)


def reaches(
    fn: Callable, spec: NoiseSpec, args: Sequence[Any], kwargs: dict[str, Any]
) -> list[Reach]:
    """What noise reaches of each array of the result of a function, in order."""
    static, arrays = split_static((args, kwargs))
    program = traced(static.call(fn), arrays)
    count = len(program.shapes.arrays)
    return reach(plan(program.jaxpr, spec))[:count]


def not_reached(tree: Any, reaches: Sequence[Reach]) -> list[bool]:
    """For each leaf of a result, whether noise reaches none of its arithmetic."""
    arrays = iter(reaches)
    unknown = []
    for leaf in jax.tree.leaves(tree):
        # Only arrays come from equations; not a text, nor a Python number.
        is_array = isinstance(leaf, jax.Array | np.ndarray | np.generic)
        here = next(arrays, Reach(True)) if is_array else Reach(True)
        unknown.append(bool(here.missed) and not here.reached)
    return unknown


def notes(reaches: Sequence[Reach]) -> list[str]:
    """In words, what noise did not reach, and the routines that it reached outside."""
    lines = []
    for what, entries in (
        (
            "not reached by this noise",
            {e for r in reaches for e in r.missed if e.has_order or not r.reached},
        ),
        (
            "routines, perturbed by a rounding of their operands",
            {e for r in reaches for e in r.routines},
        ),
    ):
        named = [
            f"{e.path} [{e.source}]" if e.source else e.path
            for e in sorted(entries, key=lambda e: e.path)
        ]
        more = f", and {len(named) - 4} more" if len(named) > 4 else ""
        lines += [f"{what}: {', '.join(named[:4])}{more}"] * bool(named)
    return lines


def plain(fn: Callable, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """`fn(*args, **kwargs)` on copies of the arrays, which it may donate or mutate."""
    args, kwargs = copies(args, kwargs)
    return fn(*args, **kwargs)


def copies(
    args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Arguments of their own for one call, which may donate them or train them."""
    static, arrays = split_static((args, kwargs))
    own = [jnp.copy(x) if isinstance(x, jax.Array) else x for x in arrays]
    return static.filled(own)[0]


def without_noise(fn: Callable, spec: NoiseSpec) -> Callable:
    """What `jax.jit(fn)` computes, called as `inject(fn, spec)`: no equation perturbed.

    Results that are no arrays pass through it, as they do through `inject`.
    """
    compiled = inject(fn, spec, only=())

    def call(key: Array, /, *args: Any, **kwargs: Any) -> Any:
        mine, named = copies(args, kwargs)
        return compiled(key, *mine, **named)

    return call


def draw(
    noisy: Callable, key: Array, draws: int, args: Sequence[Any], kwargs: dict[str, Any]
) -> Iterator[Any]:
    """Results of a function under noise, each drawn anew.

    Args:
        noisy: what `inject` gave.
        key: typed or raw PRNG key; consumed here.
        draws: number of results.
        args: of the function; each draw gets copies of its arrays.
        kwargs: of the function.
    """
    for one in random_bits.split(key, draws):
        mine, named = copies(args, kwargs)
        yield jax.device_get(noisy(one, *mine, **named))


def difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`x - y`; 0 where both are NaN or the same infinity."""
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        return np.where(same, 0, np.subtract(x, y))


def rms(x: np.ndarray) -> float:
    """Root mean square magnitude; 0 of no elements."""
    if not x.size:
        return 0.0
    largest = float(np.max(np.abs(x)))
    if largest == 0 or not math.isfinite(largest):
        return largest
    return largest * float(np.sqrt(np.mean(np.square(np.abs(x) / largest))))


def moments(results: Iterator[Any]) -> tuple[Any, Result, Result]:
    """One of the results, and mean and standard deviation of each element.

    By B. P. Welford's recurrence ("Note on a method for calculating corrected sums of
    squares and products", Technometrics 4, 1962), on differences from the first result,
    which are small: memory does not grow with the number of results. NaN or infinite
    where an element is so in some of them.
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


def _array(x: Any) -> np.ndarray:
    """A leaf as NumPy's array: of keys the data, of what is no number a zero."""
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if not isinstance(x, jax.Array | np.ndarray | np.generic | bool | int | float):
        x = x if isinstance(x, complex) else 0
    return np.asarray(x)


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(
        np.complex128 if jnp.issubdtype(x.dtype, jnp.complexfloating) else np.float64
    )


def _leaf(path: str, x: Any) -> Leaf:
    x = _array(x)
    epsilon = 0.0
    if jnp.issubdtype(x.dtype, jnp.inexact):
        info = jnp.finfo(x.dtype)
        bits, epsilon = info.nmant + 1, float(info.eps)
    elif x.dtype == np.bool_:
        bits = 1
    else:
        integers = jnp.iinfo(x.dtype)
        bits = integers.bits - (integers.min < 0)
    return Leaf(path, str(x.dtype), x.shape, bits * math.log10(2), epsilon)


def two_sided(tail: float) -> float:
    """The size that a standard normal number exceeds with probability `tail`.

    Args:
        tail: in (0, 1), however small.
    """
    return -NormalDist().inv_cdf(tail / 2)


def chi_squared(probability: float, degrees: int) -> float:
    """The lower quantile of the chi-squared distribution.

    By bisection of P(a, x) = x^a e^-x / Gamma(a + 1) sum_k x^k / ((a+1) ... (a+k)),
    a = degrees / 2 (NIST Digital Library of Mathematical Functions, 8.11.4).

    Args:
        probability: in (0, 1).
        degrees: of freedom, 1 or more.
    """
    a = degrees / 2
    low, high = 0.0, degrees + 40 * math.sqrt(degrees) + 40
    for _ in range(100):
        middle = (low + high) / 2
        if _lower_gamma(a, middle / 2) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def spread_bound(draws: int, confidence: float) -> float:
    """How far above a sample's standard deviation the true one may be.

    Of normal numbers, sigma <= factor * s with the given confidence.

    Args:
        draws: size of the sample, 2 or more.
        confidence: in (0, 1).
    """
    free = draws - 1
    return math.sqrt(free / chi_squared(1 - confidence, free))


def _lower_gamma(a: float, x: float) -> float:
    """The regularised lower incomplete gamma function P(a, x)."""
    if x <= 0:
        return 0.0
    term = total = 1.0
    k = 0
    while term > 1e-17 * total:
        k += 1
        term *= x / (a + k)
        total += term
    return total * math.exp(a * math.log(x) - x - math.lgamma(a + 1))
