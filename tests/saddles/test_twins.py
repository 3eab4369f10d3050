"""Twins: identities of the exchange, and which arithmetic keeps twins equal."""

import csv
import dataclasses
import functools
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import PredNetConfig, Trainer, data, init_params, noise, optimizers
from prednet_jax.errors import UserError
from prednet_jax.models import prednet
from prednet_jax.saddles import symmetric
from prednet_jax.saddles.symmetric import SaddleDesign, SaddleRow, SaddleRun
from prednet_jax.training import loop

SMALL = PredNetConfig(
    channels=(3, 4), r_channels=(2, 4), height=8, width=12, convolution="xla"
)
FRAMES = jax.random.uniform(jax.random.key(1), (3, 1, 8, 12, 3))
assert_same_bits = chex.assert_trees_all_equal


def drawn(config, seed=0):
    """Initial weights, with biases that are not zero."""
    params = init_params(config, jax.random.key(seed))
    return jax.tree.map(
        lambda x: x + 0.01 * jnp.arange(x.shape[-1], dtype=x.dtype), params
    )


def loss(params, config):
    predictions, _ = prednet.predict(params, config, FRAMES)
    return jnp.square(predictions[1:] - FRAMES[1:]).sum()


def assert_close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 2e-4, 2e-6), a, b)


def test_even_widths_are_paired_but_the_frames_own():
    config = PredNetConfig(channels=(2, 4, 5, 6), height=8, width=8)
    params = drawn(config)
    kernel = symmetric.exchange(params, config)["prediction_0"]["kernel"]
    first, second = jnp.split(params["prediction_0"]["kernel"], 2, axis=2)
    np.testing.assert_array_equal(kernel, jnp.concatenate([second, first], axis=2))


@pytest.mark.parametrize("variant", ["watanabe", "lotter"])
def test_network_is_invariant_and_gradient_equivariant(variant):
    config = dataclasses.replace(SMALL, variant=variant)
    params = drawn(config)
    other = symmetric.exchange(params, config)
    assert int(symmetric.unequal(params, config)) > 500
    assert_same_bits(symmetric.exchange(other, config), params)  # an involution
    value_and_grad = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    value, gradient = value_and_grad(params, config)
    other_value, other_gradient = value_and_grad(other, config)
    np.testing.assert_allclose(other_value, value, rtol=1e-5)
    assert_close(other_gradient, symmetric.exchange(gradient, config))


def test_the_two_kinds_of_blocks_are_one_network():
    equal, mirrored = (
        symmetric.symmetrise(drawn(SMALL), SMALL, blocks=blocks)
        for blocks in symmetric.BLOCKS
    )
    for one, same in ((equal, assert_same_bits), (mirrored, assert_close)):
        assert int(symmetric.unequal(one, SMALL)) == 0
        assert float(symmetric.asymmetry(one, SMALL)) == 0.0
        blocks = "equal" if one is equal else "mirrored"
        same(symmetric.symmetrise(one, SMALL, blocks=blocks), one)  # a projection
    kernels = [one["gates_1"]["kernel"][..., :4, :4] for one in (equal, mirrored)]
    assert bool((kernels[0] != kernels[1]).all())
    run = jax.jit(lambda p: prednet.predict(p, SMALL, FRAMES)[1].hidden)
    for one, other in zip(run(equal), run(mirrored), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-7)
        first, second = jnp.split(one, 2, axis=-1)
        np.testing.assert_array_equal(first, second)

    # What a unit receives keeps its variance.
    config = PredNetConfig(channels=(3, 64), height=2, width=2)
    plain = init_params(config, jax.random.key(0))
    params = symmetric.symmetrise(plain, config)
    # From twins x, x the sum is (w + w') x: of variance 2 var(w) a pair, as before.
    for tree, variance in ((plain, 1.0), (params, 0.5)):
        kernel = np.asarray(tree["gates_1"]["kernel"])[:, :, :64]
        assert kernel.var() * 64 * 9 == pytest.approx(variance, rel=0.05)


def test_split_moves_twins_apart_by_twice_delta():
    delta, params = 1e-3, symmetric.symmetrise(drawn(SMALL), SMALL)
    moved = symmetric.split(params, SMALL, delta, jax.random.key(1))
    found = float(symmetric.asymmetry(moved, SMALL))
    assert found == pytest.approx(2 * delta, rel=0.1)
    # Opposite: their mean has not moved.
    other = symmetric.exchange(moved, SMALL)
    mean = jax.tree.map(lambda a, b: (a + b) / 2, moved, other)
    chex.assert_trees_all_close(mean, params, rtol=3e-7, atol=1e-9)
    # The smallest one moves last places of some weights.
    moved = symmetric.split(params, SMALL, 1e-7, jax.random.key(1))
    weights = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert 0.1 <= int(symmetric.unequal(moved, SMALL)) / weights <= 0.9
    assert_same_bits(symmetric.split(params, SMALL, 0.0, jax.random.key(1)), params)
    # Independent weights.
    config = PredNetConfig(channels=(2, 32), height=4, width=4)
    params = init_params(config, jax.random.key(0))
    found = float(symmetric.asymmetry(params, config))
    assert found == pytest.approx(np.sqrt(2), rel=0.05)


WIDE = PredNetConfig(channels=(3,), r_channels=(4,), height=8, width=12)


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
        start = symmetric.symmetrise(start, WIDE, blocks=blocks)
        return [int(symmetric.unequal(p, WIDE)) for p in train(start, spec, updates)]

    shared = noise.ReductionOrder(granularity="shared")
    tile = noise.ReductionOrder(tile=2)  # Half of the width.
    assert set(unequal("equal", None, 40)) == {0}
    assert set(unequal("equal", shared, 10)) == {0}
    assert unequal("equal", tile, 5)[-1] > 50
    assert unequal("mirrored", None, 5)[-1] > 50

    # Nothing leaves weights that are all zero.
    zeros = jax.tree.map(jnp.zeros_like, loop.initial_params(WIDE, 1))
    for params in train(zeros, tile, 3):
        assert_same_bits(params, zeros)


@pytest.fixture
def _restored():
    """A run sets the precision of the process."""
    names = ("jax_enable_x64", "jax_default_matmul_precision")
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.usefixtures("_restored")
def test_row_of_a_split_run_and_the_start_in_float64():
    config = dataclasses.replace(SMALL, width=8)
    design = SaddleDesign(config=config, window=2, updates=60)
    row = symmetric.measure(SaddleRun("symmetric", "float32", 0.1, 1), design)
    assert row["separated_at"] == row["unequal_at"] == 1
    assert row["asymmetry_20"] == pytest.approx(0.2, rel=0.3)
    losses = [row[f"loss_{i:02d}"] for i in range(1, 21)]
    assert row["final_loss"] == pytest.approx(np.mean(losses[-4:]))
    assert losses[-1] < losses[0]
    assert row["initial_params_sha256"] != row["final_params_sha256"]
    starts = [
        symmetric.start(SaddleRun("ordinary", arm, 0.0, 1), design)["gates_1"]["kernel"]
        for arm in ("float32", "float64", "float32")
    ]
    assert [kernel.dtype for kernel in starts] == ["f4", "f8", "f4"]
    np.testing.assert_array_equal(starts[0], starts[1])


def test_script_makes_each_run_once(forked, refused, tmp_path):
    words = ("symmetric_start.py", "--updates=20", "--programs=symmetric", "--seeds=1")
    words += ("--arms=float32", f"--workdir={tmp_path}")
    forked(*words, "--deltas=0")
    table = tmp_path / "runs.csv"
    (row,) = csv.DictReader(table.read_text().splitlines())
    assert row["unequal_at"] == row["separated_at"] == ""
    assert row["unequal_weights"] == "0"
    before = table.read_bytes()
    done = forked(*words, "--deltas=0")
    assert "1 runs, 1 of them finished" in done.stdout
    assert table.read_bytes() == before
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["design"]["updates"] == 20
    assert manifest["device"]["threads"] == 1
    # Another design has no place in this table.
    refused("another updates", *words, "--deltas=0", "--updates=40")
    refused("--deltas=small: expected numbers", *words, "--deltas=small")


def test_rows_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "runs.csv"
    names = "program,arm,delta,seed,updates,separated_at,unequal_at,final_loss"
    line = "ordinary,tile,1e-08,8100,3000,,1,0.004"
    path.write_text(f"{names}\n{line}\n")
    expected = SaddleRow("ordinary", "tile", 1e-8, 8100, 3001, False, 0.004, 3000)
    assert symmetric.read(path) == [expected]
    path.write_text(f"{names}\n{line.replace('0.004', 'nan')}\n")
    with pytest.raises(UserError, match="diverged"):
        symmetric.read(path)
    assert symmetric.done(path) == {SaddleRun(*expected[:4])}  # It is not made again.
    path.write_text(f"{names}\n{line}\n{line}\n")
    with pytest.raises(UserError, match="twice"):
        symmetric.read(path)
    path.write_text("program,arm\nx\n")
    with pytest.raises(UserError, match=r"cannot be read .'delta'.; expected"):
        symmetric.done(path)
