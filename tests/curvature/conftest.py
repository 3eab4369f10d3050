"""A small autoencoder at several stages of training, with dense Hessians."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree


class Stage(NamedTuple):
    """Weights after some updates, with the running second moment of Adam."""

    update: int
    params: dict
    second_moment: dict
    hessian: np.ndarray


class Trained(NamedTuple):
    """A loss and the stages of its training, in float64."""

    loss: object
    stages: list[Stage]


@pytest.fixture(scope="session")
def trained() -> Trained:
    """Trains a 6-4-6 tanh autoencoder (58 weights) and keeps four stages."""
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(3), 3)
        data = jax.random.uniform(keys[0], (16, 6), jnp.float64)
        params = {
            "encoder": {"w": 0.3 * jax.random.normal(keys[1], (6, 4), jnp.float64)},
            "decoder": {"w": 0.3 * jax.random.normal(keys[2], (4, 6), jnp.float64)},
        }
        params["encoder"]["b"] = jnp.zeros(4, jnp.float64)
        params["decoder"]["b"] = jnp.zeros(6, jnp.float64)

        def loss(p):
            dtype = p["encoder"]["w"].dtype
            x = data.astype(dtype)
            code = jnp.tanh(x @ p["encoder"]["w"] + p["encoder"]["b"])
            return jnp.mean((code @ p["decoder"]["w"] + p["decoder"]["b"] - x) ** 2)

        @jax.jit
        def step(params, m, v, t):
            g = jax.grad(loss)(params)
            m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
            v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, v, g)
            rate = 1e-2 * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            move = jax.tree.map(lambda m, v: rate * m / (jnp.sqrt(v) + 1e-8), m, v)
            return jax.tree.map(jnp.subtract, params, move), m, v

        _, unravel = ravel_pytree(params)
        dense = jax.jit(jax.hessian(lambda p: loss(unravel(p))))
        m = v = jax.tree.map(jnp.zeros_like, params)
        stages = []
        for update in range(1, 301):
            params, m, v = step(params, m, v, float(update))
            if update in (1, 10, 50, 300):
                hessian = np.array(dense(ravel_pytree(params)[0]))
                stages.append(Stage(update, params, v, hessian))
        return Trained(loss, stages)
