import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from prednet_jax import (
    PredNetConfig,
    init_params,
    noise,
    objectives,
    optimizers,
    predict,
    train_windows,
)
from prednet_jax.config import AutoencoderConfig
from prednet_jax.models import prednet
from prednet_jax.training import loop, truncated

CONFIG = PredNetConfig(channels=(1, 2), height=4, width=4)
PARAMS = init_params(CONFIG, jax.random.key(0))
FRAMES = jax.random.uniform(jax.random.key(1), (14, 4, 4, 1))
STILL = optax.sgd(0.0)


@pytest.mark.parametrize("variant", ["watanabe", "lotter"])
def test_losses_of_a_still_network_are_those_of_predict(variant):
    """With no update the windows are one long prediction."""
    config = dataclasses.replace(CONFIG, variant=variant)
    params = init_params(config, jax.random.key(0))
    trained, losses = train_windows(params, config, FRAMES, window=4, optimizer=STILL)
    jax.tree.map(np.testing.assert_array_equal, trained, params)
    predictions, _ = predict(params, config, FRAMES[:, None])
    expected = jnp.square(predictions[:, 0] - FRAMES).mean(axis=(1, 2, 3))
    # 14 frames, windows end at 3, 7, 11: eleven losses, the tail dropped.
    assert losses.shape == (11,)
    np.testing.assert_allclose(losses, expected[1:12], rtol=1e-5)


def test_window_one_updates_after_every_frame():
    """The published loop with window 1: i = 1, 2, .. each end a window."""
    _, losses = train_windows(PARAMS, CONFIG, FRAMES, window=1, optimizer=STILL)
    predictions, _ = predict(PARAMS, CONFIG, FRAMES[:, None])
    expected = jnp.square(predictions[:, 0] - FRAMES).mean(axis=(1, 2, 3))
    assert losses.shape == (13,)
    np.testing.assert_allclose(losses, expected[1:], rtol=1e-5)
    # One transition is a step of plain gradient descent from the zero state.
    descent = optax.sgd(0.1)
    trained, _ = train_windows(PARAMS, CONFIG, FRAMES[:2], window=1, optimizer=descent)

    def loss(params):
        made, _ = predict(params, CONFIG, FRAMES[:2, None])
        return jnp.square(made[1, 0] - FRAMES[1]).mean()

    grads = jax.jit(jax.grad(loss))(PARAMS)
    by_hand = jax.tree.map(lambda p, g: p - 0.1 * g, PARAMS, grads)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), trained, by_hand
    )


@functools.partial(jax.jit, static_argnums=(4, 5))
def compiled_gradient(params, state, frames, first, targets, leak):
    method = truncated.Method(targets=targets, truncation_leak=leak)
    gradient = jax.grad(objectives.window_loss, has_aux=True)
    return gradient(params, CONFIG, state, frames[:, None], first, method)


def window_gradient(
    targets="true", leak=False, frames=FRAMES[:5], state=None, first=True
):
    state = prednet.initial_state(CONFIG, 1) if state is None else state
    first = jnp.asarray(first)
    return compiled_gradient(PARAMS, state, frames, first, targets, leak)


def test_stale_targets_change_the_gradient_and_not_the_report():
    true, report = window_gradient()
    stale, same = window_gradient("stale")
    np.testing.assert_array_equal(report.frame_losses, same.frame_losses)
    gap = truncated.global_norm(jax.tree.map(jnp.subtract, true, stale))
    assert gap > 0.01 * truncated.global_norm(true)
    # Frames that are all alike have no stale target.
    alike = jnp.broadcast_to(FRAMES[:1], (5, *FRAMES.shape[1:]))
    (one, _), (other, _) = (window_gradient(t, frames=alike) for t in ("true", "stale"))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def carried():
    return predict(PARAMS, CONFIG, FRAMES[:4, None])[1]


def test_leak_reaches_only_the_upper_predictions():
    state = carried()
    true, report = window_gradient(state=state, first=False)
    leaky, same = window_gradient(leak=True, state=state, first=False)
    np.testing.assert_array_equal(report.frame_losses, same.frame_losses)
    for name in true:
        for leaf in true[name]:
            gap = np.abs(true[name][leaf] - leaky[name][leaf]).max()
            if name == "prediction_1":
                assert gap > 1e-7, (name, leaf)
            else:
                assert gap <= 1e-6, (name, leaf)


def test_a_first_window_ignores_the_carried_state():
    fresh, a = window_gradient(leak=True)
    used, b = window_gradient(leak=True, state=carried())
    np.testing.assert_array_equal(a.scored, [0, 1, 1, 1])
    np.testing.assert_array_equal(a.frame_losses[1:], b.frame_losses[1:])
    jax.tree.map(np.testing.assert_array_equal, fresh, used)


def test_errors_objective_of_a_first_window_is_the_published_loss():
    config = PredNetConfig(channels=(1, 2), height=4, width=4, variant="lotter")
    params = init_params(config, jax.random.key(0))
    window = jnp.concatenate([FRAMES[:1], FRAMES[:4]])[:, None]
    loss, _ = objectives.window_loss(
        params,
        config,
        prednet.initial_state(config, 1),
        window,
        jnp.asarray(True),
        truncated.Method(objective="errors", layer_weights=(1.0, 0.1)),
    )
    expected = objectives.error_loss(
        params, config, FRAMES[:4, None], layer_weights=(1.0, 0.1)
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


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
    moved = truncated.global_norm(jax.tree.map(jnp.subtract, ends[0], params))
    assert moved > 1e-2


@pytest.mark.parametrize(("backend", "donated"), [("cpu", False), ("gpu", True)])
def test_the_state_is_donated_but_on_a_cpu(monkeypatch, backend, donated):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    update = truncated.jit_update(lambda state, frames: state + frames)
    (state, frames), _ = update.lower(jnp.ones(3), jnp.ones(3)).args_info
    assert (state.donated, frames.donated) == (donated, False)


def test_an_order_fixed_by_the_run_is_the_same_in_all_updates():
    """The gradient of one input, under orders of a call and of a run."""
    config = PredNetConfig(channels=(3, 4), height=8, width=8)
    params = init_params(config, jax.random.key(0))
    optimizer = optax.sgd(1.0)
    start = truncated.initial_train_state(config, params, optimizer)
    frames = jax.random.uniform(jax.random.key(1), (5, 1, 8, 8, 3))
    for schedule, same in (("run", True), ("call", False)):
        spec = noise.parse(f"reduction_order:shortest=1,schedule={schedule}")
        step = jax.jit(truncated.make_step(config, optimizer, noise=spec))
        norms = {
            float(
                step(
                    start._replace(update=jnp.asarray(update, jnp.int32)),
                    frames,
                    jnp.bool_(True),
                    jax.random.key(2),
                )[1].grad_norm
            )
            for update in range(4)
        }
        assert (len(norms) == 1) == same, schedule
        other = step(start, frames, jnp.bool_(True), jax.random.key(3))[1].grad_norm
        assert not same or float(other) not in norms


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
    record = loop.update_record(1, 3, metrics, None, 0.1)
    assert (record.loss, record.last_frame_loss, record.grad_norm) == (2, 3, 5)
