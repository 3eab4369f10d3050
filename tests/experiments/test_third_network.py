"""A network from outside the package is trained, compared and judged like others."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from prednet_jax import tasks
from prednet_jax.objectives import Method
from tests.experiments import conv_lstm

HERE = Path(__file__).parent
NAME = "tiny_task:TINY"


def test_the_default_loss_and_predictions_are_those_of_the_window(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    task = tasks.load(NAME)
    params = task.init_params(jax.random.key(0))
    frames = jax.random.uniform(jax.random.key(1), (5, 1, *task.frame))
    carry = jnp.ones_like(task.initial_carry(1, jnp.float32))

    def loss(first, **method):
        return task.loss(params, carry, frames, jnp.asarray(first), Method(**method))

    predictions, state = task.outputs(params, carry, frames, jnp.asarray(False))
    errors = np.square(predictions - frames[1:]).mean(axis=(1, 2, 3, 4))
    value, result = loss(False)
    np.testing.assert_allclose(result.frame_losses, errors, rtol=1e-6)
    np.testing.assert_allclose(value, errors.sum(), rtol=1e-6)
    np.testing.assert_array_equal(result.state, state)
    # A first window starts from zero and does not score its stand-in.
    value, result = loss(True)
    np.testing.assert_array_equal(result.scored, [0, 1, 1, 1])
    np.testing.assert_allclose(value, result.frame_losses[1:].sum(), rtol=1e-6)
    assert not np.allclose(result.frame_losses, errors)
    # Stale targets pull to the last frame; what is reported stays true.
    value, result = loss(False, targets="stale")
    pulled = np.square(predictions - frames[-1]).mean(axis=(1, 2, 3, 4)).sum()
    np.testing.assert_allclose(value, pulled, rtol=1e-6)
    np.testing.assert_allclose(result.frame_losses, errors, rtol=1e-6)

    frames = frames[:, 0]
    predictions = task.predict(params, frames)
    assert predictions.shape == frames.shape
    changed = task.predict(params, frames.at[2].set(0))
    # frames[2] is predicted before it is seen.
    np.testing.assert_array_equal(changed[:3], predictions[:3])
    assert not np.array_equal(changed[3], predictions[3])


def test_patches_are_cut_frames():
    x = jax.random.normal(jax.random.key(0), (2, 4, 6, 3))
    patches = conv_lstm.to_patches(x)
    assert patches.shape == (2, 2, 3, 12)
    np.testing.assert_array_equal(patches[1, 1, 2].ravel()[:6], x[1, 2, 4:6].ravel())
    np.testing.assert_array_equal(conv_lstm.to_frame(patches), x)


def test_the_conv_lstm_starts_a_sequence_from_the_zero_state():
    task = conv_lstm.ConvLstm(8, 8, 1, "moving_digits")
    params, outputs = task.init_params(jax.random.key(0)), jax.jit(task.outputs)
    frames = jax.random.uniform(jax.random.key(1), (4, 2, 8, 8, 1))
    zero = task.initial_carry(2, np.float32)
    for carry, stand_in in (
        (zero, 1.0),
        (outputs(params, zero, frames, False)[1], 0.0),
    ):
        other = outputs(params, carry, frames.at[0].set(stand_in), True)[0]
        expected = outputs(params, zero, frames, True)[0]
        np.testing.assert_array_equal(other[1:], expected[1:])
