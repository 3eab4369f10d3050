r"""Escape times from a strict saddle, in the linear regime.

Along a unit direction of curvature -gamma, with z the projection of the weights on it,
measured from the saddle (the stationary point of the local quadratic), all the
optimisers here are

    z' = z + kappa gamma z + beta (z - z_before) - kappa xi

    gradient descent   beta = 0,   kappa = eta
    heavy ball         beta,       kappa = eta
    Adam, P frozen     beta = b1,  kappa = (1 - b1) eta, in y = P^{1/2} w with
                       P = diag(sqrt(v) + eps), gamma = -lambda_min(P^-1/2 H P^-1/2)

with eta the learning rate and xi the noise of the gradient along the direction, of
standard deviation sigma per update. The two modes grow by r > 1 and s = beta / r per
update; with x = kappa gamma and D = sqrt((1 - beta)^2 + 2 (1 + beta) x + x^2)

    r - 1 = (x + x (2 (1 + beta) + x) / (D + 1 - beta)) / 2,      r - s = D,

in which nothing cancels, however slow the escape. A run at z with the last step
d = z - z_before grows as one that starts at rest from c, and the noise of all updates
adds c_sigma, the median of its size over runs, in squares:

    c       = |z + d beta / (r - beta)|
    c_sigma = 0.674 kappa sigma r / ((r - beta) sqrt(r^2 - 1))
    t       = ln(delta (r - s) / (c (r - beta))) / ln r        until |z| reaches delta

so noise saves ln(sqrt(c^2 + c_sigma^2) / c) / ln r updates in the median: one or more
where c <= c_sigma / sqrt(r^2 - 1). A fresh Adam, which normalises the smallest gradient
to steps of eta, takes delta / eta whatever c is.

All functions take and give plain floats; math.inf means "never".

References:
    O'Neill & Wright 2019, Math. Program. 176:403 (heavy ball); Polyak 1964, USSR
    Comput. Math. 4:1; Du et al. 2017, arXiv 1705.10412; Jin et al. 2017, arXiv
    1703.00887 (noise in gradient descent); Cohen et al. 2022, arXiv 2207.14484 (Adam as
    preconditioned averaged heavy ball). c_sigma is the impulse response of the
    recursion, derived here.
"""

import math
from typing import NamedTuple

from prednet_jax.errors import UserError, decay, positive

#: Median of the size of a standard normal variable.
MEDIAN_NORMAL = 0.6744897501960817


class Growth(NamedTuple):
    """How the projection on one escape direction grows.

    Attributes:
        excess: r - 1, above 0.
        gap: r - s, above 0.
        momentum: beta.
        kick: kappa, the change of the projection for a unit gradient in one update.
    """

    excess: float
    gap: float
    momentum: float
    kick: float

    @property
    def fast(self) -> float:
        """r, the factor per update of the growing mode."""
        return 1.0 + self.excess

    @property
    def slow(self) -> float:
        """s, the factor per update of the decaying mode."""
        return self.momentum / self.fast

    @property
    def ahead(self) -> float:
        """R - beta."""
        return (1.0 - self.momentum) + self.excess

    @property
    def excess_of_square(self) -> float:
        """r^2 - 1."""
        return self.excess * (2.0 + self.excess)


def growth(
    gamma: float,
    *,
    learning_rate: float,
    momentum: float = 0.0,
    averaged: bool = False,
) -> Growth:
    """The growth of the projection under an optimiser.

    Args:
        gamma: minus the curvature along the direction, > 0.
        learning_rate: eta, > 0.
        momentum: beta of heavy ball or b1 of Adam, in [0, 1).
        averaged: whether the momentum is a running mean, as Adam's: kappa is then
            (1 - beta) eta.

    Raises:
        UserError: an argument is out of range.
    """
    positive("gamma", gamma)
    positive("learning_rate", learning_rate)
    decay("momentum", momentum)
    rest = 1.0 - momentum
    kick = learning_rate * rest if averaged else learning_rate
    x = kick * gamma
    bend = x * (2.0 * (1.0 + momentum) + x)
    gap = math.sqrt(rest * rest + bend)
    return Growth((x + bend / (gap + rest)) / 2.0, gap, momentum, kick)


def growing_projection(projection: float, step: float, growth: Growth) -> float:
    """c: the start at rest from which the growing mode would be the same.

    Args:
        projection: z.
        step: d, the change of z in the last update; 0 at rest.
        growth: from `growth`.
    """
    return abs(projection + step * growth.momentum / growth.ahead)


def noise_projection(sigma: float, growth: Growth) -> float:
    """c_sigma: the median size of the start that the noise of all updates amounts to.

    Args:
        sigma: standard deviation of the gradient's noise along the direction, >= 0.
        growth: from `growth`.

    Raises:
        UserError: sigma is negative.
    """
    _not_negative("sigma", sigma)
    gain = growth.fast / (growth.ahead * math.sqrt(growth.excess_of_square))
    return MEDIAN_NORMAL * growth.kick * sigma * gain


def escape_time(
    projection: float,
    radius: float,
    growth: Growth,
    *,
    step: float = 0.0,
    noise: float = 0.0,
) -> float:
    """Updates until the projection reaches `radius`, in the median over the noise.

    Args:
        projection: z.
        radius: delta, > 0.
        growth: from `growth`.
        step: as in `growing_projection`.
        noise: c_sigma, from `noise_projection`.

    Returns:
        Updates, not rounded: the run is first outside at the next whole one. 0 where it
        starts outside, inf where neither projection nor noise is there to grow.

    Raises:
        UserError: an argument is out of range.
    """
    positive("radius", radius)
    _not_negative("noise", noise)
    if abs(projection) >= radius:
        return 0.0
    start = math.hypot(growing_projection(projection, step, growth), noise)
    if start == 0.0:
        return math.inf
    ratio = radius / start * growth.gap / growth.ahead
    return max(0.0, math.log(ratio) / math.log1p(growth.excess))


def fresh_adam_time(radius: float, *, learning_rate: float) -> float:
    """Updates of Adam from its first one, delta / eta, whatever the projection.

    Holds while the gradient along the escape direction is well above Adam's eps, and
    for a projection that is not exactly zero.

    Raises:
        UserError: an argument is out of range.
    """
    positive("radius", radius)
    positive("learning_rate", learning_rate)
    return radius / learning_rate


def updates_saved(projection: float, noise: float, growth: Growth) -> float:
    """Updates earlier that noise lets the optimiser leave, in the median.

    Args:
        projection: c without noise, >= 0.
        noise: c_sigma, from `noise_projection`.
        growth: from `growth`.

    Returns:
        Updates saved; inf where c is 0: there is no escape without noise then.

    Raises:
        UserError: an argument is negative.
    """
    _not_negative("projection", projection)
    _not_negative("noise", noise)
    if projection == 0.0:
        return math.inf if noise > 0.0 else 0.0
    gained = 0.5 * math.log1p((noise / projection) ** 2)
    return gained / math.log1p(growth.excess)


def useful_projection(noise: float, growth: Growth) -> float:
    """The c below which noise of c_sigma = `noise` saves an update or more."""
    return noise / math.sqrt(growth.excess_of_square)


def _not_negative(name: str, value: float) -> None:
    if not value >= 0:
        raise UserError(f"{name}={value!r}: expected 0 or more")
