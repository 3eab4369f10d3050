"""What a precision does to the networks: bfloat16 operands, all else in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from prednet_jax import PredNetConfig, init_params, predict, process, tasks
from prednet_jax.config import AutoencoderConfig
from prednet_jax.errors import UserError
from prednet_jax.models import convolution
from prednet_jax.objectives import Method
from prednet_jax.training import truncated

CONFIG = PredNetConfig(channels=(3, 4), height=8, width=8, convolution="xla")


@pytest.fixture
def precision():
    before = jax.config.jax_default_matmul_precision
    yield process.set_precision
    process.set_precision("float32")
    jax.config.update("jax_default_matmul_precision", before)


def gradient(network):
    task = tasks.of(network)
    params = task.init_params(jax.random.key(0))
    height, width, channels = task.frame
    shape = (3, 2, height, width, channels)
    frames = jax.random.uniform(jax.random.key(1), shape)
    carry = task.initial_carry(2, jnp.float32)
    loss = lambda p: task.loss(p, carry, frames, jnp.array(False), Method())[0]  # noqa: E731
    return params, jax.jit(jax.grad(loss))(params)


@pytest.mark.parametrize("network", [CONFIG, AutoencoderConfig(height=8, width=8)])
def test_bfloat16_keeps_weights_and_gradients_in_float32_and_rounds_products(
    precision, network
):
    precision("float32")
    _, exact = gradient(network)
    dtype = precision("bfloat16")
    params, rounded = gradient(network)
    assert dtype == jnp.float32
    assert {x.dtype for x in jax.tree.leaves((params, rounded))} == {dtype}
    exact, rounded = (
        np.concatenate([x.ravel() for x in jax.tree.leaves(g)])
        for g in (exact, rounded)
    )
    apart = np.linalg.norm(exact - rounded) / np.linalg.norm(exact)
    assert 1e-4 < apart < 0.2  # Rectifiers that switch make most of it.


@pytest.mark.parametrize("algorithm", ["xla", "direct", "im2col", "shifted", "wide4"])
def test_bfloat16_products_are_those_of_rounded_operands(precision, algorithm):
    """In float32 the product of rounded numbers is exact, so only sums round."""
    x = jax.random.normal(jax.random.key(0), (2, 8, 8, 5))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 5, 4))
    precision("float32")
    rounded = (a.astype(jnp.bfloat16).astype(jnp.float32) for a in (x, kernel))
    expected = convolution.conv2d(*rounded, algorithm)
    precision("bfloat16")
    result = convolution.conv2d(x, kernel, algorithm)
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result, expected, rtol=1e-2, atol=1e-2)


def test_an_update_in_bfloat16_moves_float32_weights_by_less_than_bfloat16_resolves(
    precision,
):
    precision("bfloat16")
    optimizer = optax.sgd(1e-4)
    params = init_params(CONFIG, jax.random.key(0))
    state = truncated.initial_train_state(CONFIG, params, optimizer)
    step = jax.jit(truncated.make_step(CONFIG, optimizer))
    frames = np.random.default_rng(0).integers(0, 256, (3, 1, 8, 8, 3), np.uint8)
    after, _ = step(state, frames, np.bool_(False), jax.random.key(0))
    kernel = "gates_0", "kernel"
    moved = after.params[kernel[0]][kernel[1]] - params[kernel[0]][kernel[1]]
    assert 0 < jnp.abs(moved).max() < 2**-9 * jnp.abs(params["gates_0"]["kernel"]).max()


def test_tf32_changes_nothing_on_a_cpu(precision):
    frames = jax.random.uniform(jax.random.key(1), (3, 1, 8, 8, 3))
    params = init_params(CONFIG, jax.random.key(0))
    precision("float32")
    expected, _ = predict(params, CONFIG, frames)
    precision("tf32")
    result, _ = predict(params, CONFIG, frames)
    np.testing.assert_array_equal(result, expected)


def test_an_unknown_precision_is_refused():
    with pytest.raises(UserError, match=r"float16.*bfloat16"):
        process.set_precision("float16")
