import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax.curvature import (
    adam_scale,
    escape_state,
    growth,
    noise_projection,
    updates_saved,
    useful_projection,
)

OPTIMISERS = {
    "gradient descent": {"momentum": 0.0, "averaged": False},
    "heavy ball": {"momentum": 0.9, "averaged": False},
    "adam": {"momentum": 0.9, "averaged": True},
}


def follow(z, steps, gamma, learning_rate, momentum, averaged, noise=None):
    """Runs the optimiser itself, in velocities, on -gamma z^2 / 2."""
    z, m, trail = np.array(z, float), 0.0, []
    for t in range(steps):
        gradient = -gamma * z + (0.0 if noise is None else noise[t])
        m = momentum * m + (1.0 - momentum if averaged else 1.0) * gradient
        z = z - learning_rate * m
        trail.append(z)
    return np.array(trail)


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("gamma", [1e-3, 2.0])
def test_growth_is_that_of_the_optimiser(name, gamma):
    kind = OPTIMISERS[name]
    g = growth(gamma, learning_rate=0.1, **kind)
    trail = follow(1.0, 400, gamma, 0.1, **kind)
    np.testing.assert_allclose(trail[-1] / trail[-2], g.fast, rtol=1e-10)
    # The two roots solve r^2 - A r + beta = 0.
    a = 1.0 + g.momentum + g.kick * gamma
    np.testing.assert_allclose(g.fast + g.slow, a, rtol=1e-14)
    np.testing.assert_allclose(g.fast * g.slow, g.momentum, atol=1e-15)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_projection_counts_displacement_and_momentum(name):
    """From any moment of a run, c predicts the rest of it."""
    kind = OPTIMISERS[name]
    g = growth(0.5, learning_rate=0.05, **kind)
    trail = follow(1.0, 900, 0.5, 0.05, **kind)
    z, before = trail[2], trail[1]
    state = escape_state(
        gradient={"w": jnp.array([-0.5 * z, 0.0], jnp.float32)},
        step={"w": jnp.array([z - before, 0.0], jnp.float32)},
        vector={"w": jnp.array([1.0, 0.0], jnp.float32)},
        value=-0.5,
    )
    # Single precision in the state.
    np.testing.assert_allclose(state.displacement, z, rtol=1e-6)
    assert state.step_cosine == pytest.approx(1.0)
    # a r^n with a = c (r - beta) / (r - s), the growing mode alone after 600 updates.
    amplitude = state.projection(g) * (g.fast - g.momentum) / (g.fast - g.slow)
    # s (z - before) is small against z: three digits of the float32 state are lost.
    np.testing.assert_allclose(amplitude * g.fast**600, trail[602], rtol=2e-4)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_noise_projection_is_the_median_of_many_runs(name):
    kind = OPTIMISERS[name]
    gamma, rate, sigma, steps = 0.5, 0.05, 0.3, 600
    noise = sigma * np.random.default_rng(0).standard_normal((steps, 4000))
    ends = np.abs(follow(np.zeros(4000), steps, gamma, rate, **kind, noise=noise)[-1])
    g = growth(gamma, learning_rate=rate, **kind)
    c = noise_projection(sigma, g)
    predicted = c * (g.fast - g.momentum) / (g.fast - g.slow) * g.fast**steps
    # Median of 4000: its standard error is 1.86 % of the median here (density .4277).
    assert abs(np.median(ends) / predicted - 1.0) < 4 * 0.0186


def test_gradient_descent_is_the_published_formula():
    g = growth(0.7, learning_rate=0.1)
    assert g.fast == pytest.approx(1.07)
    published = 0.67 * 0.1 * 0.02 / math.sqrt(1.07**2 - 1.0)
    assert noise_projection(0.02, g) == pytest.approx(published, rel=0.01)


def test_noise_saves_one_update_exactly_at_the_useful_projection():
    g = growth(1e-3, learning_rate=1e-2, momentum=0.9, averaged=True)
    c = useful_projection(1e-6, g)
    assert updates_saved(c, 1e-6, g) == pytest.approx(1.0, rel=1e-6)
    assert updates_saved(2 * c, 1e-6, g) < 1.0 < updates_saved(c / 2, 1e-6, g)
    # The facts' form for slow escapes.
    assert c == pytest.approx(1e-6 / math.sqrt(2 * math.log(g.fast)), rel=1e-3)
    assert updates_saved(0.0, 1e-6, g) == math.inf
    assert updates_saved(0.0, 0.0, g) == 0.0


def test_state_in_the_coordinates_of_adam():
    """In y = P^{1/2} w the same quadratic has curvature h / p and everything scales."""
    p = np.array([4.0, 0.25], np.float32)
    w = np.array([0.1, 0.3], np.float32)
    h = np.array([-2.0, 5.0], np.float32)
    step = np.array([0.01, -0.02], np.float32)
    state = escape_state(
        gradient=jnp.asarray(h * w),
        step=jnp.asarray(step),
        vector=jnp.array([1.0, 0.0], jnp.float32),
        value=-0.5,
        scale=jnp.asarray(p),
    )
    assert state.gamma == 0.5
    assert state.displacement == pytest.approx(2.0 * 0.1)
    assert state.step == pytest.approx(2.0 * 0.01)
    assert state.step_cosine == pytest.approx(0.02 / math.hypot(0.02, 0.01))
    assert state.noise_gain == pytest.approx(0.5)


def test_adam_with_frozen_scale_grows_as_predicted():
    """The optimiser in weights, P from its own rule, against growth in y."""
    v, t = {"w": jnp.array([0.04, 1.0], jnp.float32)}, 10**6
    p = np.array(adam_scale(v, t)["w"], float)
    curvature = np.array([-0.3, 1.0])
    w, m, trail = np.array([1e-9, 0.0]), np.zeros(2), []
    for _ in range(400):
        m = 0.9 * m + 0.1 * curvature * w
        w = w - 0.01 * m / p
        trail.append(w[0])
    g = growth(0.3 / p[0], learning_rate=0.01, momentum=0.9, averaged=True)
    np.testing.assert_allclose(trail[-1] / trail[-2], g.fast, rtol=1e-8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gamma": -1.0, "learning_rate": 0.1}, "gamma=-1.0"),
        ({"gamma": 1.0, "learning_rate": 0.0}, "learning_rate=0.0"),
        ({"gamma": 1.0, "learning_rate": 0.1, "momentum": 1.0}, "momentum=1.0"),
    ],
)
def test_growth_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        growth(**arguments)


def test_state_refuses_a_direction_that_does_not_escape():
    w = jax.numpy.ones(2)
    with pytest.raises(ValueError, match=r"value=0.5.*negative curvature"):
        escape_state(w, w, w, 0.5)
