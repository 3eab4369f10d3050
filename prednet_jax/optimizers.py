"""The optimisers of the two publications, as optax transformations.

Chainer's and Keras 2's Adam add epsilon to sqrt(v) *before* the bias correction:

    step = alpha sqrt(1 - b2^t)/(1 - b1^t) m / (sqrt(v) + eps)

optax.adam (Kingma & Ba, arXiv 1412.6980, algorithm 1) divides by
sqrt(v/(1 - b2^t)) + eps instead; the form above ends section 2 of the same paper.
Sources: chainer/optimizers/adam.py (7.8.1), keras/optimizers.py (2.2.4).
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from prednet_jax.errors import check_int, decay, not_negative, positive


class AdamState(NamedTuple):
    """The state of `chainer_adam`: updates made, first and second moments."""

    step: jax.Array
    mu: optax.Params
    nu: optax.Params


def chainer_adam(
    learning_rate: float | optax.Schedule = 1e-3,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
) -> optax.GradientTransformation:
    """Returns Adam with epsilon added to the uncorrected sqrt(v).

    A schedule is a function of the number of the update, from 0. `eps` is 1e-8 in
    Chainer, 1e-7 in Keras. The same values give the same object, so that programs
    compiled with it are reused.
    """
    if not callable(learning_rate):
        positive("learning_rate", learning_rate)
        learning_rate = float(learning_rate)
    decay("b1", b1)
    decay("b2", b2)
    not_negative("eps", eps)
    return _chainer_adam(learning_rate, b1, b2, eps)


@functools.lru_cache(maxsize=64)
def _chainer_adam(
    learning_rate: float | optax.Schedule, b1: float, b2: float, eps: float
) -> optax.GradientTransformation:
    def init(params: optax.Params) -> AdamState:
        return AdamState(
            step=jnp.zeros((), jnp.int32),
            mu=jax.tree.map(jnp.zeros_like, params),
            nu=jax.tree.map(jnp.zeros_like, params),
        )

    def update(
        gradients: optax.Updates, state: AdamState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, AdamState]:
        del params
        rate = learning_rate(state.step) if callable(learning_rate) else learning_rate
        step = state.step + 1
        # Python floats are weakly typed, so the arithmetic stays in this dtype.
        dtype = jax.tree.leaves(gradients)[0].dtype
        t = step.astype(dtype)
        fix1, fix2 = one_minus_power(b1, t), one_minus_power(b2, t)
        scale = jnp.asarray(rate, dtype) * jnp.sqrt(fix2) / fix1
        mu = jax.tree.map(lambda m, g: m + (1 - b1) * (g - m), state.mu, gradients)
        nu = jax.tree.map(lambda v, g: v + (1 - b2) * (g * g - v), state.nu, gradients)
        updates = jax.tree.map(lambda m, v: -scale * m / (jnp.sqrt(v) + eps), mu, nu)
        return updates, AdamState(step, mu, nu)

    return optax.GradientTransformation(init, update)


def one_minus_power(b: float, t: jax.Array) -> jax.Array:
    """Computes 1 - b^t, the bias of a running mean after t updates from zero.

    The plain expression has a relative error of 6e-5 in float32 at b = 0.999, t = 1.
    """
    return -jnp.expm1(t * math.log(b)) if b > 0 else jnp.ones_like(t)


def clipped(
    optimizer: optax.GradientTransformation, norm: float
) -> optax.GradientTransformation:
    """Clips the gradients to a global L2 norm above 0 before the optimiser sees them.

    The state has the arrays of the optimiser's state alone.
    """
    positive("clip_gradient", norm)
    return optax.chain(optax.clip_by_global_norm(norm), optimizer)


@functools.lru_cache(maxsize=64)
def lotter_schedule(updates: int) -> optax.Schedule:
    """Returns the rate of `lotter`: 1e-3 in the first half of updates, then 1e-4.

    kitti_train.py has 1e-3 before epoch 75 and 1e-4 from there on, of 150 epochs.
    """
    check_int("updates", updates, 1)
    half = updates // 2
    # Not optax.piecewise_constant_schedule: strict promotion refuses its mixed dtypes.
    return lambda step: jnp.where(step < half, 1e-3, 1e-4)


@functools.lru_cache(maxsize=64)
def cosine(rate: float, updates: int, floor: float) -> optax.Schedule:
    """Returns a rate that falls along half a cosine, from `rate` to `floor` of it.

    `rate` > 0 is the learning rate of the first update. After the last update it is
    `floor * rate`, with `floor` in [0, 1).

    Example:
        >>> from prednet_jax import optimizers
        >>> rate = optimizers.cosine(1e-3, 100, floor=0.02)
        >>> round(float(rate(0)), 6), round(float(rate(100)), 6)
        (0.001, 2e-05)
    """
    positive("learning_rate", rate)
    check_int("updates", updates, 1)
    decay("rate_floor", floor)

    # Not optax.cosine_decay_schedule, for the same reason.
    def schedule(step: jax.Array) -> jax.Array:
        share = jnp.minimum(jnp.asarray(step, jnp.float32) / updates, 1.0)
        return rate * (floor + (1 - floor) * (1 + jnp.cos(math.pi * share)) / 2)

    return schedule
