import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import conv_lstm
from prednet_jax.training.trainer import Trainer


def test_patches_and_neighbourhoods_are_a_convolution_of_cut_frames():
    x = jax.random.normal(jax.random.key(0), (2, 8, 12, 3))
    patches = conv_lstm.to_patches(x)
    assert patches.shape == (2, 2, 3, 48)
    np.testing.assert_array_equal(patches[1, 1, 2].ravel()[:12], x[1, 4, 8:12].ravel())
    np.testing.assert_array_equal(conv_lstm.to_frame(patches), x)
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 3, 5))
    convolved = jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    product = conv_lstm.neighbours(x) @ kernel.reshape(27, 5)
    np.testing.assert_allclose(product, convolved, atol=1e-5)


def test_a_sequence_starts_from_the_zero_state_and_is_learned():
    task = conv_lstm.ConvLstm(8, 8, 1, "moving_digits")
    params = task.init_params(jax.random.key(0))
    frames = jax.random.uniform(jax.random.key(1), (4, 2, 8, 8, 1))
    carry = task.initial_carry(2, jnp.float32)
    outputs = jax.jit(task.outputs)
    seen = [
        outputs(params, carry, frames.at[0].set(stand_in), jnp.asarray(True))[0]
        for stand_in in (0.0, 1.0)
    ]
    np.testing.assert_array_equal(seen[0][1:], seen[1][1:])
    trainer = Trainer(task)
    state = trainer.init(params, batch=2)
    losses = []
    for _ in range(5):
        state, metrics = trainer.step(state, frames, True)
        losses.append(metrics.frame_losses[1:].mean())
    assert losses[-1] < losses[0]
