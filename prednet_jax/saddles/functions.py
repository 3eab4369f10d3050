"""Functions whose saddles are known in closed form.

Every function is written in coordinates in which its escape directions are coordinate
axes or simple combinations of them. The octopus is a chain of saddles; identical units
have a saddle of training, at which the second of two equal units is still to be learnt
(Fukumizu & Amari 2000, Neural Networks 13:317).
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from prednet_jax.errors import UserError, check_int, positive

Float64 = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SaddleFunction:
    """A function with a saddle that is known in closed form.

    Attributes:
      name: name in tables.
      fn: maps x [dim] to a scalar of the same type; jit, grad and vmap apply.
      saddle: [dim], the saddle that runs from `start` approach.
      eigenvalues: [dim] of the Hessian there, rising.
      escape: [m, dim] orthonormal rows that span the eigenspace of the lowest.
      exit_value: a run whose value is below this has passed every saddle.
      smoothness: largest curvature on the way; it sets the learning rate.
      start: draws a start [dim] whose projection on `escape` is exactly zero. In exact
        arithmetic gradient descent from there never leaves `saddle`.
      radius: distance along `escape` at which a run has left `saddle`.
    """

    name: str
    fn: Callable[[jax.Array], jax.Array]
    saddle: Float64
    eigenvalues: Float64
    escape: Float64
    exit_value: float
    smoothness: float
    start: Callable[[np.random.Generator], Float64]
    radius: float = 0.1

    @property
    def curvature(self) -> float:
        """Size of the lowest eigenvalue, which is negative."""
        return -float(self.eigenvalues[0])

    @property
    def dim(self) -> int:
        """Number of variables."""
        return self.saddle.size


# The usual parameters of the octopus, and the drop nu from a saddle to the next.
_TAU, _SMOOTHNESS, _GAMMA = math.e, 3.0, 1.0
_NU = (37 * _SMOOTHNESS + 13 * _GAMMA) * _TAU**2 / 6


def octopus(
    dim: int, tau: float = _TAU, smoothness: float = _SMOOTHNESS, gamma: float = _GAMMA
) -> Callable[[jax.Array], jax.Array]:
    """Returns the octopus function: a chain of saddles, met one by one.

    Coordinates grow one after the other from 0 to 4 tau. Let i - 1 be the number of
    leading coordinates with |x_j| >= 2 tau; then coordinate i is the one that grows
    now, and the value is::

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
    gradient descent, where all later coordinates stay within tau; elsewhere it may
    jump, with finite gradients everywhere. tau is a quarter of the distance between
    stationary points, L (`smoothness`) half the curvature of the stable directions, and
    gamma half the size of the negative one. x [dim] and the value: float32 or float64.

    References:
      Du, Jin, Lee, Jordan, Poczos & Singh 2017, "Gradient descent can take exponential
      time to escape saddle points", arXiv 1705.10412, appendix.

    Example:
        >>> from jax import numpy as jnp
        >>> from prednet_jax import saddles
        >>> function = saddles.octopus(3)
        >>> function(jnp.zeros(3)).shape
        ()
    """
    check_int("dim", dim, 1)
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
        beyond_tau = growing & (a > tau)
        # A coordinate that is still to grow has the weight L; the next one may have g2.
        handed_on = jnp.where(beyond_tau, g2(a), L)[:-1]
        weight = jnp.concatenate([jnp.full((1,), L, x.dtype), handed_on])
        stable = weight * x**2
        active = jnp.where(beyond_tau, g1(a), -gamma * x**2)
        passed = L * (a - 4 * tau) ** 2 - nu
        return jnp.sum(jnp.where(grown, passed, jnp.where(growing, active, stable)))

    return fn


def octopus_function(dim: int = 10) -> SaddleFunction:
    """Returns the octopus of `dim` >= 2 variables; runs start at its first saddle.

    Saddle k has k coordinates at 4 tau, with either sign, and the others at 0, one
    eigenvalue -2 gamma and all others 2 L, and the value -k nu. For k = dim it is a
    minimum with all eigenvalues 2 L.
    """

    def start(rng: np.random.Generator) -> Float64:
        x = rng.uniform(-_TAU, _TAU, dim)
        x[0] = 0.0
        return x

    return SaddleFunction(
        name="octopus",
        fn=octopus(dim),
        saddle=np.zeros(dim),
        eigenvalues=np.append(-2 * _GAMMA, np.full(dim - 1, 2 * _SMOOTHNESS)),
        escape=np.eye(dim)[:1],
        radius=_TAU,
        exit_value=-(dim - 0.5) * _NU,
        smoothness=2 * _SMOOTHNESS,
        start=start,
    )


def quadratic_quartic() -> SaddleFunction:
    """Computes x^2/2 + y^4/4 - y^2/2, a strict saddle at 0 between minima (0, +-1).

    It is the simplest function on which a zero component stays zero for ever. Up to the
    radius the quartic term changes the escape time by less than 1 % of a step.
    """
    return SaddleFunction(
        name="quadratic_quartic",
        fn=lambda x: x[0] ** 2 / 2 + x[1] ** 4 / 4 - x[1] ** 2 / 2,
        saddle=np.zeros(2),
        eigenvalues=np.array([-1.0, 1.0]),
        escape=np.eye(2)[1:],
        exit_value=-0.125,
        smoothness=2.0,
        start=lambda rng: np.array([rng.uniform(0.5, 1.0), 0.0]),
    )


def identical_units(pairs: int = 1) -> SaddleFunction:
    """Returns a network x -> V^T W x whose hidden units all start identical.

    The loss is |(V^T W) X - diag(s) X|^2 / 2 with W, V [units, n], units = 2 pairs, s =
    (2, 1) and white inputs X [n, 96], X X^T = 1, so that every weight gradient is a sum
    over the inputs. Identical units have identical gradients. They learn rank one
    together and stop at w = v = sqrt(s_1/units) e_1.

    Directions q (x) e_i with q orthogonal to (1 .. 1) separate the units. Along them
    the eigenvalues are s_i and -s_i for i >= 2, and 0 twice, each `units` - 1 times.
    Along directions that keep the units identical they are 2 s_1, 0 and s_1 +- s_i.

    Only noise that differs between units leaves this saddle. Units k and k + pairs lie
    `pairs` >= 1 rows apart: with an order per tile of so many rows their noise differs.
    """
    s = np.array([2.0, 1.0])
    n, units = s.size, 2 * pairs
    # X is fixed and dense: orthonormal rows.
    inputs = np.linalg.qr(np.random.default_rng(0).normal(size=(96, n)))[0].T

    def fn(x: jax.Array) -> jax.Array:
        w, v = x.reshape(2, units, n)
        data = jnp.asarray(inputs, x.dtype)
        wanted = jnp.asarray(s[:, None] * inputs, x.dtype)
        return jnp.sum((v.T @ (w @ data) - wanted) ** 2) / 2

    alike = math.sqrt(s[0] / units)
    together = [2 * s[0], 0.0, s[0] + s[1], s[0] - s[1]]
    difference_modes = np.tile([0.0, 0.0, s[1], -s[1]], units - 1)
    # q: an orthonormal basis of the vectors [units] whose sum is zero.
    contrasts = np.linalg.svd(np.ones((1, units)))[2][1:]
    escape = np.zeros((units - 1, 2, units, n))
    escape[:, :, :, 1] = contrasts[:, None] / math.sqrt(2)

    def start(rng: np.random.Generator) -> Float64:
        # w = v for all units; otherwise they would differ in scale at the saddle.
        unit = alike * np.append(rng.uniform(0.5, 1.0), rng.uniform(-0.3, 0.3, n - 1))
        return np.tile(unit, 2 * units)

    rest = float(s[1] ** 2) / 2
    return SaddleFunction(
        name="identical_units",
        fn=fn,
        saddle=np.tile(alike * np.eye(n)[0], 2 * units),
        eigenvalues=np.sort(np.concatenate([together, difference_modes])),
        escape=escape.reshape(units - 1, -1),
        exit_value=rest / 2,
        smoothness=2 * float(s[0]),
        start=start,
    )


#: Constructor of each test function with its usual parameters, by name.
CATALOGUE: dict[str, Callable[[], SaddleFunction]] = {
    "octopus": octopus_function,
    "quadratic_quartic": quadratic_quartic,
    "identical_units": identical_units,
}
