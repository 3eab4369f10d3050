import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax.curvature import certify
from prednet_jax.curvature.certify import finite_difference
from prednet_jax.studies.curvature_probe import project


def saddle(p):
    """x^2/2 + y^4/4 - y^2/2 and twenty more directions: eigenvalue -1 at zero."""
    return 0.5 * p["x"] @ p["x"] + jnp.sum(p["y"] ** 4) / 4 - jnp.sum(p["y"] ** 2) / 2


POINT = {"x": jnp.zeros(20, jnp.float32), "y": jnp.zeros(1, jnp.float32)}


def test_a_saddle_is_proved_and_confirmed_by_the_loss_itself():
    for x, y in ((1.0, 1.0), (0.25, 0.01)):  # without and with a scale
        scale = {"x": jnp.full(20, x, jnp.float32), "y": jnp.full(1, y, jnp.float32)}
        report = certify(saddle, POINT, key=jax.random.key(0), scale=scale)
        assert report.negative_curvature_proved
        found = [report.lowest, report.highest]
        # Twenty-one numbers in float32.
        np.testing.assert_allclose(found, [-1 / y, 1 / x], rtol=1e-5)
        assert report.converged == (True, True)
        assert report.dimension == 21
        measured = report.finite_difference
        assert measured.verdict == "agrees"
        # y^4/4 adds h^2/2 to the second difference, which the error covers.
        assert abs(measured.curvature + 1 / y) <= measured.error < 0.01 / y**2


def test_rounding_alone_is_not_taken_for_a_saddle():
    """Positive semi-definite of low rank: float32 puts the zeros on either side."""
    matrix = 10.0 * jax.random.normal(jax.random.key(0), (5, 60), jnp.float32)
    gram = matrix.T @ matrix

    def loss(p):
        return 0.5 * p @ gram @ p

    negative = 0
    for seed in range(5):
        point = jax.random.normal(jax.random.key(seed + 1), (60,), jnp.float32)
        report = certify(loss, point, key=jax.random.key(seed), steps=20)
        negative += report.lowest < 0.0
        assert not report.negative_curvature_proved
    assert negative > 0  # the sign alone would have been wrong


def test_steps_are_doubled_until_the_values_settle(trained):
    with jax.enable_x64(True):
        # Few steps are far from convergence; the Rayleigh quotient still proves.
        first, _, _, last = trained.stages
        report = certify(trained.loss, first.params, key=jax.random.key(0), steps=4)
        assert report.steps == 8
        assert report.negative_curvature_proved
        assert np.linalg.eigvalsh(first.hessian)[0] < report.lowest < 0.0
        assert not report.converged[0]
        exact = np.linalg.eigvalsh(last.hessian)
        report = certify(trained.loss, last.params, key=jax.random.key(0), steps=30)
        assert all(report.converged)
        # A movement below 5 % is the criterion, not an error bound; measured 2e-3.
        np.testing.assert_allclose(report.lowest, exact[0], rtol=0.05)
        np.testing.assert_allclose(report.highest, exact[-1], rtol=1e-6)
        assert report.finite_difference.verdict == "agrees"


def test_a_wrong_derivative_is_found_out():
    @jax.custom_vjp
    def square(x):
        return x**2

    square.defvjp(lambda x: (x**2, x), lambda x, g: (-2.0 * x * g,))
    params = jnp.ones(4, jnp.float32)
    report = certify(lambda p: jnp.sum(square(p)), params, key=jax.random.key(0))
    assert report.lowest == pytest.approx(-2.0)
    assert report.finite_difference.verdict == "disagrees"


def test_a_flat_loss_is_too_noisy_and_a_kink_ends_the_reach():
    found = finite_difference(
        lambda p: 1.0 + 1e-9 * jnp.sum(p**2),
        jnp.ones(4, jnp.float32),
        jnp.full(4, 0.5, jnp.float32),
        expected=2e-9,
    )
    assert found.verdict == "too noisy"

    def loss(p):
        """Curvature -1 up to |x| = 0.01, +1 beyond: the check looks inside."""
        x = jnp.abs(p["x"][0] - 1.0)
        inner = -0.5 * x**2
        outer = inner + (x - 0.01) ** 2
        return jnp.where(x < 0.01, inner, outer) + 0.0 * jnp.sum(p["x"])

    found = finite_difference(
        loss,
        {"x": jnp.ones(2, jnp.float32)},
        {"x": jnp.array([1.0, 0.0], jnp.float32)},
        expected=-1.0,
    )
    assert found.verdict == "agrees"
    # The last step of the ladder below the kink: sqrt(2) 10^-2.5 is, 10^-2 is not.
    assert found.reach == pytest.approx(math.sqrt(2) * 10**-2.5, rel=1e-5)


def test_projections_are_those_of_a_quadratic_in_the_coordinates_of_adam():
    """In y = P^{1/2} w a quadratic has curvature h / p and everything scales."""
    p = np.array([4.0, 0.25], np.float32)
    w = np.array([0.1, 0.3], np.float32)
    h = np.array([-2.0, 5.0], np.float32)
    step = np.array([0.01, -0.02], np.float32)
    u = jnp.array([1.0, 0.0], jnp.float32)
    found = project(jnp.asarray(h * w), jnp.asarray(step), u, -0.5, jnp.asarray(p))
    assert found.gamma == 0.5
    assert found.displacement == pytest.approx(2.0 * 0.1)
    assert found.step == pytest.approx(2.0 * 0.01)
    assert found.step_cosine == pytest.approx(0.02 / math.hypot(0.02, 0.01))
    assert found.noise_gain == pytest.approx(0.5)
