import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import (
    PredNetConfig,
    Trainer,
    data,
    init_params,
    noise,
    optimizers,
    predict,
    tasks,
    train_windows,
    windows,
)
from prednet_jax.config import AutoencoderConfig
from prednet_jax.objectives import Method
from prednet_jax.training import loop

CONFIG = PredNetConfig(channels=(3,), height=8, width=8, convolution="shifted")
VIDEO = np.random.default_rng(0).integers(0, 256, (23, 8, 8, 3), np.uint8)


@pytest.fixture(scope="module")
def params():
    return init_params(CONFIG, jax.random.key(0))


@pytest.fixture
def compiled():
    """Names of what JAX compiles while the test runs."""
    names = []

    def note(event, duration, **more):
        del duration
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(more.get("fun_name", ""))

    jax.monitoring.register_event_duration_secs_listener(note)
    yield names
    jax.monitoring.unregister_event_duration_listener(note)


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_a_loop_of_ones_own_is_that_of_the_scripts_and_of_train_windows(params):
    trainer = Trainer(CONFIG)
    state = trainer.init(params)
    losses = []
    for frames, first in windows(VIDEO, 5):
        state, metrics = trainer.step(state, frames, first)
        losses.append(metrics.frame_losses)
    trained, reported = train_windows(params, CONFIG, VIDEO, window=5)
    same(state.params, trained)
    np.testing.assert_array_equal(np.concatenate(losses)[1:], reported)
    source = data.FrameSource(
        "video", 8, 8, 3, 23, (0,), lambda a, b: VIDEO[a:b], "none"
    )
    schedule = data.schedule(23, (0,), 5, 4)
    steps = loop.train(trainer, trainer.init(params), source, schedule, seed=0)
    after = [after for after, _ in steps]
    same(after[-1], state)


def test_nothing_is_compiled_again(params, compiled):
    """Other lengths, other trainers of the same settings, Python's own numbers."""
    trainer = Trainer(CONFIG)
    state = trainer.init(params)
    shown = next(windows(VIDEO, 5))
    state, _ = trainer.step(state, *shown)
    trainer.evaluate(params, VIDEO, window=5)
    train_windows(params, CONFIG, VIDEO, window=5)
    assert compiled  # The listener hears.
    compiled.clear()
    trainer.step(state._replace(update=1), shown[0], True)
    trainer.step(state, shown[0], 0)
    trainer.evaluate(params, VIDEO[:17], window=5)
    Trainer(CONFIG, optimizers.chainer_adam(1e-3)).step(state, *shown)
    train_windows(params, CONFIG, VIDEO[:12], window=5)
    train_windows(params, CONFIG, jax.device_put(VIDEO), window=5)
    assert compiled == []
    noisy = [Trainer(CONFIG, noise=noise.parse("ulp")).program for _ in range(2)]
    assert noisy[0] is noisy[1] is not trainer.program
    # It is the settings that decide.
    Trainer(CONFIG, optimizers.chainer_adam(1e-2)).step(state, *shown)
    assert compiled
    # A program for each shape of weights took a second, and 40 MB to keep.
    compiled.clear()
    init_params(PredNetConfig(channels=(2, 7), height=12, width=20), jax.random.key(0))
    assert compiled == []


def test_evaluation_is_what_predict_predicts_whatever_the_window(params):
    predictions, _ = predict(params, CONFIG, jnp.asarray(VIDEO[:, None] / 255.0, "f4"))
    expected = np.square(predictions[:, 0] - VIDEO / 255.0).mean(axis=(1, 2, 3))[1:]
    steps = np.diff(VIDEO / 255.0, axis=0)
    for window in (5, 40):
        found = Trainer(CONFIG).evaluate(params, VIDEO, window=window)
        np.testing.assert_allclose(found.frame_losses, expected, rtol=1e-5)
        assert found.loss == pytest.approx(expected.mean(), rel=1e-5)
        assert found.copy_last_frame_loss == pytest.approx(np.square(steps).mean())
        assert found.ratio == found.loss / found.copy_last_frame_loss


def test_images_are_evaluated_one_by_one():
    trainer = Trainer(AutoencoderConfig(height=8, width=8, channels=3, hidden=(4,)))
    state = trainer.init(jax.random.key(0))
    found = trainer.evaluate(state.params, VIDEO[:3])
    assert found.copy_last_frame_loss is None
    assert found.ratio is None
    _, metrics = trainer.step(state, VIDEO[1:2, None], True)
    np.testing.assert_allclose(found.frame_losses[1:2], metrics.frame_losses, rtol=1e-6)


def test_the_examples_of_the_documents_run(capsys):
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        exec(example, {})
    assert float(capsys.readouterr().out) > 0


@pytest.mark.parametrize("variant", ["watanabe", "lotter"])
def test_mse_is_that_of_predict_from_the_zero_state(variant):
    """The loss and the gradient of a window that opens a sequence, whatever came."""
    config = dataclasses.replace(CONFIG, variant=variant)
    params = init_params(config, jax.random.key(1))
    frames = jnp.asarray(VIDEO[:4, None] / 255.0, "f4")

    def plain(params):
        predictions, _ = predict(params, config, frames)
        return jnp.square(predictions[1:] - frames[1:]).mean()

    task = tasks.of(config)
    before = jax.tree.map(jnp.ones_like, task.initial_carry(1, jnp.float32))
    window = jnp.concatenate([frames[:1], frames])

    def trained(params):
        method = Method(objective="mse")
        return task.loss(params, before, window, jnp.asarray(True), method)[0]

    expected, found = (jax.jit(jax.value_and_grad(f))(params) for f in (plain, trained))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-8),
        expected,
        found,
    )
