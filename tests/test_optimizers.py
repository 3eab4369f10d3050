import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from prednet_jax import optimizers


def by_hand(gradients, rate=1e-3, b1=0.9, b2=0.999, eps=1e-8):
    """Chainer's update in float64, transcribed from the formula."""
    x = m = v = 0.0
    for t, g in enumerate(gradients, 1):
        m += (1 - b1) * (g - m)
        v += (1 - b2) * (g * g - v)
        lr = rate * np.sqrt(1 - b2**t) / (1 - b1**t)
        x -= lr * m / (np.sqrt(v) + eps)
    return x


def run(optimizer, gradients):
    # optax.adam itself mixes dtypes.
    with jax.numpy_dtype_promotion("standard"):
        return run_strictly(optimizer, gradients)


def run_strictly(optimizer, gradients):
    x = jnp.zeros(())
    state = optimizer.init(x)
    for g in gradients:
        updates, state = optimizer.update(jnp.float32(g), state, x)
        x = optax.apply_updates(x, updates)
    return float(x)


# Small gradients, where epsilon and its place matter: sqrt(v) is near eps.
GRADIENTS = (3e-7, -1e-7, 2e-7, 5e-8)


def test_epsilon_is_added_before_the_bias_correction():
    found = run_strictly(optimizers.chainer_adam(), GRADIENTS)
    # float32 rounding of a few operations.
    assert found == pytest.approx(by_hand(GRADIENTS), rel=1e-5)
    other = run(optax.adam(1e-3, eps=1e-8), GRADIENTS)
    assert abs(other - found) > 0.05 * abs(found)


def test_without_epsilon_it_is_optax_adam():
    found = run(optimizers.chainer_adam(eps=0.0), (1.0, -0.5, 0.25))
    assert found == pytest.approx(
        run(optax.adam(1e-3, eps=0.0), (1.0, -0.5, 0.25)), rel=1e-5
    )


def test_schedule_is_counted_from_zero():
    rates = {0: 1e-3, 1: 1e-3, 2: 1e-4, 3: 1e-4}
    schedule = optimizers.lotter_schedule(4)
    assert {i: pytest.approx(float(schedule(i))) for i in range(4)} == rates
    flat = run_strictly(optimizers.chainer_adam(1e-3), (1.0, 1.0))
    cut = run_strictly(optimizers.chainer_adam(schedule), (1.0, 1.0, 1.0))
    assert cut == pytest.approx(flat - 1e-4, rel=1e-3)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"learning_rate": 0}, "learning_rate=0"),
        ({"b1": 1.0}, "b1=1.0"),
        ({"b2": -0.1}, "b2=-0.1"),
        ({"eps": -1.0}, "eps=-1.0"),
    ],
)
def test_bad_values_are_named(values, name):
    with pytest.raises(ValueError, match=name):
        optimizers.chainer_adam(**values)


KEY = jax.random.key(3)
TREE = {
    "w": jax.random.normal(jax.random.key(1), (50, 40)) * 1e-3,
    "b": jnp.full(4000, 1e-25),
    "zero": jnp.zeros(5),
    "count": jnp.arange(3),
    "none": jnp.zeros((0, 2)),
}


def added(scale, key, tree=TREE, updates=1):
    """The noise of the last of some updates."""
    transform = optimizers.add_noise(scale, key)
    state = transform.init(tree)
    for _ in range(updates):
        noisy, state = transform.update(tree, state)
    return jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), noisy, tree)


def test_gradient_noise_is_relative_to_each_tensor():
    noise = added(1e-2, KEY)
    for name in ("w", "b"):
        scale = 1e-2 * np.sqrt(np.mean(np.square(np.asarray(TREE[name], np.float64))))
        # 2000 and 4000 elements: the estimate is good to 2 %.
        assert np.std(noise[name].astype(np.float64)) == pytest.approx(scale, rel=0.08)
        assert abs(np.mean(noise[name])) < 5 * scale / np.sqrt(noise[name].size)
    for name in ("zero", "count", "none"):
        assert not np.any(noise[name])


def test_gradient_noise_scales_with_scale_and_gradient():
    """Metamorphic: powers of two are exact."""
    double = added(2e-2, KEY)["w"]
    np.testing.assert_allclose(double, 2 * added(1e-2, KEY)["w"], rtol=1e-2, atol=1e-8)
    eight = jax.tree.map(lambda x: 8 * x, TREE)
    np.testing.assert_array_equal(
        added(1e-2, KEY, eight)["w"], 8 * added(1e-2, KEY)["w"]
    )


def test_gradient_noise_is_fresh_at_each_update_and_repeats_with_its_key():
    first, second = added(1e-2, KEY)["w"], added(1e-2, KEY, updates=2)["w"]
    other = added(1e-2, jax.random.key(4))["w"]
    np.testing.assert_array_equal(first, added(1e-2, KEY)["w"])
    for a, b in ((first, second), (first, other)):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.1
    # Two tensors of one gradient have noise of their own.
    alike = added(1e-2, KEY, {"a": TREE["w"], "b": TREE["w"]})
    assert abs(np.corrcoef(alike["a"].ravel(), alike["b"].ravel())[0, 1]) < 0.1


def test_gradient_noise_chains_and_compiles():
    with jax.numpy_dtype_promotion("standard"):
        chained = optax.chain(optimizers.add_noise(1e-2, KEY), optax.sgd(1.0))
        params = {"w": TREE["w"]}
        state = chained.init(params)
        plain, _ = chained.update(params, state)
        compiled, _ = jax.jit(chained.update)(params, state)
    np.testing.assert_allclose(plain["w"], compiled["w"], rtol=1e-6)
    np.testing.assert_allclose(
        -plain["w"] - params["w"], added(1e-2, KEY, params)["w"], atol=1e-9
    )


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_gradient_noise_checks_its_scale(scale):
    with pytest.raises(ValueError, match="scale="):
        optimizers.add_noise(scale, KEY)
