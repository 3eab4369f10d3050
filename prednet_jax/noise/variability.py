"""Measures the distance of two runs of a computation: pytrees, pooled in float64.

    V_ermv = mean |A - B| / |A|          elementwise relative mean variation
    V_c    = fraction of elements with A != B          count variability
    L2     = |A - B|_2

V_ermv and V_c are defined by S. Shanmugavelu et al., "Impacts of floating-point
non-associativity on reproducibility for HPC and deep learning applications" (SC
workshops 2024, arXiv 2408.05148, eqs. 2, 3). Trees of different structures or shapes
raise a NoiseError.
"""

import math

import numpy as np

from prednet_jax.noise.leaves import (
    check_same_structure,
    equal_elements,
    rms,
    subtract,
    wide_leaves,
)
from prednet_jax.noise.types import PyTree


def v_ermv(a: PyTree, b: PyTree) -> float:
    """Returns the mean of |A - B| / |A|; it is not symmetric, `a` is the reference.

    An element that is zero in both adds nothing; one that is zero in `a` alone adds 1.
    An element that is NaN in only one of the two gives NaN.
    """
    x, y = _pooled(a, b)
    gap = np.abs(subtract(x, y))
    scale = np.where(x == 0, np.abs(y), np.abs(x))
    # Where both are zero, or the same infinity, there is no difference to divide.
    return float(np.divide(gap, scale, out=np.zeros_like(gap), where=gap != 0).mean())


def v_c(a: PyTree, b: PyTree) -> float:
    """Returns the fraction of elements that differ in value (`equal_elements`)."""
    return float(np.mean(~equal_elements(*_pooled(a, b))))


def l2_distance(a: PyTree, b: PyTree) -> float:
    """Returns the root of the sum of |A - B|^2."""
    gap = subtract(*_pooled(a, b))
    return rms(gap) * math.sqrt(gap.size)


def _pooled(a: PyTree, b: PyTree) -> list[np.ndarray]:
    """Returns all elements of each tree, after checks, as two arrays of [n]."""
    check_same_structure("one", a, "the other", b)
    return [
        np.hstack([np.zeros(0), *map(np.ravel, wide_leaves(tree))]) for tree in (a, b)
    ]
