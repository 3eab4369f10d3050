"""Programs of other libraries, which this package does not know, under noise.

For each: Identity gives the bits of the plain function, an order of sums changes the
result and stays close, and coverage lists what it acts on.
"""

import functools

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen

from prednet_jax import noise

ORDER = noise.ReductionOrder(partials=3, granularity="element", shortest=1)
KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (8, 16))
Y = jnp.sum(jnp.sin(X), axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def _promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def square(prediction, y=Y):
    return jnp.mean(jnp.square(prediction - y))


def linen_step():
    """A training step with accumulation over two small batches (optax.MultiSteps)."""

    class Network(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.LayerNorm()(linen.relu(linen.Dense(12)(x)))
            return linen.Dense(1)(x)

    network = Network()
    params = network.init(KEY, X)
    optimizer = optax.MultiSteps(optax.adamw(1e-2), every_k_schedule=2)

    @jax.jit
    def step(params, state, x, y):
        def micro(carry, batch):
            params, state = carry
            gradient = jax.grad(lambda p: square(network.apply(p, batch[0]), batch[1]))(
                params
            )
            updates, state = optimizer.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), None

        batches = (x.reshape(2, 4, 16), y.reshape(2, 4, 1))
        return jax.lax.scan(micro, (params, state), batches)[0][0]

    return step, (params, optimizer.init(params), X, Y)


def equinox_step():
    """A step that returns its model: activations are no arrays, and come back."""
    model = eqx.nn.MLP(16, 1, 12, 1, key=KEY)

    @eqx.filter_jit
    def step(model, x, y):
        gradient = eqx.filter_grad(lambda m: square(jax.vmap(m)(x), y))(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, gradient))

    return step, (model, X, Y)


def diffrax_solution():
    def solve(w, start):
        term = diffrax.ODETerm(lambda t, y, w: jnp.tanh(w @ y))
        return diffrax.diffeqsolve(
            term, diffrax.Heun(), 0.0, 1.0, 0.25, start, w, max_steps=8
        ).ys

    return solve, (jax.random.normal(KEY, (16, 16)) / 4, X[0])


def transformer_block():
    """bfloat16 products; partial sums are kept in bfloat16, or noise would be lost."""

    class Block(linen.Module):
        @linen.compact
        def __call__(self, x):
            half = functools.partial(linen.Dense, dtype=jnp.bfloat16)
            h = linen.LayerNorm(dtype=jnp.float32)(x)
            q, k, v = (half(16)(h) for _ in range(3))
            weights = jax.nn.softmax((q @ k.T).astype(jnp.float32) / 4.0)
            x = x + half(16)(weights.astype(jnp.bfloat16) @ v)
            return x + half(16)(linen.gelu(half(32)(x)))

    block = Block()
    params = block.init(KEY, X)
    return jax.grad(lambda p, x: jnp.mean(block.apply(p, x) ** 2)), (params, X)


PROGRAMS = [linen_step, equinox_step, diffrax_solution, transformer_block]


def numbers(tree):
    return [np.asarray(x, np.float64) for x in jax.tree.leaves(tree) if eqx.is_array(x)]


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_program(make):
    fn, args = make()
    half = make is transformer_block
    spec = noise.ReductionOrder(partials=3, shortest=1, accumulate="operand")
    spec = spec if half else ORDER
    # New arrays for each call, which may donate them.
    plain, same, noisy = (
        called(*jax.tree.map(lambda x: jnp.array(x) if eqx.is_array(x) else x, args))
        for called in (
            fn,
            functools.partial(noise.inject(fn, noise.Identity()), KEY),
            functools.partial(noise.inject(fn, spec), KEY),
        )
    )
    assert jax.tree.structure(noisy) == jax.tree.structure(plain)
    for a, b in zip(numbers(plain), numbers(same), strict=True):
        np.testing.assert_array_equal(a, b)
    others = [x for x in jax.tree.leaves(plain) if not eqx.is_array(x)]
    assert [x for x in jax.tree.leaves(noisy) if not eqx.is_array(x)] == others
    # Of all leaves together: some gradients are zero but for rounding.
    a, b = (np.concatenate([x.ravel() for x in numbers(t)]) for t in (plain, noisy))
    assert 0 < np.linalg.norm(a - b) <= (0.1 if half else 1e-3) * np.linalg.norm(a)
    assert noise.coverage(fn, spec)(*args).perturbed
