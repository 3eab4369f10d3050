r"""What the lowest curvature means for the optimiser: does noise save any updates?

Along a unit direction u of curvature -gamma, with z the projection of the weights
measured from the stationary point of the local quadratic, all the optimisers here are

    z' = A z - beta z_before - kappa xi,    A = 1 + beta + kappa gamma,

    gradient descent   beta = 0,   kappa = eta
    heavy ball         beta,       kappa = eta
    Adam, P frozen     beta = b1,  kappa = (1 - b1) eta, in y = P^{1/2} w

with xi the noise of the gradient along u, of standard deviation sigma. With r the
larger root of r^2 - A r + beta and s the smaller one, the growing mode starts from

    c       = r (z - s z_before) / (r - beta)                 (z itself when at rest)
    c_sigma = 0.674 kappa sigma / ((r - beta) sqrt(1 - r^-2))     (median of |noise|)

and noise saves ln(sqrt(c^2 + c_sigma^2) / c) / ln r updates: at least one only where
c <= c_sigma / sqrt(r^2 - 1), which for slow escapes is c_sigma / sqrt(2 ln r).

For beta = 0, c_sigma is the (0.67 eta sigma)^2 / ((1 + eta gamma)^2 - 1) of perturbed
gradient descent; the impulse response of the recursion gives the rest. z comes from
the gradient: in a quadratic, u'g = -gamma z.

References:
    Du et al. 2017, arXiv 1705.10412; Jin et al. 2017, arXiv 1703.00887; Polyak 1964;
    Cohen et al. 2022, arXiv 2207.14484 (Adam as preconditioned averaged heavy ball).
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from prednet_jax.curvature.hvp import PyTree

# Median of |x| for a standard normal x.
_MEDIAN = 0.6744897501960817


class Growth(NamedTuple):
    """Growth of the projection on one escape direction.

    Attributes:
        fast: r, the factor an update of the growing mode, above 1.
        slow: The factor of the decaying mode.
        momentum: beta.
        kick: kappa, the change of the projection for a unit gradient in one update.
    """

    fast: float
    slow: float
    momentum: float
    kick: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class EscapeState:
    """Where the optimiser stands on one escape direction; coordinates of `scale`.

    Attributes:
        gamma: Minus the curvature along the direction, positive.
        displacement: z, the projection of the distance from the stationary point of
            the local quadratic model.
        step: Projection of the last update of the weights.
        step_cosine: The same over the length of that update, in [-1, 1].
        noise_gain: Standard deviation along the direction of isotropic gradient noise
            of unit standard deviation per weight.
    """

    gamma: float
    displacement: float
    step: float
    step_cosine: float
    noise_gain: float

    def projection(self, growth: Growth) -> float:
        """Computes c, the start of the growing mode, with the momentum's share."""
        r, s, beta, _ = growth
        before = self.displacement - self.step
        return abs(r * (self.displacement - s * before) / (r - beta))


def growth(
    gamma: float,
    *,
    learning_rate: float,
    momentum: float = 0.0,
    averaged: bool = False,
) -> Growth:
    """Computes the growth of the projection for an optimiser.

    Args:
        gamma: Minus the curvature along the direction, positive.
        learning_rate: eta, positive.
        momentum: beta of heavy ball or b1 of Adam, in [0, 1).
        averaged: Whether the momentum is a running mean, as Adam's: kappa is then
            (1 - beta) eta.

    Returns:
        The two roots, the momentum and kappa.

    Raises:
        ValueError: If an argument is outside its range, quoting it.
    """
    for name, value in (("gamma", gamma), ("learning_rate", learning_rate)):
        if not 0.0 < value < math.inf:
            raise ValueError(f"{name}={value!r}: expected a positive number")
    if not 0.0 <= momentum < 1.0:
        raise ValueError(f"momentum={momentum!r}: expected a number in [0, 1)")
    kick = learning_rate * (1.0 - momentum) if averaged else learning_rate
    a = 1.0 + momentum + kick * gamma
    # (1 - beta)^2 + ..., written so that nothing cancels for small kappa gamma.
    gap = (1.0 - momentum) ** 2
    root = math.sqrt(gap + kick * gamma * (2.0 * (1.0 + momentum) + kick * gamma))
    fast = (a + root) / 2.0
    return Growth(fast=fast, slow=momentum / fast, momentum=momentum, kick=kick)


def noise_projection(sigma: float, growth: Growth) -> float:
    """Computes c_sigma, the median projection that gradient noise amounts to.

    Args:
        sigma: Standard deviation of the gradient's noise along the direction.
        growth: From `growth`.

    Returns:
        c_sigma, to be added in squares to c.
    """
    r = growth.fast
    return (
        _MEDIAN
        * growth.kick
        * sigma
        / ((r - growth.momentum) * math.sqrt((1.0 - 1.0 / r) * (1.0 + 1.0 / r)))
    )


def updates_saved(projection: float, c_sigma: float, growth: Growth) -> float:
    """Predicts how many updates earlier noise lets the optimiser leave (median).

    Args:
        projection: c without noise, not negative.
        c_sigma: From `noise_projection`.
        growth: From `growth`.

    Returns:
        Updates saved, infinite where c is 0 (no escape without noise).
    """
    if projection == 0.0:
        return math.inf if c_sigma > 0.0 else 0.0
    return 0.5 * math.log1p((c_sigma / projection) ** 2) / math.log(growth.fast)


def useful_projection(c_sigma: float, growth: Growth) -> float:
    """Returns the c below which noise saves an update or more."""
    r = growth.fast
    return c_sigma / math.sqrt((r - 1.0) * (r + 1.0))


def escape_state(
    gradient: PyTree,
    step: PyTree,
    vector: PyTree,
    value: float,
    *,
    scale: PyTree | None = None,
) -> EscapeState:
    """Projects gradient and last update on the direction of lowest curvature.

    Args:
        gradient: Gradient of the loss at the weights, a pytree like the weights.
        step: The last change of the weights made by the optimiser.
        vector: Unit escape direction u, in the coordinates of `scale`.
        value: Its curvature, negative.
        scale: None or P, the preconditioner that u belongs to.

    Returns:
        The state along u.

    Raises:
        ValueError: If `value` is not negative: there is no escape direction then.
    """
    if not value < 0.0:
        raise ValueError(f"value={value!r}: expected a negative curvature")
    u, g, d = (ravel_pytree(tree)[0] for tree in (vector, gradient, step))
    root = (
        jnp.ones_like(u)
        if scale is None
        else jnp.sqrt(ravel_pytree(scale)[0].astype(u.dtype))
    )
    along, length = jnp.vdot(u, root * d), jnp.linalg.norm(root * d)
    return EscapeState(
        gamma=-value,
        displacement=float(jnp.vdot(u, g / root)) / value,
        step=float(along),
        step_cosine=_ratio(along, length),
        noise_gain=float(jnp.linalg.norm(u / root)),
    )


def _ratio(part: jax.Array, whole: jax.Array) -> float:
    return float(part) / float(whole) if float(whole) > 0.0 else 0.0
