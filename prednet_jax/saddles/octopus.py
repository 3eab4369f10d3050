"""The octopus function: a chain of saddles, which gradient descent meets one by one.

Du, Jin, Lee, Jordan, Poczos & Singh 2017, "Gradient descent can take exponential time
to escape saddle points", arXiv 1705.10412, appendix. Coordinates grow one after the
other from 0 to 4 tau. Let i - 1 be the number of leading coordinates with
|x_j| >= 2 tau; then coordinate i is the one that grows now, and the value is

    |x_i| <= tau:  sum_{j<i} L (|x_j| - 4 tau)^2 - gamma x_i^2
                   + sum_{j>i} L x_j^2 - (i - 1) nu
    |x_i| >= tau:  sum_{j<i} L (|x_j| - 4 tau)^2 + g1(|x_i|) + g2(|x_i|) x_{i+1}^2
                   + sum_{j>i+1} L x_j^2 - (i - 1) nu
    i > dim:       sum_j L (|x_j| - 4 tau)^2 - dim nu

    g1(x) = -gamma x^2 + (10 gamma - 14 L)/(3 tau) (x - tau)^3
            + (5 L - 3 gamma)/(2 tau^2) (x - tau)^4
    g2(x) = -gamma - (L + gamma) (10 s^3 + 15 s^4 + 6 s^5),   s = (x - 2 tau)/tau
    nu    = 4 L tau^2 - g1(2 tau) = (37 L + 13 gamma) tau^2 / 6

For i = dim there is no g2 term. g1 and g2 make the function C^2 along the path of
gradient descent, where all later coordinates stay within tau; elsewhere it may jump.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from prednet_jax.errors import UserError, positive, whole
from prednet_jax.saddles.base import (
    Float64,
    SaddleFunction,
    stationary,
    unit,
)

# The usual parameters.
_TAU, _SMOOTHNESS, _GAMMA = math.e, 3.0, 1.0


def octopus(
    dim: int, tau: float = _TAU, smoothness: float = _SMOOTHNESS, gamma: float = _GAMMA
) -> Callable[[jax.Array], jax.Array]:
    """The octopus function, in axis-aligned form.

    Args:
      dim: number of variables, >= 1.
      tau: a quarter of the distance between stationary points, > 0.
      smoothness: L, half the curvature of the stable directions, > 0.
      gamma: half the size of the negative curvature, > 0.

    Returns:
      x [dim], float32 or float64 -> scalar of the same type. Gradients are finite
      everywhere.

    Raises:
      UserError: an argument out of range; when called, x of another shape or type.
    """
    whole("dim", dim, 1)
    for name, value in (("tau", tau), ("smoothness", smoothness), ("gamma", gamma)):
        positive(name, value)
    L = smoothness
    nu = (37 * L + 13 * gamma) * tau**2 / 6

    def g1(a: jax.Array) -> jax.Array:
        b = a - tau
        cubic = (10 * gamma - 14 * L) / (3 * tau)
        quartic = (5 * L - 3 * gamma) / (2 * tau**2)
        return -gamma * a**2 + cubic * b**3 + quartic * b**4

    def g2(a: jax.Array) -> jax.Array:
        s = (a - 2 * tau) / tau
        return -gamma - (L + gamma) * (10 * s**3 + 15 * s**4 + 6 * s**5)

    def fn(x: jax.Array) -> jax.Array:
        if x.shape != (dim,) or not jnp.issubdtype(x.dtype, jnp.floating):
            raise UserError(
                f"x is {x.dtype}{list(x.shape)}: expected floating point of shape "
                f"[{dim}]"
            )
        a = jnp.abs(x)
        # The running count of coordinates below 2 tau is 0 at those that have grown,
        # and 1 at the one that grows now.
        short = (a < 2 * tau).astype(jnp.int32)
        count = jnp.cumsum(short)
        grown = count == 0
        growing = (count == 1) & (short == 1)
        far = growing & (a > tau)
        # A coordinate that is still to grow has the weight L; the next one may have g2.
        handed_on = jnp.where(far, g2(a), L)[:-1]
        weight = jnp.concatenate([jnp.full((1,), L, x.dtype), handed_on])
        stable = weight * x**2
        active = jnp.where(far, g1(a), -gamma * x**2)
        passed = L * (a - 4 * tau) ** 2 - nu
        return jnp.sum(jnp.where(grown, passed, jnp.where(growing, active, stable)))

    return fn


def octopus_function(dim: int = 10) -> SaddleFunction:
    """The octopus with its stationary points; runs start at its first saddle.

    Saddle k has k coordinates at 4 tau and the others at 0, one eigenvalue -2 gamma
    and all others 2 L, and the value -k nu. For k = dim it is a minimum with all
    eigenvalues 2 L. The signs of the coordinates are free; `points` has those with
    plus signs.

    Args:
      dim: number of variables, >= 2.

    Raises:
      UserError: dim below 2.
    """
    whole("dim", dim, 2)
    tau, smoothness, gamma = _TAU, _SMOOTHNESS, _GAMMA
    nu = (37 * smoothness + 13 * gamma) * tau**2 / 6
    points = []
    for k in range(dim + 1):
        spectrum = np.full(dim, 2 * smoothness)
        if k < dim:
            spectrum[k] = -2 * gamma
        grown = np.where(np.arange(dim) < k, 4 * tau, 0.0)
        points.append(stationary(grown, -k * nu, spectrum))

    def start(rng: np.random.Generator) -> Float64:
        x = rng.uniform(-tau, tau, dim)
        x[0] = 0.0
        return x

    return SaddleFunction(
        name="octopus",
        fn=octopus(dim),
        points=tuple(points),
        saddle=np.zeros(dim),
        escape=unit(dim, 0),
        curvature=2 * gamma,
        radius=tau,
        exit_value=-(dim - 0.5) * nu,
        smoothness=2 * smoothness,
        start=start,
    )
