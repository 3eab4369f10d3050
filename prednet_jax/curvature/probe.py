"""Everything measured at one stop of a training with Adam, as JSON holds it.

The norm of the gradient; lowest and highest eigenvalue of the Hessian H and of
P^-1/2 H P^-1/2 (P: the scale by which Adam divides), each with residual, doubling of
the steps, several starts and a finite-difference check; and, where negative curvature
is proved, the projection of the optimiser's last step on the escape direction and the
updates that noise would save there (`prednet_jax.escape`).
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from prednet_jax import escape
from prednet_jax.curvature.certify import Certificate, certify
from prednet_jax.curvature.hvp import Loss, PyTree, adam_scale
from prednet_jax.curvature.projections import project

B1, B2 = 0.9, 0.999


class Stop(NamedTuple):
    """Adam after some updates.

    Attributes:
        update: how many, at least 1.
        params: weights, a pytree of n numbers.
        mu: running mean of the gradient, like `params`.
        nu: running mean of its square, like `params`.
        rate: learning rate of the last update.
        next_rate: learning rate of the update to come.
        eps: of Adam.
    """

    update: int
    params: PyTree
    mu: PyTree
    nu: PyTree
    rate: float
    next_rate: float
    eps: float


class Moments(NamedTuple):
    """Of the gradients of the probe set's samples, each like the weights.

    Attributes:
        mean: the gradient of the probed loss.
        mean_square: mean of the squares over the samples.
    """

    mean: PyTree
    mean_square: PyTree


def probe(
    loss: Loss,
    stop: Stop,
    moments: Moments,
    *,
    key: jax.Array,
    noise: float,
    steps: int = 40,
    max_steps: int | None = None,
    starts: int = 2,
) -> dict[str, Any]:
    """Measures the curvature at one stop and what it means for the optimiser.

    Everything that compiles takes the weights as arguments: stops of one `loss` share
    one program.

    Args:
        loss: The clean loss of a fixed probe set; pass the same object at each stop.
        stop: Where the training stands.
        moments: Of the same loss at the same weights.
        key: Consumed for the start vectors.
        noise: Relative gradient noise whose saving is predicted, above 0.
        steps: Lanczos steps of the first round.
        max_steps: Steps double up to this; None: `steps`.
        starts: Random start vectors a round.

    Returns:
        A JSON object: `raw` and `preconditioned` as `summary`, `escape` as
        `escape_summary` or None where no negative curvature was proved.

    Raises:
        UserError: As `certify`.
    """
    mean, mean_square = moments
    # The scale of the update to come, in expectation over the samples: weights that no
    # gradient has reached yet would otherwise count with P = eps.
    ahead = jax.tree.map(lambda v, s: B2 * v + (1.0 - B2) * s, stop.nu, mean_square)
    adam = functools.partial(adam_scale, b1=B1, b2=B2, eps=stop.eps)
    scale, last_scale = adam(ahead, stop.update + 1), adam(stop.nu, stop.update)
    last_step = jax.tree.map(lambda m, p: -stop.rate * m / p, stop.mu, last_scale)

    search = functools.partial(
        certify,
        loss,
        stop.params,
        steps=steps,
        max_steps=max_steps or steps,
        starts=starts,
    )
    # Ones, and not None, so that both forms are one compiled program.
    raw = search(key=key, scale=jax.tree.map(jnp.ones_like, stop.params))
    scaled = search(key=jax.random.fold_in(key, 1), scale=scale)
    norm = math.sqrt(sum(float(jnp.vdot(g, g)) for g in jax.tree.leaves(mean)))
    total = sum(float(jnp.sum(s)) for s in jax.tree.leaves(mean_square))
    row: dict[str, Any] = {
        "update": stop.update,
        "parameters": raw.dimension,
        "loss": raw.loss,
        "grad_norm": norm,
        "sampling_noise": math.sqrt(max(0.0, total - norm**2)) / norm if norm else None,
        "raw": summary(raw),
        "preconditioned": summary(scaled),
        "escape": None,
    }
    if scaled.negative_curvature_proved and norm:
        row["escape"] = escape_summary(
            scaled,
            mean,
            last_step,
            scale,
            grad_norm=norm,
            rate=stop.next_rate,
            noise=noise,
        )
    return row


def summary(found: Certificate) -> dict[str, Any]:
    """A certificate as JSON holds it; pairs are (low, high)."""
    low, high = (float(residual) for residual in found.pairs.residuals)
    check = found.finite_difference
    return {
        "lowest": found.lowest,
        "highest": found.highest,
        "residual_lowest": low,
        "residual_highest": high,
        "rounding": found.rounding,
        "steps": found.steps,
        "movement": list(found.movement),
        "converged": list(found.converged),
        "spread": list(found.spread),
        "negative_curvature_proved": found.negative_curvature_proved,
        "statement": found.statement,
        "finite_difference": dataclasses.asdict(check) | {"verdict": check.verdict},
    }


def escape_summary(
    found: Certificate,
    gradient: PyTree,
    last_step: PyTree,
    scale: PyTree,
    *,
    grad_norm: float,
    rate: float,
    noise: float,
) -> dict[str, float]:
    """Adam on the direction of lowest preconditioned curvature.

    Args:
        found: Of P^-1/2 H P^-1/2, with negative curvature proved.
        gradient: Of the loss.
        last_step: Last change of the weights.
        scale: P.
        grad_norm: Length of the gradient, above 0.
        rate: Learning rate of the update to come.
        noise: Length of isotropic gradient noise over that of the gradient, above 0.

    Returns:
        Projections in the coordinates of P, the predicted saving in updates, and the
        relative noise that would save one update.
    """
    at = project(gradient, last_step, found.pairs.vectors[0], found.lowest, scale=scale)
    growth = escape.growth(at.gamma, learning_rate=rate, momentum=B1, averaged=True)
    unit = grad_norm / math.sqrt(found.dimension) * at.noise_gain
    c_sigma = escape.noise_projection(noise * unit, growth)
    c = at.projection(growth)
    # c_sigma is proportional to the noise, so the noise that saves one update follows.
    useful = escape.useful_projection(c_sigma, growth)
    length = math.sqrt(sum(float(jnp.vdot(d, d)) for d in jax.tree.leaves(last_step)))
    return {
        "step_length": length,
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
