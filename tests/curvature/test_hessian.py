"""Curvature of a small autoencoder along its training, against dense Hessians."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from prednet_jax import optimizers
from prednet_jax.curvature import adam_scale, certify, extreme_eigenpairs
from prednet_jax.curvature.hessian import hessian_operator
from prednet_jax.saddles.curvature_probe import project


class Stage(NamedTuple):
    update: int
    params: dict
    second_moment: dict
    hessian: np.ndarray


class Trained(NamedTuple):
    loss: object
    stages: list[Stage]


@jax.custom_vjp
def tanh(x):
    """With a reverse rule of its own, as the models' convolutions have."""
    return jnp.tanh(x)


tanh.defvjp(lambda x: (jnp.tanh(x),) * 2, lambda y, g: (g * (1 - y**2),))


@pytest.fixture(scope="session")
def trained() -> Trained:
    """Trains a 6-4-6 tanh autoencoder (58 weights) and keeps four stages."""
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(3), 3)
        data = jax.random.uniform(keys[0], (16, 6), jnp.float64)
        params = {
            "encoder": {"w": 0.3 * jax.random.normal(keys[1], (6, 4), jnp.float64)},
            "decoder": {"w": 0.3 * jax.random.normal(keys[2], (4, 6), jnp.float64)},
        }
        params["encoder"]["b"] = jnp.zeros(4, jnp.float64)
        params["decoder"]["b"] = jnp.zeros(6, jnp.float64)

        def loss(p):
            dtype = p["encoder"]["w"].dtype
            x = data.astype(dtype)
            code = tanh(x @ p["encoder"]["w"] + p["encoder"]["b"])
            return jnp.mean((code @ p["decoder"]["w"] + p["decoder"]["b"] - x) ** 2)

        optimizer = optimizers.chainer_adam(1e-2)

        @jax.jit
        def step(params, state):
            updates, state = optimizer.update(jax.grad(loss)(params), state)
            return optax.apply_updates(params, updates), state

        _, unravel = ravel_pytree(params)
        dense = jax.jit(jax.hessian(lambda p: loss(unravel(p))))
        state, stages = optimizer.init(params), []
        for update in range(1, 301):
            params, state = step(params, state)
            if update in (1, 10, 50, 300):
                hessian = np.array(dense(ravel_pytree(params)[0]))
                stages.append(Stage(update, params, state.nu, hessian))
        return Trained(loss, stages)


def test_the_operator_is_the_dense_hessian_also_preconditioned(trained):
    with jax.enable_x64(True):
        stage = trained.stages[1]
        scale = adam_scale(stage.second_moment, 10)
        p = np.array(ravel_pytree(scale)[0])
        dense = stage.hessian / np.sqrt(np.outer(p, p))
        for of, matrix in ((None, stage.hessian), (scale, dense)):
            matvec, root, _ = hessian_operator(trained.loss, stage.params, of)
            columns = jax.vmap(matvec)(jnp.eye(p.size))
            np.testing.assert_allclose(root, 1.0 if of is None else p**-0.5, rtol=1e-14)
            atol = 1e-12 * max(1.0, matrix.max())
            np.testing.assert_allclose(columns, matrix, rtol=0, atol=atol)
        # Sylvester: as many negative eigenvalues before as after.
        before, after = np.linalg.eigvalsh(stage.hessian), np.linalg.eigvalsh(dense)
        assert (before < 0).sum() == (after < 0).sum() > 0


def test_chainer_scale_is_that_of_the_optimiser():
    """-lr P^-1 m is the step of `chainer_adam` itself, over three updates."""
    weights = jnp.array([0.3, -2.0, 1e-6], jnp.float32)
    optimizer = optimizers.chainer_adam(0.01, b1=0.8, b2=0.99, eps=1e-3)
    state = optimizer.init(weights)
    for count in range(1, 4):
        updates, state = optimizer.update(weights, state)
        scale = adam_scale(state.nu, count, b1=0.8, b2=0.99, eps=1e-3)
        # A few roundings of float32.
        np.testing.assert_allclose(updates, -0.01 * state.mu / scale, rtol=1e-6)


@pytest.mark.parametrize(
    ("spectrum", "rotated"),
    [
        ([-1.0] + [1.0] * 11, True),  # the Krylov space is exhausted after two steps
        ([-1.0] + [1.0] * 11, False),  # the same with exact zeros
        ([0.0] * 5, False),  # none to begin with
        ([-1e-6] + [1e-6] * 3 + [1e6], True),  # twelve orders of magnitude
        (list(np.linspace(-3.0, 5.0, 30)), True),
        ([4.0], True),
    ],
)
def test_known_spectrum(spectrum, rotated):
    with jax.enable_x64(True):
        n = len(spectrum)
        basis = jnp.eye(n)
        if rotated:
            basis = jnp.linalg.qr(jax.random.normal(jax.random.key(1), (n, n)))[0]
        matrix = (basis * jnp.asarray(spectrum)) @ basis.T
        values, vectors, residuals = extreme_eigenpairs(
            lambda p: 0.5 * p @ matrix @ p, jnp.ones(n), key=jax.random.key(2)
        )
        size = max(abs(min(spectrum)), abs(max(spectrum)))
        # Rounding of the matrix and of its products, relative to its norm.
        atol = 1e-14 * size * n
        np.testing.assert_allclose(values, [min(spectrum), max(spectrum)], atol=atol)
        assert (residuals <= atol).all()
        for vector in vectors:
            assert abs(jnp.linalg.norm(vector) - 1.0) < 1e-13


def test_network_along_its_training_against_dense(trained):
    with jax.enable_x64(True):
        for stage in (trained.stages[0], trained.stages[3]):
            scale = adam_scale(stage.second_moment, stage.update)
            p = np.array(ravel_pytree(scale)[0])
            ones = jax.tree.map(jnp.ones_like, scale)
            for of, root in ((ones, np.ones_like(p)), (scale, np.sqrt(p))):
                exact, columns = np.linalg.eigh(stage.hessian / np.outer(root, root))
                options = {"key": jax.random.key(5), "scale": of}
                few, every = (
                    extreme_eigenpairs(trained.loss, stage.params, steps=n, **options)
                    for n in (12, 1000)
                )
                atol = 1e-12 * np.abs(exact).max()
                np.testing.assert_allclose(every.values, exact[[0, -1]], atol=atol)
                for vector, column in zip(every.vectors, (0, -1), strict=True):
                    flat = np.array(ravel_pytree(vector)[0])
                    assert abs(flat @ columns[:, column]) > 1 - 1e-8
                # From inside, and some eigenvalue within the residual.
                assert exact[0] - atol <= few.values[0]
                assert few.values[1] <= exact[-1] + atol
                for value, residual in zip(few.values, few.residuals, strict=True):
                    assert np.abs(exact - value).min() <= residual + atol


def test_same_loss_is_compiled_once_and_works_under_jit():
    traces = []

    def loss(p):
        traces.append(1)
        return jnp.sum(jnp.cos(p))

    key, zeros = jax.random.key(0), jnp.zeros(3, jnp.float32)
    first = extreme_eigenpairs(loss, zeros, key=key, steps=3)
    traced = len(traces)
    second = extreme_eigenpairs(loss, zeros + jnp.pi, key=key, steps=3)
    assert len(traces) == traced
    np.testing.assert_allclose(first.values, [-1.0, -1.0], rtol=1e-6)
    np.testing.assert_allclose(second.values, [1.0, 1.0], rtol=1e-6)
    jitted = jax.jit(lambda p: extreme_eigenpairs(loss, p, key=key, steps=3).values)
    np.testing.assert_allclose(jitted(zeros), first.values, rtol=1e-6)


def saddle(p):
    """x^2/2 + y^4/4 - y^2/2 and twenty more directions: eigenvalue -1 at zero."""
    return 0.5 * p["x"] @ p["x"] + jnp.sum(p["y"] ** 4) / 4 - jnp.sum(p["y"] ** 2) / 2


POINT = {"x": jnp.zeros(20, jnp.float32), "y": jnp.zeros(1, jnp.float32)}


def test_a_saddle_is_proved():
    for x, y in ((1.0, 1.0), (0.25, 0.01)):  # without and with a scale
        scale = {"x": jnp.full(20, x, jnp.float32), "y": jnp.full(1, y, jnp.float32)}
        report = certify(saddle, POINT, key=jax.random.key(0), scale=scale)
        assert report.negative_curvature_proved
        found = [report.lowest, report.highest]
        # Twenty-one numbers in float32.
        np.testing.assert_allclose(found, [-1 / y, 1 / x], rtol=1e-5)
        assert report.converged == (True, True)
        assert report.dimension == 21


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


def test_projections_are_those_of_a_quadratic_in_the_coordinates_of_adam():
    """In y = P^{1/2} w a quadratic has curvature h / p and everything scales."""
    p = np.array([4.0, 0.25], np.float32)
    w = np.array([0.1, 0.3], np.float32)
    h = np.array([-2.0, 5.0], np.float32)
    step = np.array([0.01, -0.02], np.float32)
    u = jnp.array([1.0, 0.0], jnp.float32)
    found = project(jnp.asarray(h * w), jnp.asarray(step), u, -0.5, jnp.asarray(p))
    assert found == pytest.approx((2.0 * 0.1, 2.0 * 0.01, 0.5))
