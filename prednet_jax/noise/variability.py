"""How far two runs of the same computation are apart.

    V_ermv = mean |A - B| / |A|          elementwise relative mean variation
    V_c    = fraction of elements with A != B          count variability
    L2     = |A - B|_2
    churn  = fraction of decisions that differ
    ulps   = number of floating-point numbers from A to B

V_ermv and V_c are those of S. Shanmugavelu et al., "Impacts of floating-point
non-associativity on reproducibility for HPC and deep learning applications" (SC
workshops 2024, arXiv 2408.05148, eqs. 2 and 3; used again in 2503.17173). L2 distance
of weights and churn (disagreement of predicted labels) are those of D. Zhuang et al.,
"Randomness in neural network training: characterizing the impact of tooling" (MLSys
2022), churn after M. Milani Fard et al., "Launch and iterate" (NeurIPS 2016).

All of them take pytrees of arrays, pool the elements of all leaves, and are computed in
float64 on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.rounding.error_free import format_of

# Distances in ulps are counted up to this; the last bin holds all larger ones.
ULP_EDGES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 65536)


def v_ermv(a: Any, b: Any) -> float:
    """Mean of |A - B| / |A|; not symmetric, `a` is the reference.

    An element that is zero in both adds nothing; one that is zero in `a` alone adds 1.
    NaN where only one of the two is NaN.

    Raises:
        NoiseError: when structures or shapes differ, or there is no element.
    """
    x, y = _pooled(a, b)
    far = np.abs(difference(x, y))
    scale = np.where(x == 0, np.abs(y), np.abs(x))
    # Where both are zero, or the same infinity, there is no difference to divide.
    ratio = np.divide(far, scale, out=np.zeros_like(far), where=far != 0)
    return float(ratio.mean())


def v_c(a: Any, b: Any) -> float:
    """Fraction of elements that differ in value: 0 is repeatable, 1 none alike.

    NaN equals NaN, and -0 equals 0. Errors as for `v_ermv`.
    """
    return float(np.mean(~_same(*_pooled(a, b))))


def l2_distance(a: Any, b: Any) -> float:
    """Root of the sum of (A - B)^2. Errors as for `v_ermv`."""
    return float(np.sqrt(np.sum(np.square(difference(*_pooled(a, b))))))


def spread_and_shift(reference: Any, samples: Sequence[Any]) -> tuple[float, float]:
    """How far noisy values scatter, and how far their mean is from the clean value.

    Returns:
        The root mean square distance (L2) of two or more samples from their expected
        value, as estimated from their mean, and the distance of that mean from the
        reference; both in units of the norm of the reference.

    Raises:
        NoiseError: with fewer than two samples or a reference of zeros, and as for
            `v_ermv`.
    """
    n = len(samples)
    if n < 2:
        raise NoiseError(f"{n} samples: expected two or more")
    mean = jax.tree.map(lambda *xs: np.mean(np.asarray(xs, np.float64), 0), *samples)
    norm = l2_distance(reference, jax.tree.map(np.zeros_like, mean))
    if norm == 0:
        raise NoiseError("a reference of zeros: expected one with a norm")
    squares = sum(l2_distance(mean, sample) ** 2 for sample in samples)
    return float(np.sqrt(squares / (n - 1)) / norm), l2_distance(reference, mean) / norm


def churn(
    a: Any, b: Any, *, decide: Callable[[np.ndarray], Any] | None = None
) -> float:
    """Fraction of decisions on which two sets of predictions disagree.

    `decide` makes decisions of an array of predictions, as `lambda p: np.rint(255 * p)`
    the shade of a pixel. None: integers and booleans are decisions; of floats
    `[..., classes]` the argmax is.

    Raises:
        NoiseError: as for `v_ermv`, and for floats without an axis of classes.
    """

    def decisions(x: Any) -> np.ndarray:
        x = np.asarray(x)
        if decide is not None:
            return np.asarray(decide(x))
        if x.dtype.kind in "iub":
            return x
        if x.ndim < 1 or x.shape[-1] < 2:
            raise NoiseError(
                f"predictions of shape {x.shape}: expected integers, or floats "
                "[..., classes] with two classes or more"
            )
        return np.argmax(x, axis=-1)

    return v_c(jax.tree.map(decisions, a), jax.tree.map(decisions, b))


def ulp_distance(a: Any, b: Any) -> np.ndarray:
    """Number of floating-point numbers between A and B: int64 [n], of all leaves.

    Structures, shapes and types must be the same. -0 and 0 are one number; a distance
    that involves a NaN is the largest int64 unless both are NaN.
    """
    found = [np.zeros(0, np.int64)]
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.dtype(x.dtype) != jnp.dtype(y.dtype) or np.shape(x) != np.shape(y):
            raise NoiseError(
                f"arrays of {x.dtype} {np.shape(x)} and {y.dtype} {np.shape(y)}: "
                "expected the same type and shape"
            )
        p, q = (_ordered(np.asarray(v)) for v in (x, y))
        wide, other = (np.asarray(v, np.float64) for v in (x, y))
        broken = np.isnan(wide) | np.isnan(other)
        distance = np.where(broken, np.iinfo(np.int64).max, np.abs(p - q))
        found.append(np.where(_same(wide, other), 0, distance).ravel())
    return np.concatenate(found)


def ulp_histogram(distances: np.ndarray) -> dict[str, int]:
    """How many distances are 0, 1, 2, 3-4, 5-8, ... ulps; keys in that order."""
    found, low = {}, -1
    for high in ULP_EDGES:
        name = str(high) if high <= low + 1 else f"{low + 1}-{high}"
        found[name] = int(np.count_nonzero((distances > low) & (distances <= high)))
        low = high
    return found | {f">{low}": int(np.count_nonzero(distances > low))}


def difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`x - y`; 0 where both are NaN or the same infinity."""
    with np.errstate(invalid="ignore"):
        return np.where(_same(x, y), 0, np.subtract(x, y))


def _same(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x == y) | (np.isnan(x) & np.isnan(y))


def _pooled(a: Any, b: Any) -> Iterator[np.ndarray]:
    """All elements of both trees in float64, checked: two of [n]."""
    left: Any = jax.tree.structure(a)
    right: Any = jax.tree.structure(b)
    if left != right:
        raise NoiseError(f"trees {left} and {right}: expected the same structure")
    both = list(zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    for x, y in both:
        if np.shape(x) != np.shape(y):
            raise NoiseError(
                f"shapes {np.shape(x)} and {np.shape(y)}: expected the same"
            )
    if not sum(np.size(x) for x, _ in both):
        raise NoiseError("trees without elements: expected at least one")
    for of_tree in zip(*both, strict=True):
        yield np.concatenate([np.asarray(x, np.float64).ravel() for x in of_tree])


def _ordered(x: np.ndarray) -> np.ndarray:
    """Integers in the order of the numbers, one apart where those are neighbours."""
    fmt = format_of(x.dtype)
    bits = x.view(fmt.unsigned).astype(np.uint64)
    magnitude = (bits & np.uint64(fmt.magnitude)).astype(np.int64)
    return np.where(bits > np.uint64(fmt.magnitude), -magnitude, magnitude)
