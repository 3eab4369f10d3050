"""Twins: identities of the exchange, and which arithmetic keeps twins equal."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import data, noise, optimizers
from prednet_jax.config import PredNetConfig
from prednet_jax.models import prednet
from prednet_jax.models.parameters import init_params
from prednet_jax.studies import twins
from prednet_jax.training import loop
from prednet_jax.training.trainer import Trainer

SMALL = PredNetConfig(channels=(3, 4), r_channels=(2, 4), height=8, width=12)


def drawn(config, seed=0):
    """Initial weights, with biases that are not zero."""
    params = init_params(config, jax.random.key(seed))
    return jax.tree.map(
        lambda x: x + 0.01 * jnp.arange(x.shape[-1], dtype=x.dtype), params
    )


def frames(seed=1, steps=3):
    return jax.random.uniform(jax.random.key(seed), (steps, 1, 8, 12, 3))


def loss(params, config):
    predictions, _ = prednet.predict(params, config, frames())
    return jnp.square(predictions[1:] - frames()[1:]).sum()


def assert_same_bits(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 2e-4, 2e-6), a, b)


def test_even_widths_are_paired_but_the_frames_own():
    config = PredNetConfig(channels=(2, 4, 5, 6), height=8, width=8)
    params = drawn(config)
    kernel = twins.exchange(params, config)["prediction_0"]["kernel"]
    first, second = jnp.split(params["prediction_0"]["kernel"], 2, axis=2)
    np.testing.assert_array_equal(kernel, jnp.concatenate([second, first], axis=2))


@pytest.mark.parametrize("variant", ["watanabe", "lotter"])
def test_network_is_invariant_and_gradient_equivariant(variant):
    config = dataclasses.replace(SMALL, variant=variant)
    params = drawn(config)
    other = twins.exchange(params, config)
    assert int(twins.unequal(params, config)) > 500
    assert_same_bits(twins.exchange(other, config), params)  # an involution
    value_and_grad = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    value, gradient = value_and_grad(params, config)
    other_value, other_gradient = value_and_grad(other, config)
    np.testing.assert_allclose(other_value, value, rtol=1e-5)
    assert_close(other_gradient, twins.exchange(gradient, config))


def test_the_two_kinds_of_blocks_are_one_network():
    equal, mirrored = (
        twins.symmetrise(drawn(SMALL), SMALL, blocks=blocks) for blocks in twins.BLOCKS
    )
    for one, same in ((equal, assert_same_bits), (mirrored, assert_close)):
        assert int(twins.unequal(one, SMALL)) == 0
        assert float(twins.asymmetry(one, SMALL)) == 0.0
        blocks = "equal" if one is equal else "mirrored"
        same(twins.symmetrise(one, SMALL, blocks=blocks), one)  # a projection
    kernels = [one["gates_1"]["kernel"][..., :4, :4] for one in (equal, mirrored)]
    assert bool((kernels[0] != kernels[1]).all())
    run = jax.jit(lambda p: prednet.predict(p, SMALL, frames())[1].hidden)
    for one, other in zip(run(equal), run(mirrored), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-7)
        first, second = jnp.split(one, 2, axis=-1)
        np.testing.assert_array_equal(first, second)

    # What a unit receives keeps its variance.
    config = PredNetConfig(channels=(3, 64), height=2, width=2)
    plain = init_params(config, jax.random.key(0))
    params = twins.symmetrise(plain, config)
    # From twins x, x the sum is (w + w') x: of variance 2 var(w) a pair, as before.
    for tree, variance in ((plain, 1.0), (params, 0.5)):
        kernel = np.asarray(tree["gates_1"]["kernel"])[:, :, :64]
        assert kernel.var() * 64 * 9 == pytest.approx(variance, rel=0.05)


def test_split_moves_twins_apart_by_twice_delta():
    delta, params = 1e-3, twins.symmetrise(drawn(SMALL), SMALL)
    moved = twins.split(params, SMALL, delta, jax.random.key(1))
    found = float(twins.asymmetry(moved, SMALL))
    assert found == pytest.approx(2 * delta, rel=0.1)
    # Opposite: their mean has not moved.
    other = twins.exchange(moved, SMALL)
    jax.tree.map(
        lambda a, b, w: np.testing.assert_allclose((a + b) / 2, w, 3e-7, 1e-9),
        moved,
        other,
        params,
    )
    # The smallest one moves last places of some weights.
    moved = twins.split(params, SMALL, 1e-7, jax.random.key(1))
    weights = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert 0.1 <= int(twins.unequal(moved, SMALL)) / weights <= 0.9
    assert_same_bits(twins.split(params, SMALL, 0.0, jax.random.key(1)), params)
    # Independent weights.
    config = PredNetConfig(channels=(2, 32), height=4, width=4)
    params = init_params(config, jax.random.key(0))
    assert float(twins.asymmetry(params, config)) == pytest.approx(np.sqrt(2), rel=0.05)


WIDE = PredNetConfig(channels=(3, 4), r_channels=(4, 4), height=8, width=12)


@functools.cache
def trainer(spec):
    return Trainer(WIDE, optimizers.chainer_adam(), noise=spec)


def train(params, spec, updates):
    """The weights after each update."""
    source = data.open_source("walk", height=8, width=12, channels=3, seed=1)
    schedule = loop.frame_schedule(WIDE, source, window=2, updates=updates)
    state = trainer(spec).init(params)
    for after, record in loop.train(trainer(spec), state, source, schedule, seed=1):
        assert np.isfinite(record.loss)
        yield after.params


def test_what_keeps_twins_equal_bit_for_bit_and_what_separates_them():
    def unequal(blocks, spec, updates):
        start = loop.initial_params(WIDE, 1)
        start = twins.symmetrise(start, WIDE, blocks=blocks)
        return [int(twins.unequal(p, WIDE)) for p in train(start, spec, updates)]

    shared, tile = (
        noise.ReductionOrder(granularity="shared"),
        noise.ReductionOrder(tile=2),  # Half of the width.
    )
    assert set(unequal("equal", None, 40)) == {0}
    assert set(unequal("equal", shared, 10)) == {0}
    assert unequal("equal", tile, 5)[-1] > 100
    assert unequal("mirrored", None, 5)[-1] > 100

    # Nothing leaves weights that are all zero.
    zeros = jax.tree.map(jnp.zeros_like, loop.initial_params(WIDE, 1))
    for params in train(zeros, noise.ReductionOrder(tile=2), 3):
        assert_same_bits(params, zeros)
