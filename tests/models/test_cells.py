"""The reverse rules written by hand, against JAX's derivative of the plain formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax.models import step


def plain_lstm(gates, cell, peephole):
    i, f, o, g = jnp.split(gates, 4, axis=-1)
    i = jax.nn.sigmoid(i + peephole[0] * cell)
    f = jax.nn.sigmoid(f + peephole[1] * cell)
    o = jax.nn.sigmoid(o + peephole[2] * cell)
    cell = f * cell + i * jnp.tanh(g)
    return o * jnp.tanh(cell), cell


def plain_pool(x):
    def first(a, b):
        return jnp.where(a >= b, a, b)

    top = first(x[:, 0::2, 0::2], x[:, 0::2, 1::2])
    return first(top, first(x[:, 1::2, 0::2], x[:, 1::2, 1::2]))


def draw(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=shape)) for shape in shapes]


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


# Both sides in float64: a few roundings of values of order one.
NEAR = {"rtol": 1e-13, "atol": 1e-14}


def test_lstm_gradients():
    inputs = draw((2, 3, 4, 8), (2, 3, 4, 2), (3, 3, 4, 2))
    cotangents = tuple(draw((2, 3, 4, 2), (2, 3, 4, 2), seed=1))
    out, back = jax.vjp(step.lstm, *inputs)
    expected, expected_back = jax.vjp(plain_lstm, *inputs)
    for a, e in zip(out, expected, strict=True):
        np.testing.assert_array_equal(a, e)
    for a, e in zip(back(cotangents), expected_back(cotangents), strict=True):
        np.testing.assert_allclose(a, e, **NEAR)


def test_lstm_hessian_products():
    inputs = draw((2, 2, 2, 4), (2, 2, 2, 1), (3, 2, 2, 1))
    along = draw((2, 2, 2, 4), (2, 2, 2, 1), (3, 2, 2, 1), seed=1)

    def product(lstm):
        def loss(*inputs):
            hidden, cell = lstm(*inputs)
            return jnp.square(hidden).sum() + jnp.sin(cell).sum()

        gradient = jax.grad(loss, argnums=(0, 1, 2))
        return jax.jvp(gradient, tuple(inputs), tuple(along))[1]

    for a, e in zip(product(step.lstm), product(plain_lstm), strict=True):
        np.testing.assert_allclose(a, e, **NEAR)


@pytest.mark.parametrize("tied", [False, True])
def test_pool_gradient(tied):
    (x,) = draw((2, 4, 6, 3))
    if tied:  # Whole numbers from -1 to 1: ties of two, three and four; the first wins.
        x = jnp.clip(jnp.round(x), -1, 1)
    out, back = jax.vjp(step.max_pool, x)
    expected, expected_back = jax.vjp(plain_pool, x)
    np.testing.assert_array_equal(out, expected)
    (dy,) = draw(out.shape, seed=1)
    np.testing.assert_array_equal(back(dy)[0], expected_back(dy)[0])


def test_pool_hides_no_nan():
    for place in range(4):
        x = jnp.array([5.0, 1.0, 3.0, 2.0]).at[place].set(jnp.nan)
        assert jnp.isnan(step.max_pool(x.reshape(1, 2, 2, 1))).all()
