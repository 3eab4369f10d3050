"""The Keras original, recorded: predictions, outputs, gradients, Adam, weight files.

Tolerances: the recorded arrays are float32 and a float64 transcription agrees with
them to 2.1e-7 (golden/keras_tiny/README.md). Outputs are allowed 1e-6, losses,
gradients and weights 1e-5, relative.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from prednet_jax import objectives, optimizers
from prednet_jax.config import PredNetConfig
from prednet_jax.models import prednet
from prednet_jax.weights import keras
from tests.processes import ROOT

pytestmark = pytest.mark.optimized
GOLDEN = ROOT / "tests" / "golden" / "keras_tiny"


def load(name):
    gold = np.load(GOLDEN / f"gold_{name}.npz")
    recorded = json.loads(str(gold["config_json"]))
    config = PredNetConfig(
        channels=tuple(recorded["stack"]),
        variant="lotter",
        height=recorded["h"],
        width=recorded["w"],
        r_channels=tuple(recorded["rstack"]),
        pixel_max=recorded["pixel_max"],
        a_filters=tuple(recorded["af"]),
        ahat_filters=tuple(recorded["ahf"]),
        r_filters=tuple(recorded["rf"]),
    )
    arrays = {key[2:]: gold[key] for key in gold.files if key.startswith("w/")}
    params = keras.from_keras(config, arrays)
    return gold, config, params, time_first(gold["frames"])


def time_first(x):
    return jnp.asarray(np.swapaxes(x, 0, 1))


@pytest.mark.parametrize("name", ["A", "B"])
def test_every_output_mode(name):
    gold, config, params, frames = load(name)
    kinds = [f"{k}{i}" for k in ("R", "E", "A", "Ahat") for i in range(config.layers)]
    modes = ("prediction", "error", *kinds)
    run = jax.jit(lambda *given: prednet.outputs(given[0], config, given[1], modes)[0])
    found = run(params, frames)
    for mode in ("prediction", "error"):
        expected = np.swapaxes(gold[mode], 0, 1)
        np.testing.assert_allclose(found[mode], expected, rtol=0, atol=1e-6)
    for mode in kinds:
        last = gold[f"last/{mode}"]
        np.testing.assert_allclose(found[mode][-1], last, rtol=0, atol=1e-6)
        if name == "B":
            expected = np.swapaxes(gold[f"seq/{mode}"], 0, 1)
            np.testing.assert_allclose(found[mode], expected, rtol=0, atol=1e-6)


def test_extrapolation():
    gold, config, params, frames = load("A")
    start = int(gold["extrap_start_time"])
    modes = ("prediction", "error", "A0")
    options = {"names": modes, "extrapolate_from": start}
    run = jax.jit(lambda p, x: prednet.outputs(p, config, x, **options)[0])
    found = run(params, frames)
    predictions, errors, target = (found[mode] for mode in modes)
    expected = np.swapaxes(gold["extrap/prediction"], 0, 1)
    np.testing.assert_allclose(predictions, expected, rtol=0, atol=1e-6)
    other = np.swapaxes(gold["extrap/error"], 0, 1)
    np.testing.assert_allclose(errors, other, rtol=0, atol=1e-6)
    np.testing.assert_allclose(target[-1], gold["extrap/last_A0"], rtol=0, atol=1e-6)
    plain = np.swapaxes(gold["prediction"], 0, 1)
    assert np.abs(expected[start + 1 :] - plain[start + 1 :]).max() > 1e-4


def check_gradient(config, tag, loss, grads):
    grad = np.load(GOLDEN / "grad_A.npz")
    np.testing.assert_allclose(loss, grad[f"{tag}/loss"], rtol=1e-5)
    for name, found in keras.to_keras(config, grads).items():
        expected = grad[f"{tag}/grad/{name}"]
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error < 1e-5, (name, error)


@pytest.mark.parametrize(
    "tag", [pytest.param("Lall", marks=pytest.mark.slow), "extrap"]
)
def test_gradients(tag):
    _, config, params, frames = load("A")
    grad = np.load(GOLDEN / "grad_A.npz")

    def loss(params):
        if tag == "extrap":
            start = int(grad["extrap/extrap_start_time"])
            method = objectives.Method(objective="errors", extrapolate_from=start)
            window = jnp.concatenate([frames[:1], frames])
            state = prednet.initial_state(config, frames.shape[1])
            first = jnp.asarray(True)
            args = (params, config, state, window, first, method)
            return objectives.window_loss(*args)[0]
        weights = tuple(float(w) for w in grad[f"{tag}/layer_loss_weights"])
        return objectives.error_loss(params, config, frames, layer_weights=weights)

    check_gradient(config, tag, *jax.jit(jax.value_and_grad(loss))(params))


def test_five_adam_steps():
    """The first gradient is that of the loss of layer 0 alone."""
    _, config, params, frames = load("A")
    adam = np.load(GOLDEN / "adam_A.npz")
    optimizer = optimizers.chainer_adam(eps=1e-7)

    @jax.jit
    def step(params, state):
        loss, grads = jax.value_and_grad(objectives.error_loss)(params, config, frames)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss, grads

    start, state, losses = params, optimizer.init(params), []
    for update in range(6):
        before = params
        params, state, loss, grads = step(params, state)
        losses.append(loss)
        if update == 0:
            check_gradient(config, "L0", loss, grads)
    np.testing.assert_allclose(losses, adam["losses"], rtol=1e-5)
    initial = keras.to_keras(config, start)
    for name, found in keras.to_keras(config, before).items():
        expected = adam[f"w_after/{name}"]
        size = np.linalg.norm(expected - initial[name])
        assert np.linalg.norm(found - expected) < 1e-5 * size, name


@pytest.mark.parametrize("file", ["A_save_weights.hdf5", "A_save_weights_vlen.hdf5"])
def test_weight_files_hold_the_weights_of_gold(file):
    _, config, params, _ = load("A")
    loaded_config, loaded = keras.load_keras(GOLDEN / file, height=24, width=32)
    assert loaded_config == config
    jax.tree.map(np.testing.assert_array_equal, loaded, params)


def test_full_model_file_holds_the_weights_after_training():
    adam = np.load(GOLDEN / "adam_A.npz")
    path = GOLDEN / "A_modelcheckpoint_full.hdf5"
    config, loaded = keras.load_keras(path, height=24, width=32)
    for name, found in keras.to_keras(config, loaded).items():
        np.testing.assert_array_equal(found, adam[f"w_after/{name}"])
