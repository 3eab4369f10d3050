"""How far two runs of the same computation are apart: pytrees, pooled in float64.

    V_ermv = mean |A - B| / |A|          elementwise relative mean variation
    V_c    = fraction of elements with A != B          count variability
    L2     = |A - B|_2

V_ermv and V_c are those of S. Shanmugavelu et al., "Impacts of floating-point
non-associativity on reproducibility for HPC and deep learning applications" (SC
workshops 2024, arXiv 2408.05148, eqs. 2 and 3). Each raises NoiseError where structures
or shapes differ.
"""

from typing import Any

import jax
import numpy as np

from prednet_jax.noise.errors import NoiseError


def v_ermv(a: Any, b: Any) -> float:
    """Mean of |A - B| / |A|; not symmetric, `a` is the reference.

    An element that is zero in both adds nothing; one that is zero in `a` alone adds 1.
    NaN where only one of the two is NaN.
    """
    x, y = _pooled(a, b)
    far = np.abs(difference(x, y))
    scale = np.where(x == 0, np.abs(y), np.abs(x))
    # Where both are zero, or the same infinity, there is no difference to divide.
    return float(np.divide(far, scale, out=np.zeros_like(far), where=far != 0).mean())


def v_c(a: Any, b: Any) -> float:
    """Fraction of elements that differ in value; NaN equals NaN, and -0 equals 0."""
    return float(np.mean(~_same(*_pooled(a, b))))


def l2_distance(a: Any, b: Any) -> float:
    """Root of the sum of (A - B)^2."""
    return float(np.sqrt(np.sum(np.square(difference(*_pooled(a, b))))))


def difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`x - y`; 0 where both are NaN or the same infinity."""
    with np.errstate(invalid="ignore"):
        return np.where(_same(x, y), 0, np.subtract(x, y))


def _same(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x == y) | (np.isnan(x) & np.isnan(y))


def _pooled(a: Any, b: Any) -> list[np.ndarray]:
    """All elements of both trees in float64, checked: two of [n]."""
    leaves = [jax.tree.leaves(tree) for tree in (a, b)]
    left, right = (
        (jax.tree.structure(tree), [np.shape(x) for x in of])
        for tree, of in zip((a, b), leaves, strict=True)
    )
    if left != right:
        raise NoiseError(f"{left} and {right}: expected the same structure and shapes")
    return [
        np.hstack([np.zeros(0), *(np.asarray(x, float).ravel() for x in of)])
        for of in leaves
    ]
