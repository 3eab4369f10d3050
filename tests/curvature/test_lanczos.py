import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from prednet_jax.curvature import adam_scale, extreme_eigenpairs, hvp


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


@pytest.mark.parametrize("stage", [0, 3])
def test_residual_bounds_the_error_in_float32(trained, stage):
    params = jax.tree.map(lambda x: x.astype(jnp.float32), trained.stages[stage].params)
    exact = np.linalg.eigvalsh(trained.stages[stage].hessian)
    pairs = extreme_eigenpairs(trained.loss, params, key=jax.random.key(5), steps=20)
    assert pairs.values.dtype == jnp.float32
    for value, residual in zip(pairs.values, pairs.residuals, strict=True):
        # 58 products of float32 numbers in each component, and rounded weights.
        allowance = np.sqrt(58) * 1.2e-7 * exact[-1]
        assert np.abs(exact - float(value)).min() <= residual + allowance


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
