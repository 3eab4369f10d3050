"""Products with the Hessian and its extreme eigenpairs, against dense matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from prednet_jax import init_params, optimizers
from prednet_jax.config import PredNetConfig
from prednet_jax.curvature import (
    adam_scale,
    extreme_eigenpairs,
    hessian_operator,
    hvp,
)
from prednet_jax.models import prednet
from prednet_jax.objectives import window_loss


@jax.custom_vjp
def cubed(x):
    return x**3


cubed.defvjp(lambda x: (x**3, x), lambda x, g: (3.0 * x**2 * g,))


def scanned(p):
    """A loss with custom_vjp inside a scan, as the models' convolutions are."""

    def body(carry, x):
        return jnp.tanh(carry * p["w"]) + cubed(p["b"] * x), None

    last, _ = jax.lax.scan(body, p["b"], jnp.linspace(0.1, 1.0, 5))
    return jnp.sum(last**2)


def plain(p):
    carry = p["b"]
    for x in np.linspace(0.1, 1.0, 5):
        carry = jnp.tanh(carry * p["w"]) + (p["b"] * x) ** 3
    return jnp.sum(carry**2)


@pytest.mark.parametrize("stage", [0, 3])
def test_hvp_matches_the_dense_hessian(trained, stage):
    with jax.enable_x64(True):
        params, hessian = trained.stages[stage].params, trained.stages[stage].hessian
        flat, unravel = ravel_pytree(params)
        v = jax.random.normal(jax.random.key(0), flat.shape, flat.dtype)
        product = ravel_pytree(hvp(trained.loss, params, unravel(v)))[0]
        # Two orders of the same sums in float64.
        np.testing.assert_allclose(product, hessian @ v, rtol=0, atol=1e-12)


def test_preconditioned_operator_is_the_congruent_dense_matrix(trained):
    with jax.enable_x64(True):
        stage = trained.stages[1]
        scale = adam_scale(stage.second_moment, 10)
        matvec, inverse_root, _ = hessian_operator(trained.loss, stage.params, scale)
        p = np.array(ravel_pytree(scale)[0])
        dense = stage.hessian / np.sqrt(np.outer(p, p))
        columns = jax.vmap(matvec)(jnp.eye(p.size))
        np.testing.assert_allclose(inverse_root, p**-0.5, rtol=1e-14)
        np.testing.assert_allclose(columns, dense, rtol=0, atol=1e-12 * dense.max())
        # Sylvester: as many negative eigenvalues before as after.
        before, after = np.linalg.eigvalsh(stage.hessian), np.linalg.eigvalsh(dense)
        assert (before < 0).sum() == (after < 0).sum() > 0


def test_hvp_passes_through_custom_vjp_inside_scan():
    with jax.enable_x64(True):
        params = {"w": jnp.array([0.7, -1.2]), "b": jnp.array([0.4, 0.9])}
        tangent = {"w": jnp.array([1.0, 2.0]), "b": jnp.array([-0.5, 0.3])}
        received = ravel_pytree(hvp(scanned, params, tangent))[0]
        flat, unravel = ravel_pytree(params)
        dense = jax.hessian(lambda p: plain(unravel(p)))(flat)
        expected = dense @ ravel_pytree(tangent)[0]
        np.testing.assert_allclose(received, expected, rtol=1e-12)


def test_chainer_scale_is_that_of_the_optimiser():
    """-lr P^-1 m is the step of `chainer_adam` itself, over three updates."""
    params = {"w": jnp.array([0.3, -2.0, 1e-6], jnp.float32)}
    optimizer = optimizers.chainer_adam(0.01, b1=0.8, b2=0.99, eps=1e-3)
    state = optimizer.init(params)
    for count in range(1, 4):
        updates, state = optimizer.update(params, state)
        scale = adam_scale(state.nu, count, b1=0.8, b2=0.99, eps=1e-3)
        assert scale["w"].dtype == jnp.float32
        expected = -0.01 * np.array(state.mu["w"]) / np.array(scale["w"])
        # A few roundings of float32.
        np.testing.assert_allclose(updates["w"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b1": 1.0}, "b1=1.0"),
        ({"b2": -0.1}, "b2=-0.1"),
        ({"eps": 0.0}, "eps=0.0"),
        ({"count": 0}, "count=0"),
    ],
)
def test_adam_scale_refuses(change, message):
    arguments = {"count": 1} | change
    with pytest.raises(ValueError, match=message):
        adam_scale({"w": jnp.ones(2)}, **arguments)


@pytest.mark.parametrize(
    ("params", "scale", "message"),
    [
        ({"w": jnp.ones(2, jnp.int32)}, None, "int32.*real floating"),
        ({"w": jnp.ones(2), "b": jnp.ones(2, jnp.bfloat16)}, None, "bfloat16, float32"),
        ({}, None, "empty pytree"),
        ({"w": jnp.ones(2)}, {"b": jnp.ones(2)}, "leaves of.*'b'.*'w'"),
        ({"w": jnp.ones(2)}, {"w": jnp.ones(3)}, r"\(3,\).*\(2,\)"),
    ],
)
def test_operator_refuses(params, scale, message):
    with pytest.raises(ValueError, match=message):
        hessian_operator(lambda p: jnp.sum(p["w"] ** 2), params, scale)


def quadratic(spectrum, key, *, rotated=True):
    """A quadratic form with a known spectrum, at a random orthogonal basis."""
    spectrum = jnp.asarray(spectrum, float)
    n = spectrum.size
    basis = jnp.eye(n)
    if rotated:
        basis = jnp.linalg.qr(jax.random.normal(key, (n, n)))[0]
    matrix = (basis * spectrum) @ basis.T
    return (lambda p: 0.5 * p @ matrix @ p), basis


@pytest.mark.parametrize(
    ("spectrum", "rotated"),
    [
        ([-1.0, 2.0], True),
        ([-1.0] + [1.0] * 11, True),  # the Krylov space is exhausted after two steps
        ([-1.0] + [1.0] * 11, False),  # the same with exact zeros
        ([2.5] * 6, False),  # after one
        ([0.0] * 5, False),  # none to begin with
        ([-1e-6] + [1e-6] * 3 + [1e6], True),  # twelve orders of magnitude
        (list(np.linspace(-3.0, 5.0, 30)), True),
        ([4.0], True),
    ],
)
def test_known_spectrum(spectrum, rotated):
    with jax.enable_x64(True):
        loss, _ = quadratic(spectrum, jax.random.key(1), rotated=rotated)
        params = jnp.ones(len(spectrum))
        values, vectors, residuals = extreme_eigenpairs(
            loss, params, key=jax.random.key(2)
        )
        size = max(abs(min(spectrum)), abs(max(spectrum)))
        # Rounding of the matrix and of its products, relative to its norm.
        atol = 1e-14 * size * len(spectrum)
        np.testing.assert_allclose(values, [min(spectrum), max(spectrum)], atol=atol)
        assert (residuals <= atol).all()
        for vector in vectors:
            assert abs(jnp.linalg.norm(vector) - 1.0) < 1e-13


def test_aligned_saddle_in_float32_has_no_nan():
    """Exact zeros remain after orthogonalisation: a plain Lanczos divides by them."""
    spectrum = jnp.array([-1.0, 1.0, 1.0, 1.0], jnp.float32)
    params = {"a": jnp.zeros((2,), jnp.float32), "b": jnp.zeros((2,), jnp.float32)}

    def loss(p):
        return 0.5 * jnp.sum(spectrum * jnp.concatenate([p["a"], p["b"]]) ** 2)

    pairs = extreme_eigenpairs(loss, params, key=jax.random.key(0))
    np.testing.assert_allclose(pairs.values, [-1.0, 1.0], rtol=1e-6)
    assert jax.tree.structure(pairs.vectors[0]) == jax.tree.structure(params)
    np.testing.assert_allclose(jnp.abs(pairs.vectors[0]["a"]), [1.0, 0.0], atol=1e-6)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_network_at_stages_of_training_against_dense(trained, stage, preconditioned):
    with jax.enable_x64(True):
        update, params, second_moment, hessian = trained.stages[stage]
        scale, dense = None, hessian
        if preconditioned:
            scale = adam_scale(second_moment, update)
            p = np.array(ravel_pytree(scale)[0])
            dense = hessian / np.sqrt(np.outer(p, p))
        exact, columns = np.linalg.eigh(dense)
        size = np.abs(exact).max()
        few, all_steps = (
            extreme_eigenpairs(
                trained.loss, params, key=jax.random.key(5), steps=steps, scale=scale
            )
            for steps in (12, 1000)
        )
        # All steps: the dense answer to the rounding of float64, and its vectors.
        np.testing.assert_allclose(
            all_steps.values, exact[[0, -1]], rtol=0, atol=1e-12 * size
        )
        for vector, column in zip(all_steps.vectors, (0, -1), strict=True):
            overlap = abs(np.array(ravel_pytree(vector)[0]) @ columns[:, column])
            assert overlap > 1 - 1e-8
        # Few steps: from inside, and some eigenvalue within the residual.
        assert exact[0] - 1e-12 * size <= few.values[0]
        assert few.values[1] <= exact[-1] + 1e-12 * size
        for value, residual in zip(few.values, few.residuals, strict=True):
            assert np.abs(exact - value).min() <= residual + 1e-12 * size


def test_residual_is_that_of_the_returned_pair(trained):
    with jax.enable_x64(True):
        params = trained.stages[1].params
        pairs = extreme_eigenpairs(trained.loss, params, key=jax.random.key(7), steps=6)
        for value, vector, residual in zip(*pairs, strict=True):
            product = ravel_pytree(hvp(trained.loss, params, vector))[0]
            flat = ravel_pytree(vector)[0]
            np.testing.assert_allclose(flat @ product, value, rtol=1e-10)
            expected = jnp.linalg.norm(product - value * flat)
            np.testing.assert_allclose(residual, expected, rtol=1e-6)
        assert (
            pairs.residuals > 1e-6
        ).all()  # six steps: the test has something to see


def test_same_loss_is_compiled_once_and_works_under_jit():
    traces = []

    def loss(p):
        traces.append(1)
        return jnp.sum(jnp.cos(p))

    key = jax.random.key(0)
    first = extreme_eigenpairs(loss, jnp.zeros(3, jnp.float32), key=key, steps=3)
    traced = len(traces)
    second = extreme_eigenpairs(
        loss, jnp.full(3, jnp.pi, jnp.float32), key=key, steps=3
    )
    assert len(traces) == traced
    np.testing.assert_allclose(first.values, [-1.0, -1.0], rtol=1e-6)
    np.testing.assert_allclose(second.values, [1.0, 1.0], rtol=1e-6)
    jitted = jax.jit(lambda p: extreme_eigenpairs(loss, p, key=key, steps=3).values)
    np.testing.assert_allclose(
        jitted(jnp.zeros(3, jnp.float32)), first.values, rtol=1e-6
    )


@pytest.mark.parametrize("steps", [0, -3, 2.5, "40"])
def test_bad_steps(steps):
    with pytest.raises(ValueError, match=f"steps={steps!r}.*at least 1"):
        extreme_eigenpairs(jnp.sum, jnp.ones(3), key=jax.random.key(0), steps=steps)


STOPS = (1, 10, 30)


@pytest.fixture(scope="module")
def stages():
    """Loss and, at each stop, weights, second moment and dense Hessian (float64)."""
    config = PredNetConfig(channels=(1, 2), height=2, width=2, convolution="xla")
    with jax.enable_x64(True):
        frames = jax.random.uniform(jax.random.key(1), (4, 2, 2, 2, 1), jnp.float64)
        params = jax.tree.map(
            lambda w: jnp.asarray(w, jnp.float64),
            init_params(config, jax.random.key(0)),
        )
        optimizer = optimizers.chainer_adam()

        def loss(params):
            dtype = jax.tree.leaves(params)[0].dtype
            state = prednet.initial_state(config, 2, dtype)
            x = frames.astype(dtype)
            return window_loss(params, config, state, x, jnp.asarray(True))[0]

        unravel = ravel_pytree(params)[1]
        dense = jax.jit(jax.hessian(lambda w: loss(unravel(w))))
        gradient = jax.jit(jax.grad(loss))
        state, found = optimizer.init(params), []
        for update in range(1, max(STOPS) + 1):
            moves, state = optimizer.update(gradient(params), state)
            params = jax.tree.map(jnp.add, params, moves)
            if update in STOPS:
                hessian = np.array(dense(ravel_pytree(params)[0]))
                found.append((update, params, state.nu, hessian))
        return loss, found


@pytest.mark.parametrize("stage", range(len(STOPS)))
@pytest.mark.parametrize("preconditioned", [False, True])
def test_prednet_against_dense(stages, stage, preconditioned):
    loss, found = stages
    update, params, second_moment, hessian = found[stage]
    with jax.enable_x64(True):
        scale, dense = None, hessian
        if preconditioned:
            scale = adam_scale(second_moment, update)
            p = np.array(ravel_pytree(scale)[0])
            dense = hessian / np.sqrt(np.outer(p, p))
        exact = np.linalg.eigvalsh(dense)
        assert exact[0] < 0 < exact[-1]
        size = np.abs(exact).max()
        pairs = extreme_eigenpairs(
            loss, params, key=jax.random.key(5), steps=40, scale=scale
        )
        # From inside, an eigenvalue within the residual, and near the dense answer.
        assert exact[0] - 1e-12 * size <= pairs.values[0]
        assert pairs.values[1] <= exact[-1] + 1e-12 * size
        for value, residual in zip(pairs.values, pairs.residuals, strict=True):
            assert np.abs(exact - value).min() <= residual + 1e-12 * size
        # 40 steps are far fewer than the weights; measured: below 1e-6 of the size.
        np.testing.assert_allclose(
            pairs.values, exact[[0, -1]], rtol=0, atol=1e-4 * size
        )
