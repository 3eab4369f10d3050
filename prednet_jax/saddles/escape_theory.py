r"""Computes the updates that gradient noise saves at a strict saddle (linear regime).

Along a unit direction of curvature -gamma, the projection z of the weights' distance
from the saddle follows, under all the optimisers here,

    z' = z + kappa gamma z + beta (z - z_before) - kappa xi

    gradient descent   beta = 0,   kappa = eta
    heavy ball         beta,       kappa = eta
    Adam, P frozen     beta = b1,  kappa = (1 - b1) eta, in y = P^{1/2} w with
                       P = diag(sqrt(v) + eps), gamma = -lambda_min(P^-1/2 H P^-1/2)

with eta the learning rate and xi the gradient's noise along the direction, of standard
deviation sigma per update. The recursion has two modes, which are multiplied by r > 1
and s = beta / r per update. With x = kappa gamma and
D = sqrt((1 - beta)^2 + 2 (1 + beta) x + x^2)

    r - 1 = (x + x (2 (1 + beta) + x) / (D + 1 - beta)) / 2,      r - s = D,

which loses no digits to cancellation. A run at z whose last step was d = z - z_before
grows like one that starts at rest from c. The noise of all updates acts like a further
start, in the median of size c_sigma, and the two add in squares:

    c       = |z + d beta / (r - beta)|
    c_sigma = 0.674 kappa sigma r / ((r - beta) sqrt(r^2 - 1))

So noise saves ln(sqrt(c^2 + c_sigma^2) / c) / ln r updates in the median: at least one
where c <= c_sigma / sqrt(r^2 - 1).

All functions take and return plain floats; math.inf means "never", and an argument out
of range is a UserError.

References:
    O'Neill & Wright 2019, Math. Program. 176:403 (heavy ball); Jin et al. 2017, arXiv
    1703.00887 (noise in gradient descent); Cohen et al. 2022, arXiv 2207.14484 (Adam as
    preconditioned averaged heavy ball). c_sigma is derived here.
"""

import math
from typing import NamedTuple

from prednet_jax.errors import decay, not_negative, positive

#: Median of the size of a standard normal variable.
MEDIAN_NORMAL = 0.6744897501960817


class Growth(NamedTuple):
    """The growth along one escape direction: r - 1, r - s, beta, kappa."""

    excess: float
    gap: float
    momentum: float
    kick: float

    @property
    def fast(self) -> float:
        """r, the factor per update of the growing mode."""
        return 1.0 + self.excess

    @property
    def ahead(self) -> float:
        """The difference r - beta."""
        return (1.0 - self.momentum) + self.excess

    @property
    def excess_of_square(self) -> float:
        """r^2 - 1."""
        return self.excess * (2.0 + self.excess)


def growth(
    gamma: float, *, learning_rate: float, momentum: float = 0.0, averaged: bool = False
) -> Growth:
    """Returns the growth of the projection under an optimiser.

    `momentum` is beta of heavy ball or b1 of Adam. With `averaged` the momentum is a
    running mean, as in Adam, so that kappa is (1 - beta) eta.
    """
    positive("gamma", gamma)
    positive("learning_rate", learning_rate)
    decay("momentum", momentum)
    damping = 1.0 - momentum
    kick = learning_rate * damping if averaged else learning_rate
    x = kick * gamma
    bend = x * (2.0 * (1.0 + momentum) + x)
    gap = math.sqrt(damping * damping + bend)
    return Growth((x + bend / (gap + damping)) / 2.0, gap, momentum, kick)


def growing_projection(projection: float, step: float, growth: Growth) -> float:
    """Computes c, the start at rest with the same growing mode as z after a step d."""
    return abs(projection + step * growth.momentum / growth.ahead)


def noise_projection(sigma: float, growth: Growth) -> float:
    """Computes c_sigma, the start at rest equal to all noise in the median."""
    not_negative("sigma", sigma)
    gain = growth.fast / (growth.ahead * math.sqrt(growth.excess_of_square))
    return MEDIAN_NORMAL * growth.kick * sigma * gain


def updates_saved(projection: float, noise: float, growth: Growth) -> float:
    """Computes by how many updates noise of c_sigma advances the median escape."""
    not_negative("projection", projection)
    not_negative("noise", noise)
    if projection == 0.0:
        return math.inf if noise > 0.0 else 0.0
    gained = 0.5 * math.log1p((noise / projection) ** 2)
    return gained / math.log1p(growth.excess)


def useful_projection(noise: float, growth: Growth) -> float:
    """Returns the largest c at which noise of c_sigma = `noise` saves an update."""
    return noise / math.sqrt(growth.excess_of_square)
