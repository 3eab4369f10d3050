"""Pairs the weights of two sides by their numbers, shapes and names."""

import functools
import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from prednet_jax.noise.leaves import wide_leaves
from prednet_jax.noise.questions import layouts, names

# The largest distance of sorted numbers of equal weights: bfloat16 keeps 8 bits.
CONTENT = 2.0**-7
# Arrays of other numbers are paired by the distance of so many of them, since every
# array is compared with all of its size.
SAMPLE = 4096
EXTREMES = (np.fmax, np.fmin)

Weights = dict[str, np.ndarray]
Found = tuple[str, str, np.ndarray, np.ndarray]


def pairs_of(here: Weights, there: Weights, *, content: bool) -> list[Found]:
    """Takes pairs whose shapes fit, by their distance and the likeness of their names.

    With `content` they have the same numbers, and names decide between equally near
    arrays only: the scales of all normalisations, for instance, are nearly 1.
    """
    gaps = _of_same_content(here, there) if content else _of_fitting_shape(here, there)
    costs = {pair: x - similarity(*pair) for pair, x in gaps.items()}
    pairs = []
    for n, t in sorted(costs, key=lambda pair: costs[pair]):
        if n in here and t in there:
            pairs.append((n, t, here.pop(n), there.pop(t)))
    return pairs


_Distances = dict[tuple[str, str], float]


def _of_same_content(here: Weights, there: Weights) -> _Distances:
    """Returns the distances of weights that hold the same numbers in any order."""
    alike: dict[tuple, str] = {}
    same = [
        {n: alike.setdefault((i, *_digest(x)), n) for n, x in side.items()}
        for i, side in enumerate((here, there))
    ]

    @functools.cache  # Many arrays are all zeros or all ones.
    def distance(n: str, t: str) -> float | None:
        v, r = here[n], there[t]
        return millionths(v, r) if same_content(v, r) else None

    return {
        (n, t): gap
        for n, t in _candidates(here, there)
        if (gap := distance(same[0][n], same[1][t])) is not None
    }


def _of_fitting_shape(here: Weights, there: Weights) -> _Distances:
    """Returns the distances of weights whose shapes fit, by some of their numbers.

    All weights of a shape are compared at once, since each is with all of its size.
    """
    distances: _Distances = {}
    groups = map(_by_shape, (here, there))
    for (shape, ours), (_, theirs) in itertools.product(*(g.items() for g in groups)):
        sample, nearest = spaced(shape, SAMPLE), np.ones((len(ours), len(theirs)))
        fits = layouts.fitting(there[theirs[0]], shape)
        for fit in fits:
            arranged = [fit.arrange(there[t], shape)[sample] for t in theirs]
            compared = layouts.distances([here[n][sample] for n in ours], arranged)
            nearest = np.minimum(nearest, compared)
        if fits:
            pairs = itertools.product(ours, theirs)
            distances |= dict(zip(pairs, nearest.ravel().tolist(), strict=True))
    return distances


def _by_shape(weights: Weights) -> dict[tuple[int, ...], list[str]]:
    """Returns the names of the weights of each shape."""
    names_of: dict[tuple[int, ...], list[str]] = {}
    for name, x in weights.items():
        names_of.setdefault(x.shape, []).append(name)
    return names_of


def _candidates(here: Weights, there: Weights) -> Iterator[tuple[str, str]]:
    """Yields names whose shapes fit and whose extremes are equal."""
    sizes: dict[int, list[str]] = {}
    for t, r in there.items():
        sizes.setdefault(r.size, []).append(t)
    extremes = {
        size: np.stack([extremes_of(there[t]) for t in several])
        for size, several in sizes.items()
        if size
    }
    for n, v in here.items():
        several = sizes.get(v.size, [])
        if v.size in extremes:
            theirs = extremes[v.size]
            near = np.isclose(
                extremes_of(v), theirs, CONTENT, least_of(theirs, 1), equal_nan=True
            )
            several = [several[i] for i in np.flatnonzero(near.all(1))]
        yield from ((n, t) for t in several if layouts.fitting(there[t], v.shape))


def _digest(x: np.ndarray) -> tuple[object, ...]:
    """Returns what only equal arrays have in common."""
    return x.shape, x.dtype, hashlib.blake2b(x.tobytes()).digest()


def same_content(x: np.ndarray, y: np.ndarray) -> bool:
    """Returns whether two arrays hold the same numbers in any order."""
    if x.size != y.size or x.size == 0:
        return x.size == y.size
    a, b = (np.sort(v, axis=None) for v in wide_leaves([x, y]))
    return bool(np.allclose(a, b, CONTENT, least_of(b), equal_nan=True))


def millionths(v: np.ndarray, r: np.ndarray) -> float:
    """Returns the distance in whole millionths, in the nearest order of axes."""
    return round(1e6 * min(distances_of(v, r).values())) * 1.0


def least_of(x: np.ndarray, axis: int | None = None) -> np.ndarray:
    """Returns the size below which the numbers of an array are not told apart.

    With `axis` each row of this axis has its own.
    """
    sizes, finite = np.abs(x), np.isfinite(x)
    return CONTENT**2 * np.max(sizes, axis, initial=0, where=finite, keepdims=True)


def is_counter(x: np.ndarray) -> bool:
    """Returns whether an array is a count, such as of the batches seen."""
    return x.size == 1 and x.dtype.kind in "iu"


def extremes_of(x: np.ndarray, axis: int | None = None) -> np.ndarray:
    """Returns the largest and the smallest number, or those of each row of an axis."""
    (wide,) = wide_leaves([x])
    real = np.abs(wide) if np.iscomplexobj(wide) else wide
    axes = tuple(i for i in range(x.ndim) if i != axis)
    return np.stack([f.reduce(real, axes) for f in EXTREMES])


def similarity(a: str, b: str) -> float:
    """Returns how alike two names are, from 0 to 1."""
    return names.similarity(_joined(a), _joined(b))


@functools.lru_cache(maxsize=100_000)
def _joined(name: str) -> str:
    return "".join(names.canonical(name))


def distances_of(v: np.ndarray, r: np.ndarray) -> dict[layouts.Layout, float]:
    """Returns the distance in each order of axes that gives `r` the shape of `v`."""
    fits = layouts.fitting(r, v.shape)
    return {fit: layouts.distance(fit.arrange(r, v.shape), v) for fit in fits}


def spaced(shape: Sequence[int], most: float) -> tuple[slice, ...]:
    """Returns slices of about `most` numbers, evenly spaced along each axis."""
    steps = [1] * len(shape)
    while math.prod(n // step for n, step in zip(shape, steps, strict=True)) > most:
        steps[max(range(len(shape)), key=lambda i: shape[i] / steps[i])] *= 2
    return tuple(slice(None, None, step) for step in steps)
