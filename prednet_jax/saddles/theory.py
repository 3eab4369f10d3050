"""Escape times from a strict saddle in the linear regime.

Near a saddle the projection p on the escape direction, of curvature -gamma, obeys

    p_{t+1} = (1 + eta gamma) p_t + beta (p_t - p_{t-1}) + eta n_t

with noise n of standard deviation sigma a step; beta = 0 is gradient descent, else
heavy ball (Polyak 1964, USSR Comput. Math. 4:1). Its modes are

    r+- = (A +- sqrt(A^2 - 4 beta))/2,   A = 1 + beta + eta gamma

and from p_{-1} = p_0 = c the growing one has the amplitude c (r+ - beta)/(r+ - r-), so
p reaches delta at

    t = ln(delta (r+ - r-)/(c (r+ - beta)))/ln r+

(O'Neill & Wright 2019, Math. Program. 176:403). Adam with a frozen preconditioner P =
diag(sqrt(v) + eps) is heavy ball with beta = b1, learning rate (1 - b1) eta and gamma =
-lambda_min(P^-1/2 H P^-1/2). A fresh Adam normalises the smallest gradient to steps of
eta, so t ~ delta/eta whatever c is.

An impulse of noise eta n at step j >= 1 starts a mode of amplitude eta n r+^(1-j)/(r+ -
r-). Summed over all steps these act like an initial projection of standard deviation

    c_sigma = eta sigma r+/((r+ - beta) sqrt(r+^2 - 1))

(for gradient descent eta sigma/sqrt((1 + eta gamma)^2 - 1)), whose median size is
0.6745 c_sigma; the median escape replaces c by sqrt(c^2 + (0.6745 c_sigma)^2).

All functions take and give plain floats; math.inf means "never".
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from prednet_jax.saddles.base import positive

#: Median of the size of a standard normal variable.
MEDIAN_NORMAL = 0.6744897501960817


def escape_time(
    projection: float,
    radius: float,
    *,
    learning_rate: float,
    curvature: float,
    momentum: float = 0.0,
    noise: float = 0.0,
) -> float:
    """Steps until the projection reaches `radius`, in the median over the noise.

    Args:
      projection: c, its size at the start, >= 0.
      radius: delta, > 0.
      learning_rate: eta, > 0.
      curvature: gamma = |lambda_min|, > 0.
      momentum: beta of heavy ball, in [0, 1); 0 is gradient descent.
      noise: sigma, standard deviation of the gradient's noise along the escape
        direction, a step, >= 0.

    Returns:
      Steps, not rounded: the run is first outside at the next whole step. 0 where it
      starts outside, inf where neither projection nor noise is there to grow.

    Raises:
      ValueError: an argument out of range.
    """
    if not projection >= 0:
        raise ValueError(f"projection={projection}; 0 or more is needed")
    start = effective_projection(
        projection,
        learning_rate=learning_rate,
        curvature=curvature,
        momentum=momentum,
        noise=noise,
    )
    return remaining_time(
        start,
        start,
        radius,
        learning_rate=learning_rate,
        curvature=curvature,
        momentum=momentum,
    )


def remaining_time(
    previous: float,
    current: float,
    radius: float,
    *,
    learning_rate: float,
    curvature: float,
    momentum: float = 0.0,
) -> float:
    """Steps still needed, without noise, after two successive projections.

    Args:
      previous: projection one step ago (its sign relative to `current` counts).
      current: projection now.
      radius: as `escape_time`, and so the others.
      learning_rate: eta.
      curvature: gamma.
      momentum: beta.

    Returns:
      Steps, not rounded; inf where the growing mode is absent.

    Raises:
      ValueError: an argument out of range.
    """
    positive(radius=radius)
    plus, minus = growth_factors(learning_rate, curvature, momentum)
    if abs(current) >= radius:
        return 0.0
    amplitude = abs(current - minus * previous) * plus / (plus - minus)
    if amplitude == 0:
        return math.inf
    return max(0.0, math.log(radius / amplitude) / math.log(plus))


def growth_factors(
    learning_rate: float, curvature: float, momentum: float = 0.0
) -> tuple[float, float]:
    """r+ > 1 and r- in [0, 1).

    Raises:
      ValueError: an argument out of range.
    """
    positive(learning_rate=learning_rate, curvature=curvature)
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum={momentum}; a number in [0, 1) is needed")
    a = 1 + momentum + learning_rate * curvature
    plus = (a + math.sqrt(a * a - 4 * momentum)) / 2
    return plus, momentum / plus  # r- = beta/r+ loses no digits


def noise_projection(
    *, learning_rate: float, curvature: float, noise: float, momentum: float = 0.0
) -> float:
    """c_sigma: the initial projection that the noise of all steps amounts to.

    Raises:
      ValueError: an argument out of range.
    """
    if not noise >= 0:
        raise ValueError(f"noise={noise}; 0 or more is needed")
    plus, _ = growth_factors(learning_rate, curvature, momentum)
    gain = plus / ((plus - momentum) * math.sqrt(plus * plus - 1))
    return learning_rate * noise * gain


def effective_projection(
    projection: float,
    *,
    learning_rate: float,
    curvature: float,
    noise: float,
    momentum: float = 0.0,
) -> float:
    """The projection that escapes, without noise, in the median time with noise."""
    scale = noise_projection(
        learning_rate=learning_rate,
        curvature=curvature,
        noise=noise,
        momentum=momentum,
    )
    return math.hypot(projection, MEDIAN_NORMAL * scale)


def steps_saved(
    projection: float,
    *,
    learning_rate: float,
    curvature: float,
    noise: float,
    momentum: float = 0.0,
) -> float:
    """Steps that noise saves in the median: a step or more only if c <~ c_sigma.

    Args:
      projection: c, its size without noise, >= 0; at 0 without noise nothing leaves
        and noise saves everything (inf).
      learning_rate: as `escape_time`, and so the others.
      curvature: gamma.
      noise: sigma.
      momentum: beta.

    Raises:
      ValueError: an argument out of range.
    """
    if not projection >= 0:
        raise ValueError(f"projection={projection}; 0 or more is needed")
    raised = effective_projection(
        projection,
        learning_rate=learning_rate,
        curvature=curvature,
        noise=noise,
        momentum=momentum,
    )
    if raised == projection:
        return 0.0
    if projection == 0:
        return math.inf
    plus, _ = growth_factors(learning_rate, curvature, momentum)
    return math.log(raised / projection) / math.log(plus)


def adam_frozen_escape_time(
    projection: float,
    radius: float,
    *,
    learning_rate: float,
    preconditioned_curvature: float,
    b1: float = 0.9,
    noise: float = 0.0,
) -> float:
    """Escape time of Adam late in training, when v hardly changes.

    Args:
      projection: c in the preconditioned coordinates P^1/2 x, >= 0.
      radius: delta in the same coordinates, > 0.
      learning_rate: eta, > 0.
      preconditioned_curvature: -lambda_min(P^-1/2 H P^-1/2), > 0.
      b1: decay of the first moment, in [0, 1).
      noise: standard deviation of P^-1/2 times the gradient's noise.

    Raises:
      ValueError: an argument out of range.
    """
    if not 0 <= b1 < 1:
        raise ValueError(f"b1={b1}; a number in [0, 1) is needed")
    return escape_time(
        projection,
        radius,
        learning_rate=(1 - b1) * learning_rate,
        curvature=preconditioned_curvature,
        momentum=b1,
        noise=noise,
    )


def adam_fresh_escape_time(radius: float, *, learning_rate: float) -> float:
    """Escape time of Adam from its first step, delta/eta, whatever the projection.

    Holds while the gradient along the escape direction is well above Adam's eps, and
    for a projection that is not exactly zero.

    Raises:
      ValueError: an argument out of range.
    """
    positive(radius=radius, learning_rate=learning_rate)
    return radius / learning_rate


def preconditioned_curvature(
    hessian: ArrayLike, second_moment: ArrayLike, *, eps: float = 1e-8
) -> float:
    """-lambda_min(P^-1/2 H P^-1/2) with P = diag(sqrt(v) + eps).

    Args:
      hessian: H, symmetric [dim, dim].
      second_moment: v of Adam (bias-corrected), [dim], >= 0.
      eps: of Adam, > 0.

    Returns:
      Positive where Adam sees negative curvature.

    Raises:
      ValueError: eps is not positive.
    """
    positive(eps=eps)
    scale = 1 / np.sqrt(np.sqrt(np.asarray(second_moment, np.float64)) + eps)
    scaled = scale[:, None] * np.asarray(hessian, np.float64) * scale
    return -float(np.linalg.eigvalsh(scaled)[0])
