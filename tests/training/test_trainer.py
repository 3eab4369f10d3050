import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
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
from prednet_jax.errors import UserError
from prednet_jax.objectives import Method
from prednet_jax.training import evaluation, loop
from prednet_jax.training.trainer import Validation
from tests.experiments import tiny_task

CONFIG = PredNetConfig(channels=(3,), height=8, width=8, convolution="xla")
VIDEO = np.random.default_rng(0).integers(0, 256, (23, 8, 8, 3), np.uint8)
same = chex.assert_trees_all_equal


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
    read = lambda a, b: VIDEO[a:b]  # noqa: E731
    source = data.FrameSource("video", 8, 8, 3, 23, (0,), read, "none")
    schedule = data.schedule(23, (0,), 5, 4)
    steps = loop.train(trainer, trainer.init(params), source, schedule, seed=0)
    after = [after for after, _ in steps]
    same(after[-1], state)


def test_nothing_is_compiled_again(params, compiled):
    trainer = Trainer(CONFIG)
    state = trainer.init(params)
    shown = next(windows(VIDEO, 5))
    state, _ = trainer.step(state, *shown)
    trainer.evaluate(params, VIDEO)
    train_windows(params, CONFIG, VIDEO, window=5)
    assert compiled  # The listener hears.
    compiled.clear()
    trainer.step(state, shown[0], True)
    trainer.step(state, shown[0], 0)
    trainer.evaluate(params, VIDEO[:17])
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


def test_evaluation_is_what_predict_predicts(params):
    predictions, _ = predict(params, CONFIG, jnp.asarray(VIDEO[:, None] / 255.0, "f4"))
    expected = np.square(predictions[:, 0] - VIDEO / 255.0).mean(axis=(1, 2, 3))[1:]
    steps = np.diff(VIDEO / 255.0, axis=0)
    found = Trainer(CONFIG).evaluate(params, VIDEO)
    np.testing.assert_allclose(found.frame_losses, expected, rtol=1e-5)
    assert found.loss == pytest.approx(expected.mean(), rel=1e-5)
    assert found.copy_last_frame_loss == pytest.approx(np.square(steps).mean())
    assert found.ratio == found.loss / found.copy_last_frame_loss
    assert Trainer(CONFIG).evaluate(params, VIDEO[[0, 0]]).ratio == np.inf


def test_a_network_that_is_lost_has_no_score(params):
    """Clipping hides NaN: its white frames had the loss of any bad prediction."""
    lost = params | {"gates_0": jax.tree.map(lambda x: x * np.nan, params["gates_0"])}
    found = Trainer(CONFIG).evaluate(lost, VIDEO)
    assert np.isnan(found.frame_losses).all()
    assert np.isnan([found.loss, found.ratio]).all()


def test_images_are_evaluated_one_by_one():
    trainer = Trainer(AutoencoderConfig(height=8, width=8, channels=3, hidden=(4,)))
    state = trainer.init(jax.random.key(0))
    found = trainer.evaluate(state.params, VIDEO[:3])
    assert found.copy_last_frame_loss is None
    assert found.ratio is None
    _, metrics = trainer.step(state, VIDEO[1:2, None], True)
    np.testing.assert_allclose(found.frame_losses[1:2], metrics.frame_losses, rtol=1e-6)


def test_mse_is_that_of_predict_from_the_zero_state():
    """The loss and the gradient of a window that opens a sequence, whatever came."""
    config = dataclasses.replace(CONFIG, variant="lotter")
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
    chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-8)


RNG = np.random.default_rng(0)


def test_scores_by_hand():
    truth = np.zeros((3, 8, 9, 1))
    guess = truth.copy()
    guess[1] = 0.1
    guess[2, 0, 0, 0] = 0.72
    found = evaluation.score(truth, guess)
    np.testing.assert_allclose(found["mse"], [0, 0.01, 0.72**2 / 72])
    np.testing.assert_allclose(found["mae"], [0, 0.1, 0.01])
    assert found["psnr"][1] == pytest.approx(20)
    assert found["psnr"][0] == math.inf
    assert found["ssim"][0] == 1
    # Of frames of which one is exact it is that of the mean error.
    rows = evaluation.table(
        found, {name: of[[0, 0, 1]] for name, of in found.items()}, 9
    )
    assert evaluation.means(rows)["observed"]["copy_psnr"] == pytest.approx(23.0103)


def test_observed_and_extrapolated_frames_are_told_apart():
    count = np.arange(6.0).reshape(6, 1, 1, 1)
    assert evaluation.last_seen(count, None).ravel().tolist() == [0, 0, 1, 2, 3, 4]
    assert evaluation.last_seen(count, 3).ravel().tolist() == [0, 0, 1, 2, 2, 2]
    truth = RNG.random((6, 8, 8, 1))
    guess = evaluation.score(truth, RNG.random((6, 8, 8, 1)))
    copy = evaluation.score(truth, evaluation.last_seen(truth, 3))
    rows = evaluation.table(guess, copy, 3)
    assert [row["frame"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["observed"] for row in rows] == [True, True, False, False, False]
    means = evaluation.means(rows)
    assert means["observed"]["mse"] == pytest.approx(guess["mse"][1:3].mean())
    assert means["extrapolated"]["copy_ssim"] == pytest.approx(copy["ssim"][3:].mean())
    assert set(evaluation.means(evaluation.table(guess, copy, None))) == {"observed"}


@pytest.mark.parametrize("spec", ["", 0])
def test_what_is_no_noise_is_refused(params, spec):
    """It was trained without noise."""
    with pytest.raises(ValueError, match="expected a noise spec"):
        train_windows(params, CONFIG, VIDEO[:12], window=5, noise=spec)


def test_another_network_of_next_frames_is_scored_as_prednet_is():
    task = tiny_task.TINY
    params = task.init_params(jax.random.key(0))
    walk = data.open_source("walk", height=8, width=8)
    source = dataclasses.replace(walk, length=8)
    found = evaluation.evaluate(params, task, source, frames=4)
    shown = np.stack([source.read(0, 4), source.read(4, 8)], 1)
    expected = Trainer(task).evaluate(params, shown)
    assert found["observed"]["mse"] == pytest.approx(expected.loss, rel=1e-5)
    assert found["observed"]["ratio"] == pytest.approx(expected.ratio, rel=1e-5)
    with pytest.raises(UserError, match="extrapolate_from=3"):
        evaluation.evaluate(params, task, source, frames=4, extrapolate_from=3)


CHANGES = {
    "grey": lambda x: x[..., :1],
    "the last alone": lambda x: x[-1:],
    "without an axis": lambda x: x[:, 0],
    "a mean": lambda x: x.mean(),
    "integers": lambda x: jnp.round(255 * x).astype(jnp.uint8),
}


@pytest.mark.parametrize("change", CHANGES)
def test_predictions_unlike_their_frames_are_named(change):
    """They were broadcast to the frames, and scored."""

    class Unlike(tiny_task.Tiny):
        def outputs(self, *args):
            predictions, carry = super().outputs(*args)
            return CHANGES[change](predictions), carry

    task = Unlike()
    trainer, params = Trainer(task), task.init_params(jax.random.key(0))
    for steps, call in (
        (4, lambda: trainer.step(trainer.init(params), VIDEO[:5, None], True)),
        (23, lambda: trainer.evaluate(params, VIDEO)),
    ):
        words = rf"Unlike predicts .* of shape \({steps}, 1, 8, 8, 3\)"
        with pytest.raises(UserError, match=words):
            call()


def test_a_prediction_unlike_its_frames_is_named():
    class Grey(tiny_task.Tiny):
        def predict(self, params, frames):
            return super().predict(params, frames)[..., :1]

    params = Grey().init_params(jax.random.key(0))
    with pytest.raises(UserError, match="Grey predicts float32 of shape"):
        Trainer(Grey()).evaluate(params, VIDEO)


@pytest.mark.parametrize("update", [jnp.sum, lambda x: x[None]])
def test_updates_unlike_their_parameters_are_named(update):
    """A sum was added to each number of its parameter."""

    def updates(grads, state, params=None):
        return jax.tree.map(update, grads), state

    optimizer = optax.GradientTransformation(lambda params: (), updates)
    trainer = Trainer(tiny_task.TINY, optimizer)
    state = trainer.init(jax.random.key(0))
    with pytest.raises(UserError, match=r"optimizer: shapes=.*: expected an up"):
        trainer.step(state, VIDEO[:5, None], True)


def test_noise_on_weights_is_put_on_those_given(params):
    """It was left out; and every draw of it was the same."""
    spec, key = noise.BitFlip(bit=20), jax.random.key(5)
    found, _ = train_windows(params, CONFIG, VIDEO, window=5, noise=spec, key=key)
    start = noise.perturb_tree(spec, key, params)
    same(found, train_windows(start, CONFIG, VIDEO, window=5)[0])
    draws = [loop.prepare_params(params, np.float32, spec, 0, n) for n in (0, 1)]
    assert optax.tree.norm(optax.tree.sub(*draws)) > 0


def test_few_pieces_of_an_endless_source_are_few():
    source = data.open_source("walk", height=8, width=8, channels=3)
    begins = evaluation.pieces(source, 2, 3, skip=100_000_000)
    assert begins == [200_000_000, 200_000_002, 200_000_004]


def test_pieces_can_be_skipped_and_the_first_of_all_sequences_come_first():
    source = data.open_split("walk", "test", sequences=3, height=8, width=8, channels=3)
    assert evaluation.pieces(source, 100, 4) == [0, 300, 600, 100]
    assert evaluation.pieces(source, 100, 2, 2) == [600, 100]
    with pytest.raises(UserError, match="there are 7 pieces"):
        evaluation.pieces(source, 100, 8, 2)


def test_a_validation_leaves_no_frame_out_or_says_how_many(capsys):
    """Of 150 held-out frames 50 were left out in silence, those after the 100th."""
    size = {"height": 8, "width": 8, "channels": 3}
    for length, shape, said in ((150, (75, 2), ""), (101, (100, 1), "100 of 101 fra")):
        walk = data.open_split("walk", "test", sequences=1, **size)
        source = dataclasses.replace(walk, length=length)
        held_out = Validation(Trainer(CONFIG), source)
        assert held_out.frames.shape[:2] == shape
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == bool(said)
