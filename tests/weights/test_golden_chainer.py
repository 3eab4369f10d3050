"""Chainer 7.8.1's training, recorded on a CPU: true and stale targets.

Tolerances: losses 1e-5 relative; weights 1e-5 of the size of the update, tensor by
tensor: an independent float32 re-implementation reached 1e-6, and leaving out the
truncation leak alone costs 18 to 35 % on the worst tensor.
"""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import objectives, weights
from prednet_jax.errors import UserError
from prednet_jax.models import prednet
from prednet_jax.training import truncated
from prednet_jax.training.trainer import train_windows
from prednet_jax.weights import chainer
from tests.processes import ROOT

pytestmark = pytest.mark.optimized
GOLDEN = ROOT / "tests" / "golden" / "chainer_tiny"
WINDOW = 5


def frames():
    return jnp.asarray(np.load(GOLDEN / "frames.npz")["frames"])


@pytest.mark.parametrize(
    ("mode", "targets"), [("copied", "true"), ("aliased", "stale")]
)
def test_training_reproduces_chainer(mode, targets):
    config, params = chainer.load_chainer(GOLDEN / "initial.model.npz")
    trace = np.load(GOLDEN / f"trace.{mode}.npz")
    trained, losses = train_windows(
        params, config, frames(), window=WINDOW, targets=targets, truncation_leak=True
    )
    # Windows end after frames 4, 9, ... 39: the 40th transition is a dropped tail.
    assert list(trace["update_after_frame"]) == list(range(4, 40, WINDOW))
    np.testing.assert_allclose(losses, trace["frame_loss"][:39], rtol=1e-5)
    final = np.load(GOLDEN / f"final.{mode}.model.npz")
    start = chainer.to_chainer(config, params)
    found = chainer.to_chainer(config, trained)
    assert sorted(found) == sorted(final.files)
    for name in found:
        size = np.linalg.norm(final[name] - start[name])
        assert np.linalg.norm(found[name] - final[name]) <= 1e-5 * size, name


def test_first_window_gradient_and_predictions():
    config, params = chainer.load_chainer(GOLDEN / "initial.model.npz")
    trace = np.load(GOLDEN / "trace.copied.npz")
    x = truncated.to_pixels(frames(), jnp.float32)[:, None]
    window = jnp.concatenate([x[:1], x[:WINDOW]])

    @jax.jit
    def run(params):
        state = prednet.initial_state(config, 1)
        gradient = jax.grad(objectives.window_loss, has_aux=True)
        grads, _ = gradient(params, config, state, window, jnp.asarray(True))
        return grads, prednet.predict(params, config, x[:WINDOW])[0]

    grads, predictions = run(params)
    # predictions[t] is of frame t; Chainer's [i] is of frame i + 1.
    expected = trace["predictions"][: WINDOW - 1]
    np.testing.assert_allclose(predictions[1:, 0], expected, rtol=0, atol=1e-6)
    for name, found in chainer.to_chainer(config, grads).items():
        expected = trace[f"first_window_grad/{name}"]
        error = np.linalg.norm(found - expected)
        assert error <= 1e-5 * np.linalg.norm(expected), name


def test_a_file_is_known_by_what_it_holds(tmp_path):
    shutil.copy(GOLDEN / "initial.model.npz", tmp_path / "model.hdf5")
    config, _ = weights.load(tmp_path / "model.hdf5", height=8, width=8)
    assert (config.variant, config.height) == ("watanabe", 24)
    keras = GOLDEN.parent / "keras_tiny" / "A_modelcheckpoint_full.hdf5"
    shutil.copy(keras, tmp_path / "weights")
    config, _ = weights.load(tmp_path / "weights", height=24, width=32)
    assert (config.variant, config.height) == ("lotter", 24)
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(UserError, match="ConvLSTM0/c_i/W"):
        chainer.load_chainer(tmp_path / "other.npz")
