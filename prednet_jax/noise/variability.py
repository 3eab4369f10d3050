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

    An element that is zero in both adds nothing; one that is zero in `a` alone adds 1,
    its difference relative to `b`. NaN where only one of the two is NaN.

    Args:
        a: pytree of arrays.
        b: pytree of the same structure and shapes.

    Returns:
        The mean over all elements, 0 or more.

    Raises:
        NoiseError: when structures or shapes differ, or there is no element.
    """
    total, count = 0.0, 0
    for x, y in _pairs(a, b):
        difference = np.abs(_difference(x, y))
        scale = np.where(x == 0, np.abs(y), np.abs(x))
        # Where both are zero, or the same infinity, there is no difference to divide.
        ratio = np.divide(
            difference, scale, out=np.zeros_like(difference), where=difference != 0
        )
        total += float(ratio.sum())
        count += x.size
    return total / count


def v_c(a: Any, b: Any) -> float:
    """Fraction of elements that differ in value: 0 is repeatable, 1 none alike.

    NaN equals NaN, and -0 equals 0. Arguments and errors as for `v_ermv`.
    """
    differing, count = 0, 0
    for x, y in _pairs(a, b):
        differing += int(np.count_nonzero(~_same(x, y)))
        count += x.size
    return differing / count


def l2_distance(a: Any, b: Any) -> float:
    """Root of the sum of (A - B)^2. Arguments and errors as for `v_ermv`."""
    total = 0.0
    for x, y in _pairs(a, b):
        total += float(np.sum(np.square(_difference(x, y))))
    return float(np.sqrt(total))


def spread_and_shift(reference: Any, samples: Sequence[Any]) -> tuple[float, float]:
    """How far noisy values scatter, and how far their mean is from the clean value.

    Args:
        reference: pytree of arrays, without noise.
        samples: two or more of the same structure and shapes, noise drawn anew in each.

    Returns:
        The root mean square distance (L2) of the samples from their expected value, as
        estimated from their mean, and the distance of that mean from the reference;
        both in units of the norm of the reference.

    Raises:
        NoiseError: with fewer than two samples or a reference of zeros, and as for
            `v_ermv`.
    """
    n = len(samples)
    if n < 2:
        raise NoiseError(f"{n} samples: expected two or more")
    wide = [jax.tree.map(lambda x: np.asarray(x, np.float64), s) for s in samples]
    mean = jax.tree.map(lambda *xs: np.mean(xs, axis=0), *wide)
    norm = l2_distance(reference, jax.tree.map(np.zeros_like, mean))
    if norm == 0:
        raise NoiseError("a reference of zeros: expected one with a norm")
    squares = sum(l2_distance(mean, sample) ** 2 for sample in wide)
    return float(np.sqrt(squares / (n - 1)) / norm), l2_distance(reference, mean) / norm


def churn(
    a: Any, b: Any, *, decide: Callable[[np.ndarray], Any] | None = None
) -> float:
    """Fraction of decisions on which two sets of predictions disagree.

    Args:
        a: pytree of predictions.
        b: likewise, of the same structure and shapes.
        decide: from an array of predictions to an array of decisions, for example
            `lambda p: np.rint(255 * p)`, the shade of a pixel. None: integers and
            booleans are decisions; of floats `[..., classes]` the argmax is.

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
    """Number of floating-point numbers between A and B, for every element.

    Args:
        a: pytree of floating-point arrays.
        b: likewise, of the same structure, shapes and types.

    Returns:
        int64 [n], of all leaves in order. -0 and 0 are one number; a distance that
        involves a NaN is the largest int64 unless both are NaN.
    """
    found = []
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.dtype(x.dtype) != jnp.dtype(y.dtype) or np.shape(x) != np.shape(y):
            raise NoiseError(
                f"arrays of {x.dtype} {np.shape(x)} and {y.dtype} {np.shape(y)}: "
                "expected the same type and shape"
            )
        p, q = (_ordered(np.asarray(v)) for v in (x, y))
        wide, other = (np.asarray(v, np.float64) for v in (x, y))
        # Differences of numbers of opposite signs may exceed int64 in float64 alone.
        distance = np.abs(p - q)
        broken = ~_same(wide, other) & (np.isnan(wide) | np.isnan(other))
        distance = np.where(_same(wide, other), 0, distance)
        found.append(np.where(broken, np.iinfo(np.int64).max, distance).ravel())
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def ulp_histogram(distances: np.ndarray) -> dict[str, int]:
    """How many distances are 0, 1, 2, 3-4, 5-8, ... ulps; keys in that order."""
    names, counts = [], []
    low = -1
    for high in ULP_EDGES:
        names.append(str(high) if high <= low + 1 else f"{low + 1}-{high}")
        counts.append(int(np.count_nonzero((distances > low) & (distances <= high))))
        low = high
    names.append(f">{low}")
    counts.append(int(np.count_nonzero(distances > low)))
    return dict(zip(names, counts, strict=True))


def _pairs(a: Any, b: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The leaves of both trees as float64 arrays, checked."""
    left: Any = jax.tree.structure(a)
    right: Any = jax.tree.structure(b)
    if left != right:
        raise NoiseError(f"trees {left} and {right}: expected the same structure")
    pairs = [
        (np.asarray(x, np.float64), np.asarray(y, np.float64))
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    ]
    for x, y in pairs:
        if x.shape != y.shape:
            raise NoiseError(f"shapes {x.shape} and {y.shape}: expected the same")
    if not sum(x.size for x, _ in pairs):
        raise NoiseError("trees without elements: expected at least one")
    return iter(pairs)


def _same(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x == y) | (np.isnan(x) & np.isnan(y))


def _difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`x - y`, and 0 where both are the same infinity or NaN."""
    return np.subtract(x, y, out=np.zeros_like(x), where=~_same(x, y))


def _ordered(x: np.ndarray) -> np.ndarray:
    """Integers in the order of the numbers, one apart where those are neighbours."""
    fmt = format_of(x.dtype)
    bits = x.view(fmt.unsigned).astype(np.uint64)
    magnitude = (bits & np.uint64(fmt.magnitude)).astype(np.int64)
    return np.where(bits > np.uint64(fmt.magnitude), -magnitude, magnitude)
