"""Twins: identities of the exchange, and which arithmetic keeps twins equal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import data, keys, noise, optimizers
from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.models import prednet
from prednet_jax.models.parameters import init_params
from prednet_jax.studies import symmetric_start as twins
from prednet_jax.training import loop
from prednet_jax.training.trainer import Trainer

SMALL = PredNetConfig(channels=(3, 4, 6), r_channels=(2, 4, 6), height=8, width=12)
VARIANTS = ("watanabe", "lotter")


def small(variant):
    return PredNetConfig(
        channels=SMALL.channels,
        r_channels=SMALL.r_channels,
        height=8,
        width=12,
        variant=variant,
    )


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


def test_all_pairs():
    pairs = twins.all_pairs(PredNetConfig(channels=(2, 4, 5, 6), height=8, width=8))
    assert pairs.features == {1, 3}  # not the frame's own, though there are two
    assert pairs.recurrent == {0, 1, 3}


def test_nothing_to_pair():
    with pytest.raises(UserError, match=r"channels=\(3, 5\).*even width"):
        twins.all_pairs(PredNetConfig(channels=(3, 5), height=8, width=8))


def test_odd_width_is_refused():
    pairs = twins.Pairs(features=frozenset(), recurrent=frozenset({0}))
    config = PredNetConfig(channels=(3, 4), height=8, width=12)
    with pytest.raises(UserError, match="layer 0: 3 channels"):
        twins.exchange(drawn(config), config, pairs)


@pytest.mark.parametrize("variant", VARIANTS)
def test_exchange_is_an_involution(variant):
    config = small(variant)
    params, pairs = drawn(config), twins.all_pairs(config)
    other = twins.exchange(params, config, pairs)
    assert int(twins.unequal(params, config, pairs)) > 1000
    assert_same_bits(twins.exchange(other, config, pairs), params)


@pytest.mark.parametrize("variant", VARIANTS)
def test_network_is_invariant_and_gradient_equivariant(variant):
    config = small(variant)
    params, pairs = drawn(config), twins.all_pairs(config)
    other = twins.exchange(params, config, pairs)
    value_and_grad = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    value, gradient = value_and_grad(params, config)
    other_value, other_gradient = value_and_grad(other, config)
    np.testing.assert_allclose(other_value, value, rtol=1e-5)
    assert_close(other_gradient, twins.exchange(gradient, config, pairs))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("blocks", twins.BLOCKS)
def test_symmetrise_is_a_projection_onto_twins(variant, blocks):
    config = small(variant)
    pairs = twins.all_pairs(config)
    params = twins.symmetrise(drawn(config), config, pairs, blocks=blocks)
    assert int(twins.unequal(params, config, pairs)) == 0
    assert float(twins.asymmetry(params, config, pairs)) == 0.0
    again = twins.symmetrise(params, config, pairs, blocks=blocks)
    if blocks == "equal":
        assert_same_bits(again, params)
    else:
        assert_close(again, params)


def test_the_two_kinds_of_blocks_are_one_network():
    pairs = twins.all_pairs(SMALL)
    equal, mirrored = (
        twins.symmetrise(drawn(SMALL), SMALL, pairs, blocks=blocks)
        for blocks in twins.BLOCKS
    )
    assert (
        float(
            jnp.abs(equal["gates_1"]["kernel"] - mirrored["gates_1"]["kernel"])[
                ..., :4, :4
            ].min()
        )
        > 0
    )
    run = jax.jit(lambda p: prednet.predict(p, SMALL, frames())[1].hidden)
    for one, other in zip(run(equal), run(mirrored), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-7)
        first, second = jnp.split(one, 2, axis=-1)
        np.testing.assert_array_equal(first, second)


def test_equal_blocks_are_equal():
    pairs = twins.all_pairs(SMALL)
    params = twins.symmetrise(drawn(SMALL), SMALL, pairs)
    kernel = params["gates_1"]["kernel"][..., :4, :4]  # h to the gate i, 4 channels
    for rows in (slice(0, 2), slice(2, 4)):
        for columns in (slice(0, 2), slice(2, 4)):
            np.testing.assert_array_equal(
                kernel[..., rows, columns], kernel[..., :2, :2]
            )


def test_what_a_unit_receives_keeps_its_variance():
    config = PredNetConfig(channels=(3, 64), height=2, width=2)
    pairs = twins.all_pairs(config)
    plain = init_params(config, jax.random.key(0))
    params = twins.symmetrise(plain, config, pairs)
    # From twins x, x the sum is (w + w') x: of variance 2 var(w) a pair, as before.
    for tree, variance in ((plain, 1.0), (params, 0.5)):
        kernel = np.asarray(tree["gates_1"]["kernel"])[:, :, :64]
        assert kernel.var() * 64 * 9 == pytest.approx(variance, rel=0.05)


def test_unknown_blocks():
    with pytest.raises(UserError, match="blocks='same': expected one of equal"):
        twins.symmetrise(drawn(SMALL), SMALL, twins.all_pairs(SMALL), blocks="same")


def test_split_by_zero_keeps_every_bit():
    pairs = twins.all_pairs(SMALL)
    params = twins.symmetrise(drawn(SMALL), SMALL, pairs)
    assert_same_bits(twins.split(params, SMALL, pairs, 0.0, jax.random.key(1)), params)


@pytest.mark.parametrize("delta", [1e-5, 1e-3, 1e-1])
def test_split_moves_twins_apart_by_twice_delta(delta):
    pairs = twins.all_pairs(SMALL)
    params = twins.symmetrise(drawn(SMALL), SMALL, pairs)
    moved = twins.split(params, SMALL, pairs, delta, jax.random.key(1))
    found = float(twins.asymmetry(moved, SMALL, pairs))
    assert found == pytest.approx(2 * delta, rel=0.1)
    # Opposite: their mean has not moved.
    other = twins.exchange(moved, SMALL, pairs)
    jax.tree.map(
        lambda a, b, w: np.testing.assert_allclose((a + b) / 2, w, 3e-7, 1e-9),
        moved,
        other,
        params,
    )


@pytest.mark.parametrize(("delta", "low", "high"), [(1e-10, 0, 0), (1e-7, 0.1, 0.9)])
def test_smallest_splits_are_last_places(delta, low, high):
    pairs = twins.all_pairs(SMALL)
    params = twins.symmetrise(drawn(SMALL), SMALL, pairs)
    moved = twins.split(params, SMALL, pairs, delta, jax.random.key(1))
    weights = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert low <= int(twins.unequal(moved, SMALL, pairs)) / weights <= high


@pytest.mark.parametrize("delta", [-1e-3, 1.0, float("nan")])
def test_split_refuses(delta):
    pairs = twins.all_pairs(SMALL)
    with pytest.raises(UserError, match="delta="):
        twins.split(drawn(SMALL), SMALL, pairs, delta, jax.random.key(1))


def test_asymmetry_of_independent_weights():
    config = PredNetConfig(channels=(2, 32), height=4, width=4)
    pairs = twins.all_pairs(config)
    params = init_params(config, jax.random.key(0))
    assert float(twins.asymmetry(params, config, pairs)) == pytest.approx(
        np.sqrt(2), rel=0.05
    )


def train(blocks, spec, updates):
    """Weights that differ from their twin's after each update."""
    config = PredNetConfig(channels=(3, 4), r_channels=(4, 4), height=8, width=12)
    pairs = twins.all_pairs(config)
    params = loop.initial_params(config, 1)
    params = twins.symmetrise(params, config, pairs, blocks=blocks)
    source = data.open_source("walk", height=8, width=12, channels=3, seed=1)
    schedule = loop.frame_schedule(config, source, window=4, updates=updates)
    optimizer = optimizers.chainer_adam()
    trainer = Trainer(config, optimizer, noise=spec)
    state = trainer.init(params)
    counts = []
    for after, record in loop.train(trainer, state, source, schedule, seed=1):
        assert np.isfinite(record.loss)
        counts.append(int(twins.unequal(after.params, config, pairs)))
    return counts


@pytest.mark.parametrize("granularity", [None, "shared"])
def test_equal_blocks_stay_twins_bit_for_bit(granularity):
    spec = granularity and noise.ReductionOrder(granularity=granularity)
    assert set(train("equal", spec, 200)) == {0}


def test_order_by_tile_separates_equal_blocks():
    spec = noise.ReductionOrder(tile=2)  # half of the width
    counts = train("equal", spec, 5)
    assert counts[-1] > 100


def test_rounding_alone_separates_mirrored_blocks():
    counts = train("mirrored", None, 5)
    assert counts[-1] > 100


def test_streams_differ_between_weights_and_split():
    """The split must not repeat the numbers of the initial weights."""
    assert not np.array_equal(
        jax.random.key_data(keys.stream(1, "init")),
        jax.random.key_data(keys.stream(1, "probe")),
    )


@pytest.mark.parametrize("spec", [None, noise.ReductionOrder(tile=1)])
def test_nothing_leaves_weights_that_are_all_zero(spec):
    trainer = Trainer(SMALL, optimizers.chainer_adam(), noise=spec)
    zeros = jax.tree.map(jnp.zeros_like, drawn(SMALL))
    state = trainer.init(zeros)
    video = np.asarray(frames(steps=5))
    for number in range(3):
        key = None if spec is None else jax.random.key(number)
        state, _ = trainer.step(state, video, number == 0, key)
    assert_same_bits(state.params, zeros)
