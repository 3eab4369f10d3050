import functools

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
    objectives,
    optimizers,
    predict,
    train_windows,
)
from prednet_jax.config import AutoencoderConfig
from prednet_jax.models import prednet
from prednet_jax.objectives import Method
from prednet_jax.training import loop, truncated

CONFIG = PredNetConfig(channels=(1, 2), height=4, width=4, convolution="xla")
PARAMS = init_params(CONFIG, jax.random.key(0))
FRAMES = jax.random.uniform(jax.random.key(1), (14, 4, 4, 1))


# Losses of 14 frames by window: 4 ends at frames 3, 7 and 11, and drops the tail. With
# window 1 of the published loop i = 1, 2, .. each end one.
COUNTS = {"watanabe": {4: 11, 1: 13}, "lotter": {4: 11}}


@pytest.mark.parametrize("variant", COUNTS)
def test_losses_of_a_still_network_are_those_of_predict(variant):
    """With no update the windows are one long prediction."""
    config, params = network(variant, channels=(1, 2))
    predictions, _ = predict(params, config, FRAMES[:, None])
    expected = jnp.square(predictions[:, 0] - FRAMES).mean(axis=(1, 2, 3))
    for window, count in COUNTS[variant].items():
        options = {"window": window, "optimizer": optax.sgd(0.0)}
        trained, losses = train_windows(params, config, FRAMES, **options)
        jax.tree.map(np.testing.assert_array_equal, trained, params)
        np.testing.assert_allclose(losses, expected[1 : count + 1], rtol=1e-5)


@functools.partial(jax.jit, static_argnums=2)
def window_gradient(state, first, leak=True):
    method = truncated.Method(truncation_leak=leak)
    gradient = jax.grad(objectives.window_loss, has_aux=True)
    return gradient(PARAMS, CONFIG, state, FRAMES[:5, None], first, method)


def carried():
    return predict(PARAMS, CONFIG, FRAMES[:4, None])[1]


def test_leak_reaches_only_the_upper_predictions():
    state = carried()
    true, report = window_gradient(state, False, False)
    leaky, same = window_gradient(state, False)
    np.testing.assert_array_equal(report.frame_losses, same.frame_losses)
    for name in true:
        for leaf in true[name]:
            gap = np.abs(true[name][leaf] - leaky[name][leaf]).max()
            if name == "prediction_1":
                assert gap > 1e-7, (name, leaf)
            else:
                assert gap <= 1e-6, (name, leaf)


def test_a_first_window_ignores_the_carried_state():
    fresh, a = window_gradient(prednet.initial_state(CONFIG, 1), True)
    used, b = window_gradient(carried(), True)
    np.testing.assert_array_equal(a.scored, [0, 1, 1, 1])
    np.testing.assert_array_equal(a.frame_losses[1:], b.frame_losses[1:])
    jax.tree.map(np.testing.assert_array_equal, fresh, used)


def test_errors_objective_of_a_first_window_is_the_published_loss():
    config, params = network("lotter", channels=(1, 2))
    lambdas = {"layer_weights": (1.0, 0.1)}
    loss = window_loss(params, config, objective="errors", **lambdas)
    expected = objectives.error_loss(params, config, SHOWN, **lambdas)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


def test_errors_objective_scores_the_frames_that_are_predicted():
    """That of `watanabe` scored the frame before, and nothing in a window of two."""
    window = FRAMES[:3, None]
    about = {"config": CONFIG, "window": window, "objective": "errors"}
    loss = functools.partial(window_loss, **about)
    predictions, _ = predict(PARAMS, CONFIG, window[1:])
    expected = jnp.abs(predictions[1] - window[2]).mean() / 2
    found, gradient = jax.jit(jax.value_and_grad(loss))(PARAMS)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert optax.tree.norm(gradient) > 1e-3


def test_autoencoder_is_unmoved_by_stale_targets():
    config = AutoencoderConfig(height=4, width=4, hidden=(3,))
    params = init_params(config, jax.random.key(0))
    optimizer = optimizers.chainer_adam(1e-2)
    ends = []
    for targets in objectives.TARGETS:
        method = truncated.Method(targets=targets)
        step = jax.jit(truncated.make_step(config, optimizer, method))
        state = truncated.initial_train_state(config, params, optimizer)
        for image in FRAMES:
            state, _ = step(state, image[None, None], True, jax.random.key(0))
        ends.append(state.params)
    jax.tree.map(np.testing.assert_array_equal, *ends)
    moved = optax.tree.norm(jax.tree.map(jnp.subtract, ends[0], params))
    assert moved > 1e-2


@pytest.mark.parametrize(("backend", "donated"), [("cpu", False), ("gpu", True)])
def test_the_state_is_donated_but_on_a_cpu(monkeypatch, backend, donated):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    update = truncated.jit_update(lambda state, frames: state + frames)
    (state, frames), _ = update.lower(jnp.ones(3), jnp.ones(3)).args_info
    assert (state.donated, frames.donated) == (donated, False)


def test_an_order_fixed_by_the_run_is_the_same_in_all_updates():
    """A step from one state, under orders of a call and of a run."""
    config = PredNetConfig(channels=(3,), height=8, width=8, convolution="xla")
    params = init_params(config, jax.random.key(0))
    optimizer = optax.sgd(1.0)
    start = truncated.initial_train_state(config, params, optimizer)
    frames = jax.random.uniform(jax.random.key(1), (5, 1, 8, 8, 3))

    def trained(step, update, key):
        state = start._replace(update=jnp.asarray(update, jnp.int32))
        state, _ = step(state, frames, jnp.bool_(True), jax.random.key(key))
        return b"".join(
            np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state.params)
        )

    for schedule, same in (("run", True), ("call", False)):
        spec = noise.parse(f"reduction_order:shortest=1,schedule={schedule}")
        step = jax.jit(truncated.make_step(config, optimizer, noise=spec))
        every = {trained(step, update, 2) for update in range(4)}
        assert (len(every) == 1) == same, schedule
        assert trained(step, 0, 3) not in every


def test_the_loss_of_copying_the_last_frame():
    window = np.zeros((4, 1, 1, 3), np.uint8)
    window[1:] = 51
    window[3] = 102
    # Steps of a fifth, zero and a fifth.
    whole = loop.copy_last_frame_loss(window, first=False)
    assert whole == pytest.approx(2 * 0.04 / 3)
    # The first frame of a sequence is a stand-in: its transition does not count.
    assert loop.copy_last_frame_loss(window, first=True) == pytest.approx(0.02)
    assert loop.copy_last_frame_loss(window[:1], first=True) is None


def test_the_loss_of_an_update_is_the_mean_over_what_counts():
    """The first window's stand-in has a loss of its own, which is not counted."""
    losses, scored = np.float32([8, 1, 2, 3]), np.float32([0, 1, 1, 1])
    metrics = truncated.StepMetrics(losses, scored, np.float32(5))
    assert metrics.loss == 2


SHOWN = jax.random.uniform(jax.random.key(1), (4, 2, 4, 4, 1))
WINDOW = jnp.concatenate([SHOWN[:1], SHOWN])
PUBLISHED = {"watanabe": "squares", "lotter": "errors"}


def network(variant, channels=(1,)):
    config = PredNetConfig(
        channels=channels, height=4, width=4, variant=variant, convolution="xla"
    )
    return config, init_params(config, jax.random.key(0))


def window_loss(params, config, window=WINDOW, **method):
    state = prednet.initial_state(config, window.shape[1])
    return objectives.window_loss(
        params, config, state, window, jnp.asarray(True), Method(**method)
    )[0]


def step_by_step(params, config):
    """Each frame shown by itself: the first, then the network's own."""
    state = prednet.initial_state(config, SHOWN.shape[1])
    predictions, shown = [], SHOWN[0]
    for _ in SHOWN:
        found, state = predict(params, config, shown[None], state)
        # `watanabe` has its prediction of the next frame in the state.
        shown = state.prediction[0]
        predictions.append(found[0])
    apart = jnp.stack(predictions)[1:] - SHOWN[1:]
    return jnp.square(apart).mean(axis=(1, 2, 3, 4)).sum()


def test_loss_and_gradient_are_those_of_single_steps():
    """Those of `lotter` are recorded (tests/weights/test_golden_keras.py)."""
    config, params = network("watanabe")
    method = {"objective": "squares", "extrapolate_from": 1}
    found = jax.jit(jax.value_and_grad(lambda p: window_loss(p, config, **method)))
    expected = jax.jit(jax.value_and_grad(lambda p: step_by_step(p, config)))
    (value, grads), (true, oracle) = found(params), expected(params)
    np.testing.assert_allclose(value, true, rtol=1e-6)
    chex.assert_trees_all_close(grads, oracle, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("variant", PUBLISHED)
def test_with_every_frame_seen_it_is_ordinary_training(variant):
    config, params = network(variant)

    def loss(p, k):
        method = {"objective": PUBLISHED[variant], "extrapolate_from": k}
        return window_loss(p, config, **method)

    run = jax.jit(loss, static_argnums=1)
    plain, seen, hidden = (float(run(params, k)) for k in (None, len(SHOWN), 2))
    assert seen == pytest.approx(plain, rel=1e-6)
    assert hidden != pytest.approx(plain, rel=1e-3)


def test_windows_are_sequences_of_their_own_and_copying_sees_no_more():
    config, _ = network("watanabe")
    source = data.open_source("walk", height=4, width=4, channels=1)
    method = Method(extrapolate_from=2)
    schedule = loop.frame_schedule(config, source, window=5, updates=4, method=method)
    assert schedule.first.all()
    frames = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1, 1) * 51
    # The sequence is 1 to 5; 3, 4 and 5 are compared with 2, the last one seen.
    copied = loop.copy_last_frame_loss(frames, True, method)
    assert copied == pytest.approx(0.04 * (1 + 1 + 4 + 9) / 4)


@pytest.mark.parametrize("variant", ["lotter", "watanabe"])
def test_a_batch_that_is_computed_again_needs_the_memory_of_one_sequence(variant):
    """Frames alone were computed again: 0.42 of the memory of a batch of four."""
    config = PredNetConfig(channels=(3, 8), height=16, width=16, variant=variant)
    params = init_params(config, jax.random.key(0))
    frames = jax.random.uniform(jax.random.key(1), (6, 4, 16, 16, 3))
    results, memory = [], []
    for again in (False, True):
        trainer = Trainer(config, method=Method(rematerialize=again))
        state = trainer.init(params, batch=4)
        inputs = state, frames, np.bool_(False), jax.random.key(0)
        compiled = trainer.program.lower(*inputs).compile()
        memory.append(compiled.memory_analysis().temp_size_in_bytes)
        results.append(trainer.step(*inputs))
    assert memory[1] < memory[0] / 3
    (state, metrics), (other, others) = results
    chex.assert_trees_all_close(others, metrics, rtol=1e-5)
    chex.assert_trees_all_close(other.carry, state.carry, atol=1e-5)
    moments, again = (s.optimizer_state for s in (state, other))
    chex.assert_trees_all_close(again, moments, rtol=1e-4, atol=1e-7)
