import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from prednet_jax import optimizers
from prednet_jax.curvature import adam_scale, hessian_operator, hvp


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
        ({"w": jnp.ones(2)}, {"b": jnp.ones(2)}, "structure.*'b'.*'w'"),
        ({"w": jnp.ones(2)}, {"w": jnp.ones(3)}, r"\(3,\).*\(2,\)"),
    ],
)
def test_operator_refuses(params, scale, message):
    with pytest.raises(ValueError, match=message):
        hessian_operator(lambda p: jnp.sum(p["w"] ** 2), params, scale)
