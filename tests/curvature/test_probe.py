"""Projections on an escape direction, in weights and in the coordinates of Adam."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import escape
from prednet_jax.curvature import project


def test_displacement_and_step_are_those_of_a_quadratic():
    found = project(
        gradient={"w": jnp.array([-0.5 * 0.2, 0.0], jnp.float32)},
        step={"w": jnp.array([0.03, 0.0], jnp.float32)},
        vector={"w": jnp.array([1.0, 0.0], jnp.float32)},
        value=-0.5,
    )
    assert found.displacement == pytest.approx(0.2)
    assert found.step == pytest.approx(0.03)
    assert found.step_cosine == pytest.approx(1.0)
    assert found.noise_gain == pytest.approx(1.0)
    g = escape.growth(0.5, learning_rate=0.05, momentum=0.9)
    expected = escape.growing_projection(0.2, 0.03, g)
    assert found.projection(g) == pytest.approx(expected)


def test_in_the_coordinates_of_adam():
    """In y = P^{1/2} w the same quadratic has curvature h / p and everything scales."""
    p = np.array([4.0, 0.25], np.float32)
    w = np.array([0.1, 0.3], np.float32)
    h = np.array([-2.0, 5.0], np.float32)
    step = np.array([0.01, -0.02], np.float32)
    found = project(
        gradient=jnp.asarray(h * w),
        step=jnp.asarray(step),
        vector=jnp.array([1.0, 0.0], jnp.float32),
        value=-0.5,
        scale=jnp.asarray(p),
    )
    assert found.gamma == 0.5
    assert found.displacement == pytest.approx(2.0 * 0.1)
    assert found.step == pytest.approx(2.0 * 0.01)
    assert found.step_cosine == pytest.approx(0.02 / math.hypot(0.02, 0.01))
    assert found.noise_gain == pytest.approx(0.5)


def test_a_direction_that_does_not_escape_is_refused():
    w = jnp.ones(2)
    with pytest.raises(ValueError, match=r"value=0.5.*negative curvature"):
        project(w, w, w, 0.5)
