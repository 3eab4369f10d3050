"""Optimisers as the two publications used them, as optax transformations.

Chainer's and Keras 2's Adam add epsilon to sqrt(v) *before* the bias correction:
    step = alpha sqrt(1 - b2^t)/(1 - b1^t) m / (sqrt(v) + eps)
where optax.adam (Kingma & Ba, algorithm 1) divides by sqrt(v/(1 - b2^t)) + eps. That is
the variant in the last paragraph of section 2 of Kingma & Ba, arXiv 1412.6980.
Sources: chainer/optimizers/adam.py (7.8.1), keras/optimizers.py (2.2.4).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from prednet_jax.errors import UserError, positive, whole


class AdamState(NamedTuple):
    """State of `chainer_adam`.

    Attributes:
        step: int32, updates made.
        mu: first moments, like the parameters.
        nu: second moments, like the parameters.
    """

    step: jax.Array
    mu: optax.Params
    nu: optax.Params


def chainer_adam(
    learning_rate: float | optax.Schedule = 1e-3,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
) -> optax.GradientTransformation:
    """Adam with epsilon added to the uncorrected sqrt(v).

    Args:
        learning_rate: alpha > 0, or a schedule of the update's number (from 0).
        b1: decay of the first moment, in [0, 1).
        b2: decay of the second moment, in [0, 1).
        eps: added to sqrt(v); Chainer 1e-8, Keras 1e-7.

    Raises:
        UserError: a value is outside what is accepted.
    """
    if not callable(learning_rate):
        positive("learning_rate", learning_rate)
    for name, value in (("b1", b1), ("b2", b2)):
        if not 0 <= value < 1:
            raise UserError(f"{name}={value!r}: expected a value in [0, 1)")
    if not eps >= 0:
        raise UserError(f"eps={eps!r}: expected a value of at least 0")

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
        # Python floats are weakly typed: the arithmetic stays in the parameters' dtype.
        dtype = jax.tree.leaves(gradients)[0].dtype
        t = step.astype(dtype)
        fix1, fix2 = _one_minus_power(b1, t), _one_minus_power(b2, t)
        scale = jnp.asarray(rate, dtype) * jnp.sqrt(fix2) / fix1
        mu = jax.tree.map(lambda m, g: m + (1 - b1) * (g - m), state.mu, gradients)
        nu = jax.tree.map(lambda v, g: v + (1 - b2) * (g * g - v), state.nu, gradients)
        updates = jax.tree.map(lambda m, v: -scale * m / (jnp.sqrt(v) + eps), mu, nu)
        return updates, AdamState(step, mu, nu)

    return optax.GradientTransformation(init, update)


def _one_minus_power(b: float, t: jax.Array) -> jax.Array:
    """1 - b^t; in float32 the plain form is off by 6e-5 at b = 0.999, t = 1."""
    return -jnp.expm1(t * math.log(b)) if b > 0 else jnp.ones_like(t)


def lotter_schedule(
    updates: int, initial: float = 1e-3, final: float = 1e-4
) -> optax.Schedule:
    """Learning rate of `lotter`: `initial`, then `final` from half of training on.

    kitti_train.py: 1e-3 below epoch 75, 1e-4 after, of 150 epochs.

    Args:
        updates: length of the training.
        initial: rate of the first half.
        final: rate of the second half.

    Raises:
        UserError: updates is below 1.
    """
    whole("updates", updates, 1)
    # Not optax.piecewise_constant_schedule: it mixes dtypes, which strict promotion
    # refuses.
    return lambda step: jnp.where(step < updates // 2, initial, final)
