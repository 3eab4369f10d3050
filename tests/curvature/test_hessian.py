import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from prednet_jax import optimizers
from prednet_jax.curvature import adam_scale, extreme_eigenpairs
from prednet_jax.curvature.hessian import hessian_operator


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

        # It passes through a custom_vjp inside a scan.
        params = {"w": jnp.array([0.7, -1.2]), "b": jnp.array([0.4, 0.9])}
        flat, unravel = ravel_pytree(params)
        tangent = jnp.array([-0.5, 0.3, 1.0, 2.0])
        received = hessian_operator(scanned, params)[0](tangent)
        dense = jax.hessian(lambda p: plain(unravel(p)))(flat)
        np.testing.assert_allclose(received, dense @ tangent, rtol=1e-12)


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
