import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import PredNetConfig, data, init_params, objectives, predict
from prednet_jax.models import prednet
from prednet_jax.objectives import Method
from prednet_jax.training import loop

FRAMES = jax.random.uniform(jax.random.key(1), (4, 2, 4, 4, 1))
WINDOW = jnp.concatenate([FRAMES[:1], FRAMES])
PUBLISHED = {"watanabe": "squares", "lotter": "errors"}


def network(variant, channels=(1,)):
    config = PredNetConfig(
        channels=channels, height=4, width=4, variant=variant, convolution="shifted"
    )
    return config, init_params(config, jax.random.key(0))


def window_loss(params, config, **method):
    state = prednet.initial_state(config, FRAMES.shape[1])
    return objectives.window_loss(
        params, config, state, WINDOW, jnp.asarray(True), Method(**method)
    )[0]


def step_by_step(params, config, k):
    """Each frame shown by itself: true ones up to k, then the network's own."""
    state = prednet.initial_state(config, FRAMES.shape[1])
    predictions, made = [], None
    for t, frame in enumerate(FRAMES):
        shown = frame if t < k else made
        found, state = predict(params, config, shown[None], state)
        # `watanabe` has its prediction of the next frame in the state.
        made = state.prediction[0]
        predictions.append(found[0])
    apart = jnp.stack(predictions)[1:] - FRAMES[1:]
    if config.variant == "lotter":
        return jnp.abs(apart).mean() / 2
    return jnp.square(apart).mean(axis=(1, 2, 3, 4)).sum()


@pytest.mark.parametrize(("variant", "k"), [("watanabe", 1), ("lotter", 2)])
def test_loss_and_gradient_are_those_of_single_steps(variant, k):
    config, params = network(variant)
    method = {"objective": PUBLISHED[variant], "extrapolate_from": k}
    found = jax.jit(jax.value_and_grad(lambda p: window_loss(p, config, **method)))
    expected = jax.jit(jax.value_and_grad(lambda p: step_by_step(p, config, k)))
    (value, grads), (true, oracle) = found(params), expected(params)
    np.testing.assert_allclose(value, true, rtol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7),
        grads,
        oracle,
    )


@pytest.mark.parametrize("variant", PUBLISHED)
def test_with_every_frame_seen_it_is_ordinary_training(variant):
    config, params = network(variant)
    run = jax.jit(
        lambda p, k: window_loss(
            p, config, objective=PUBLISHED[variant], extrapolate_from=k
        ),
        static_argnums=1,
    )
    plain, seen, hidden = (float(run(params, k)) for k in (None, len(FRAMES), 2))
    assert seen == pytest.approx(plain, rel=1e-6)
    assert hidden != pytest.approx(plain, rel=1e-3)


def test_windows_are_sequences_of_their_own_and_copying_sees_no_more():
    config, _ = network("watanabe")
    source = data.open_source("walk", height=4, width=4, channels=1, length=40)
    method = Method(extrapolate_from=2)
    schedule = loop.frame_schedule(config, source, window=5, updates=4, method=method)
    assert schedule.first.all()
    frames = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1, 1) * 51
    # The sequence is 1 to 5; 3, 4 and 5 are compared with 2, the last one seen.
    copied = loop.copy_last_frame_loss(frames, True, method)
    assert copied == pytest.approx(0.04 * (1 + 1 + 4 + 9) / 4)
