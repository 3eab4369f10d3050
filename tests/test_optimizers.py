import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from prednet_jax import optimizers


def by_hand(gradients, rate=1e-3, b1=0.9, b2=0.999, eps=1e-8):
    """Chainer's update in float64, transcribed from the formula."""
    x = m = v = 0.0
    for t, g in enumerate(gradients, 1):
        m += (1 - b1) * (g - m)
        v += (1 - b2) * (g * g - v)
        lr = rate * np.sqrt(1 - b2**t) / (1 - b1**t)
        x -= lr * m / (np.sqrt(v) + eps)
    return x


def run(optimizer, gradients):
    x = jnp.zeros(())
    state = optimizer.init(x)
    for g in gradients:
        updates, state = optimizer.update(jnp.float32(g), state, x)
        x = optax.apply_updates(x, updates)
    return float(x)


# Small gradients, where epsilon and its place matter: sqrt(v) is near eps.
GRADIENTS = (3e-7, -1e-7, 2e-7, 5e-8)


def test_epsilon_is_added_before_the_bias_correction():
    found = run(optimizers.chainer_adam(), GRADIENTS)
    # float32 rounding of a few operations.
    assert found == pytest.approx(by_hand(GRADIENTS), rel=1e-5)
    # optax.adam itself mixes dtypes.
    with jax.numpy_dtype_promotion("standard"):
        other = run(optax.adam(1e-3, eps=1e-8), GRADIENTS)
        plain = run(optax.adam(1e-3, eps=0.0), (1.0, -0.5, 0.25))
    assert abs(other - found) > 0.05 * abs(found)
    found = run(optimizers.chainer_adam(eps=0.0), (1.0, -0.5, 0.25))
    assert found == pytest.approx(plain, rel=1e-5)


def test_schedule_is_counted_from_zero():
    rates = {0: 1e-3, 1: 1e-3, 2: 1e-4, 3: 1e-4}
    schedule = optimizers.lotter_schedule(4)
    assert {i: pytest.approx(float(schedule(i))) for i in range(4)} == rates
    flat = run(optimizers.chainer_adam(1e-3), (1.0, 1.0))
    cut = run(optimizers.chainer_adam(schedule), (1.0, 1.0, 1.0))
    assert cut == pytest.approx(flat - 1e-4, rel=1e-3)
