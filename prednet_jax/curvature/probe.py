"""All measurements at one stop of a training with Adam, as a JSON object.

They are the norm of the gradient, and the lowest and highest eigenvalue of the Hessian
H and of P^-1/2 H P^-1/2, with P the scale by which Adam divides (`certify`). Where
negative curvature is proved, there are also the projection of the optimiser's last step
on the escape direction, and the updates that noise would save there
(`prednet_jax.escape`).
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from prednet_jax import escape
from prednet_jax.curvature.certify import Certificate, certify
from prednet_jax.curvature.hessian import Loss, PyTree, adam_scale

B1, B2 = 0.9, 0.999


class Stop(NamedTuple):
    """The state of a training with Adam after some updates.

    Attributes:
        update: number of updates made, at least 1.
        params: weights, a pytree of n numbers.
        mu: running mean of the gradient, like `params`.
        nu: running mean of its square, like `params`.
        rate: learning rate of the last update.
        next_rate: learning rate of the next update.
        eps: Adam's epsilon.
    """

    update: int
    params: PyTree
    mu: PyTree
    nu: PyTree
    rate: float
    next_rate: float
    eps: float


class Projections(NamedTuple):
    """Projections on one escape direction u, in the coordinates of P.

    In a quadratic model with curvature -gamma along u, the gradient g gives the
    projection z of the weights, measured from the stationary point of the model:
    u'g = -gamma z.

    Attributes:
        gamma: minus the curvature along the direction, positive.
        displacement: z.
        step: projection of the last change of the weights.
        step_cosine: `step` over the length of that change, in [-1, 1].
        noise_gain: standard deviation, along the direction, of gradient noise that has
            unit standard deviation in each weight.
    """

    gamma: float
    displacement: float
    step: float
    step_cosine: float
    noise_gain: float


def project(
    gradient: PyTree, step: PyTree, vector: PyTree, value: float, scale: PyTree
) -> Projections:
    """Projects gradient and last update on the direction of lowest curvature.

    Args:
        gradient: gradient of the loss at the weights, a pytree like the weights.
        step: the last change of the weights made by the optimiser.
        vector: unit escape direction u, in the coordinates of `scale`.
        value: its curvature, negative.
        scale: P, the preconditioner that u belongs to.
    """
    u, g, d, p = (ravel_pytree(tree)[0] for tree in (vector, gradient, step, scale))
    root = jnp.sqrt(p.astype(u.dtype))
    along, length = float(jnp.vdot(u, root * d)), float(jnp.linalg.norm(root * d))
    return Projections(
        gamma=-value,
        displacement=float(jnp.vdot(u, g / root)) / value,
        step=along,
        step_cosine=along / length if length > 0.0 else 0.0,
        noise_gain=float(jnp.linalg.norm(u / root)),
    )


def probe(
    loss: Loss,
    stop: Stop,
    moments: tuple[PyTree, PyTree],
    *,
    key: jax.Array,
    noise: float,
    **search: int,
) -> dict[str, Any]:
    """Measures the curvature at one stop and what it means for the optimiser.

    All stops with the same `loss` share the compiled programs.

    Args:
        loss: the loss without noise on a fixed probe set; the same object at each stop.
        stop: the state of the training.
        moments: mean over the samples of the gradient of the same loss at the same
            weights, and of its square; like the weights.
        key: consumed for the start vectors.
        noise: relative gradient noise whose effect is predicted, above 0.
        **search: `steps` and `starts` of `certify`.

    Returns:
        A JSON object; its `escape` is None if no negative curvature was proved.

    Raises:
        UserError: as `certify`.
    """
    mean, mean_square = moments
    # P of the next update, in expectation over the samples. With P of the last update,
    # a weight that no gradient has reached yet would have P = eps.
    ahead = jax.tree.map(lambda v, s: B2 * v + (1.0 - B2) * s, stop.nu, mean_square)
    adam = functools.partial(adam_scale, b1=B1, b2=B2, eps=stop.eps)
    scale, last_scale = adam(ahead, stop.update + 1), adam(stop.nu, stop.update)
    last_step = jax.tree.map(lambda m, p: -stop.rate * m / p, stop.mu, last_scale)
    # Ones instead of None, so that both searches use one compiled program.
    ones, other = jax.tree.map(jnp.ones_like, stop.params), jax.random.fold_in(key, 1)
    raw = certify(loss, stop.params, key=key, scale=ones, **search)
    scaled = certify(loss, stop.params, key=other, scale=scale, **search)
    norm = _norm(mean)
    total = sum(float(jnp.sum(s)) for s in jax.tree.leaves(mean_square))
    row: dict[str, Any] = {
        "update": stop.update,
        "parameters": raw.dimension,
        "loss": raw.finite_difference.loss,
        "grad_norm": norm,
        "sampling_noise": math.sqrt(max(0.0, total - norm**2)) / norm if norm else None,
        "raw": _summary(raw),
        "preconditioned": _summary(scaled),
        "escape": None,
    }
    if scaled.negative_curvature_proved and norm:
        vector = scaled.pairs.vectors[0]
        at = project(mean, last_step, vector, scaled.lowest, scale)
        unit = norm / math.sqrt(scaled.dimension) * at.noise_gain
        row["escape"] = _escape(at, last_step, stop.next_rate, noise, noise * unit)
    return row


def _summary(found: Certificate) -> dict[str, Any]:
    """A certificate as a JSON object; pairs are (low, high)."""
    low, high = (float(residual) for residual in found.pairs.residuals)
    check = found.finite_difference
    return {
        "lowest": found.lowest,
        "highest": found.highest,
        "residual_lowest": low,
        "residual_highest": high,
        "rounding": found.rounding,
        "steps": found.steps,
        "converged": list(found.converged),
        "negative_curvature_proved": found.negative_curvature_proved,
        "finite_difference": dataclasses.asdict(check) | {"verdict": check.verdict},
    }


def _escape(
    at: Projections, last_step: PyTree, rate: float, noise: float, sigma: float
) -> dict[str, float]:
    """What Adam does along the direction of lowest preconditioned curvature.

    Projections in the coordinates of P, the updates that gradient noise of `sigma`
    along the direction (`noise` relative to the gradient) would save, and the relative
    noise that would save one update.
    """
    growth = escape.growth(at.gamma, learning_rate=rate, momentum=B1, averaged=True)
    c_sigma = escape.noise_projection(sigma, growth)
    c = escape.growing_projection(at.displacement, at.step, growth)
    # c_sigma is proportional to the noise; `noise_for_one_update` follows from this.
    useful = escape.useful_projection(c_sigma, growth)
    return {
        "step_length": _norm(last_step),
        "growth_per_update": growth.fast,
        "step_projection": at.step,
        "step_cosine": at.step_cosine,
        "displacement": at.displacement,
        "projection": c,
        "noise": noise,
        "noise_projection": c_sigma,
        "useful_projection": useful,
        "updates_saved": escape.updates_saved(c, c_sigma, growth),
        "noise_for_one_update": noise * c / useful,
    }


def _norm(tree: PyTree) -> float:
    return math.sqrt(sum(float(jnp.vdot(x, x)) for x in jax.tree.leaves(tree)))
