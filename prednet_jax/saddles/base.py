"""The type of a test function: its value, its stationary points, and where to start.

Every function is written in coordinates in which its escape directions are coordinate
axes or simple combinations of them (the form "aligned"). The form "rotated" is fn(Q x)
with an orthogonal Q. It is the same landscape, but rounding errors reach every
direction, and the matrix product has sums that noise can reorder.
"""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StationaryPoint:
    """A point of zero gradient and the spectrum of its Hessian.

    Attributes:
      point: [dim].
      value: value of the function there.
      eigenvalues: [dim] eigenvalues of the Hessian, ascending.
    """

    point: Float64
    value: float
    eigenvalues: Float64

    @property
    def kind(self) -> str:
        """One of "minimum", "strict saddle" (also a maximum) and "degenerate"."""
        if self.eigenvalues[0] < 0:
            return "strict saddle"
        return "minimum" if self.eigenvalues[0] > 0 else "degenerate"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SaddleFunction:
    """A function with a saddle that is known in closed form.

    Attributes:
      name: name in tables.
      fn: maps x [dim] to a scalar of the same type; jit, grad and vmap apply.
      points: stationary points, at least one of each kind that matters.
      saddle: [dim] the saddle that runs from `start` approach.
      escape: [m, dim] orthonormal rows that span the eigenspace of the lowest
        eigenvalue at `saddle`.
      curvature: size of that eigenvalue, gamma = |lambda_min|; 0 if the saddle is not
        strict.
      exit_value: a run whose value is below this has passed every saddle.
      smoothness: largest curvature on the way; it sets the learning rate.
      start: draws a start [dim] whose projection on `escape` is exactly zero. In exact
        arithmetic gradient descent from there never leaves `saddle`.
      radius: distance along `escape` at which a run has left `saddle`.
    """

    name: str
    fn: Callable[[jax.Array], jax.Array]
    points: tuple[StationaryPoint, ...]
    saddle: Float64
    escape: Float64
    curvature: float
    exit_value: float
    smoothness: float
    start: Callable[[np.random.Generator], Float64]
    radius: float = 0.1

    @property
    def dim(self) -> int:
        """Number of variables."""
        return self.saddle.size

    @property
    def strict(self) -> bool:
        """Whether `saddle` has negative curvature."""
        return self.curvature > 0


def random_rotation(dim: int, rng: np.random.Generator) -> Float64:
    """An orthogonal matrix [dim, dim], uniform (Mezzadri 2007, Not. AMS 54:592)."""
    q, r = np.linalg.qr(rng.normal(size=(dim, dim)))
    return q * np.sign(np.diag(r))


def stationary(point: Float64, value: float, eigenvalues: Float64) -> StationaryPoint:
    """A stationary point; its eigenvalues may be given in any order."""
    return StationaryPoint(
        point=np.asarray(point, np.float64),
        value=float(value),
        eigenvalues=np.sort(np.asarray(eigenvalues, np.float64)),
    )


def unit(dim: int, *indices: int) -> Float64:
    """The unit vectors e_i of the given indices, as rows [m, dim]."""
    return np.eye(dim)[list(indices)]
