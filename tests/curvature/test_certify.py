import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax.curvature import adam_scale, certify, finite_difference


def saddle(p):
    """x^2/2 + y^4/4 - y^2/2 and twenty more directions: eigenvalue -1 at zero."""
    return 0.5 * p["x"] @ p["x"] + jnp.sum(p["y"] ** 4) / 4 - jnp.sum(p["y"] ** 2) / 2


POINT = {"x": jnp.zeros(20, jnp.float32), "y": jnp.zeros(1, jnp.float32)}


def test_a_saddle_is_proved_and_confirmed_by_the_loss_itself():
    report = certify(saddle, POINT, key=jax.random.key(0))
    assert report.negative_curvature_proved
    assert report.statement.startswith("negative curvature proved: lambda_min <= -1")
    assert report.upper_bound == report.lowest + report.rounding
    # Twenty-one numbers in float32.
    np.testing.assert_allclose([report.lowest, report.highest], [-1, 1], rtol=1e-6)
    assert report.converged == (True, True)
    assert report.dimension == 21
    assert report.finite_difference.verdict == "agrees"
    # y^4/4 adds h^2/2 to the second difference, which the error covers.
    measured = report.finite_difference
    assert abs(measured.curvature + 1.0) <= measured.error < 0.01


def test_rounding_alone_is_not_taken_for_a_saddle():
    """Positive semi-definite of low rank: float32 puts the zeros on either side."""
    matrix = 10.0 * jax.random.normal(jax.random.key(0), (5, 60), jnp.float32)
    gram = matrix.T @ matrix

    def loss(p):
        return 0.5 * p @ gram @ p

    negative = 0
    for seed in range(5):
        point = jax.random.normal(jax.random.key(seed + 1), (60,), jnp.float32)
        report = certify(
            loss, point, key=jax.random.key(seed), steps=20, max_steps=20, starts=2
        )
        negative += report.lowest < 0.0
        assert not report.negative_curvature_proved
        assert report.statement.startswith("not found (proves nothing): lowest value")
    assert negative > 0  # the sign alone would have been wrong


def test_a_vector_that_is_not_an_eigenvector_still_proves(trained):
    """Two steps are far from convergence; the Rayleigh quotient is an upper bound."""
    with jax.enable_x64(True):
        params, hessian = trained.stages[0].params, trained.stages[0].hessian
        exact = np.linalg.eigvalsh(hessian)
        report = certify(
            trained.loss, params, key=jax.random.key(0), steps=8, max_steps=8
        )
        assert report.steps == 8
        assert report.negative_curvature_proved
        assert exact[0] < report.lowest < 0.0
        assert not report.converged[0]
        assert "not converged" in report.statement


def test_doubling_ends_at_the_dense_answer(trained):
    with jax.enable_x64(True):
        stage = trained.stages[3]
        exact = np.linalg.eigvalsh(stage.hessian)
        report = certify(trained.loss, stage.params, key=jax.random.key(0), steps=15)
        assert report.steps > 15
        assert all(report.converged)
        # A movement below 5 % is the criterion, not an error bound; measured 2e-3.
        np.testing.assert_allclose(report.lowest, exact[0], rtol=0.05)
        np.testing.assert_allclose(report.highest, exact[-1], rtol=1e-6)
        assert report.finite_difference.verdict == "agrees"


def test_preconditioned_report_is_checked_along_the_scaled_direction():
    scale = {"x": jnp.full(20, 0.25, jnp.float32), "y": jnp.full(1, 0.01, jnp.float32)}
    report = certify(saddle, POINT, key=jax.random.key(0), scale=scale)
    np.testing.assert_allclose([report.lowest, report.highest], [-100, 4], rtol=1e-5)
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


def test_a_flat_loss_is_too_noisy_for_differences():
    found = finite_difference(
        lambda p: 1.0 + 1e-9 * jnp.sum(p**2),
        jnp.ones(4, jnp.float32),
        jnp.full(4, 0.5, jnp.float32),
        expected=2e-9,
    )
    assert found.verdict == "too noisy"
    assert dataclasses.replace(found, error=math.inf).verdict == "too noisy"


def test_weights_without_finite_curvature_are_refused():
    with pytest.raises(ValueError, match=r"nan.*finite second derivatives"):
        certify(lambda p: jnp.sum(jnp.log(p)), -jnp.ones(3) * 0, key=jax.random.key(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_steps": 10}, "max_steps=10.*steps=40"),
        ({"starts": 0}, "starts=0"),
        ({"steps": 0}, "steps=0"),
        ({"scale": adam_scale({"x": jnp.ones(20)}, 1)}, "scale has leaves"),
    ],
)
def test_certify_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        certify(saddle, POINT, key=jax.random.key(0), **change)


def test_a_kink_ends_the_reach():
    """Curvature -1 up to |x| = 0.01, +1 beyond: the check looks inside the kink."""

    def loss(p):
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
