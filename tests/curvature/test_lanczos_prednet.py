"""Extreme curvature of a tiny PredNet against its dense Hessian, along training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from prednet_jax.config import PredNetConfig
from prednet_jax.curvature import adam_scale, extreme_eigenpairs
from prednet_jax.objectives import window_loss
from prednet_jax.optimizers import chainer_adam

STOPS = (1, 10, 30)


@pytest.fixture(scope="module")
def stages():
    """Loss and, at each stop, weights, second moment and dense Hessian (float64)."""
    from prednet_jax import init_params
    from prednet_jax.models import prednet

    config = PredNetConfig(channels=(1, 2), height=2, width=2, convolution="xla")
    with jax.enable_x64(True):
        frames = jax.random.uniform(jax.random.key(1), (4, 2, 2, 2, 1), jnp.float64)
        params = jax.tree.map(
            lambda w: jnp.asarray(w, jnp.float64),
            init_params(config, jax.random.key(0)),
        )
        optimizer = chainer_adam()

        def loss(params):
            dtype = jax.tree.leaves(params)[0].dtype
            state = prednet.initial_state(config, 2, dtype)
            x = frames.astype(dtype)
            return window_loss(params, config, state, x, jnp.asarray(True))[0]

        unravel = ravel_pytree(params)[1]
        dense = jax.jit(jax.hessian(lambda w: loss(unravel(w))))
        gradient = jax.jit(jax.grad(loss))
        state, found = optimizer.init(params), []
        for update in range(1, max(STOPS) + 1):
            moves, state = optimizer.update(gradient(params), state)
            params = jax.tree.map(jnp.add, params, moves)
            if update in STOPS:
                hessian = np.array(dense(ravel_pytree(params)[0]))
                found.append((update, params, state.nu, hessian))
        return loss, found


@pytest.mark.parametrize("stage", range(len(STOPS)))
@pytest.mark.parametrize("preconditioned", [False, True])
def test_prednet_against_dense(stages, stage, preconditioned):
    loss, found = stages
    update, params, second_moment, hessian = found[stage]
    with jax.enable_x64(True):
        scale, dense = None, hessian
        if preconditioned:
            scale = adam_scale(second_moment, update)
            p = np.array(ravel_pytree(scale)[0])
            dense = hessian / np.sqrt(np.outer(p, p))
        exact = np.linalg.eigvalsh(dense)
        assert exact[0] < 0 < exact[-1]
        size = np.abs(exact).max()
        pairs = extreme_eigenpairs(
            loss, params, key=jax.random.key(5), steps=40, scale=scale
        )
        # From inside, an eigenvalue within the residual, and near the dense answer.
        assert exact[0] - 1e-12 * size <= pairs.values[0]
        assert pairs.values[1] <= exact[-1] + 1e-12 * size
        for value, residual in zip(pairs.values, pairs.residuals, strict=True):
            assert np.abs(exact - value).min() <= residual + 1e-12 * size
        # 40 steps are far fewer than the weights; measured: below 1e-6 of the size.
        np.testing.assert_allclose(
            pairs.values, exact[[0, -1]], rtol=0, atol=1e-4 * size
        )


def test_prednet_residual_bounds_the_error_in_float32(stages):
    loss, found = stages
    _, params, _, hessian = found[-1]
    exact = np.linalg.eigvalsh(hessian)
    single = jax.tree.map(lambda w: w.astype(jnp.float32), params)
    pairs = extreme_eigenpairs(loss, single, key=jax.random.key(5), steps=40)
    n = hessian.shape[0]
    for value, residual in zip(pairs.values, pairs.residuals, strict=True):
        # Rounded weights and products: sqrt(n) eps of the norm, four times over.
        allowance = 4 * np.sqrt(n) * 1.2e-7 * np.abs(exact).max()
        assert np.abs(exact - float(value)).min() <= residual + allowance
