"""What ends a run, and the warning about one that no longer learns."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from prednet_jax import PredNetConfig, optimizers, tasks
from prednet_jax.errors import RunError, UserError
from prednet_jax.training import keeping, sizes
from prednet_jax.training.loop import UpdateRecord
from prednet_jax.training.truncated import TrainState

FINE = UpdateRecord(1, 4, 0.5, 0.5, 0.5, 1.0, 0.1)


def state(**fields):
    good = {"w": np.ones(3, np.float32)}
    found = {"params": good, "optimizer_state": {"mu": good}, "carry": good}
    return TrainState(**found | {"update": np.int32(1)} | fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss": float("nan")}, "update 1: loss nan, norm of the gradient 1.0"),
        ({"grad_norm": float("inf")}, "every tensor is finite, the norm overflowed"),
    ],
)
def test_a_loss_or_gradient_that_is_no_number_ends_the_run(fields, message):
    """NaN and infinity, with the update."""
    with pytest.raises(RunError, match=message):
        keeping.Guard("run", 9).see(dataclasses.replace(FINE, **fields), state)


def test_the_first_tensor_that_is_not_finite_is_named():
    """Carried state, then moments, then weights."""
    bad = {"a": np.ones(2), "b": {"kernel": np.array([1, np.inf])}}
    assert keeping.first_not_finite(state()) is None
    assert keeping.first_not_finite(state(params=bad)) == "params/b/kernel"
    both = state(params=bad, optimizer_state={"mu": bad})
    assert keeping.first_not_finite(both) == "optimizer_state/mu/b/kernel"
    with pytest.raises(RunError, match="after update 1 params/b/kernel is not finite"):
        keeping.Guard("run", 9).end(state(params=bad))


def test_a_gradient_of_exactly_zero_is_said_once(capsys):
    """Ten updates in a row; nine are no reason."""
    guard = keeping.Guard("run", 1000)
    zero = dataclasses.replace(FINE, grad_norm=0.0)
    for record in [zero] * 9 + [FINE] + [zero] * 30:
        guard.see(record, state)
    said = capsys.readouterr().err
    assert said.count("exactly zero in 10 updates") == 1
    assert len(guard.warnings) == 1


def test_black_frames_are_named_as_the_reason(capsys):
    """They do not change, and a prediction clipped at 0 meets them exactly."""
    guard = keeping.Guard("run", 1000)
    for _ in range(5):  # A still picture that teaches is no reason later.
        guard.see(dataclasses.replace(FINE, copy_last_frame_loss=0.0), state)
    black = dataclasses.replace(FINE, grad_norm=0.0, loss=0.0, copy_last_frame_loss=0.0)
    for _ in range(10):
        guard.see(black, state)
    said = capsys.readouterr().err
    assert "the frames of 10 of them do not change (black), and teach nothing" in said
    assert "--crop" in said
    assert "learning_rate" not in said


def test_clipping_is_optax_own_before_the_optimiser():
    """The same bits as optax.chain."""
    params = {"w": jnp.arange(4.0), "b": jnp.ones(2)}
    gradients = {"w": jnp.array([3.0, 0, -4, 12]), "b": jnp.array([0.5, -2])}
    ours = optimizers.clipped(optimizers.chainer_adam(), 0.7)
    theirs = optax.chain(optax.clip_by_global_norm(0.7), optimizers.chainer_adam())
    (mine, _), (other, _) = (
        one.update(gradients, one.init(params), params) for one in (ours, theirs)
    )
    for name in params:
        np.testing.assert_array_equal(mine[name], other[name])
    with pytest.raises(UserError, match="clip_gradient=0: expected a finite number"):
        optimizers.clipped(optimizers.chainer_adam(), 0)


BIG = PredNetConfig(channels=(3, 48, 96, 192), height=120, width=160)


@pytest.mark.fault(
    "sizes that cannot fit",
    "99999999999 updates, 200000x200000, 5000 replicas, 100000 streams, 10^8 examples",
)
@pytest.mark.parametrize(
    ("config", "fields", "message"),
    [
        (PredNetConfig(height=200000, width=200000), {}, "height=200000, width=200000"),
        (BIG, {"updates": 99999999999}, "updates=99999999999: the plan of"),
        (BIG, {"seeds": 5000, "together": True}, "replicas=5000: "),
        (BIG, {"batch": 10**5}, "batch=100000"),
        (BIG, {"examples": 10**8}, "examples=100000000: their prediction takes"),
    ],
)
def test_sizes_that_cannot_fit_are_refused_from_their_shapes(config, fields, message):
    """Refused with the flag named; no array is made."""
    with pytest.raises(UserError, match=message):
        check(config, **fields)


def check(config, **fields):
    usual = {"updates": 250, "window": 20, "dtype": np.float32}
    sizes.check(tasks.of(config), **usual | fields)


@pytest.mark.fault("checkpoints that cannot fit", "ten million of 4 MB")
def test_checkpoints_that_cannot_fit_on_the_disk_are_refused(tmp_path):
    """Refused beforehand; the last three of them fit."""
    leaf = np.zeros(2**20, np.float32)
    disk = {"updates": 10**7, "every": 1}
    with pytest.raises(UserError, match="checkpoints need at least 41"):
        sizes.check_disk(tmp_path, leaf, **disk | {"updates": 10**7}, kept=0)
    sizes.check_disk(tmp_path / "new", leaf, **disk, kept=3)
    # A run that goes on has room for those that it made.
    sizes.check_disk(tmp_path, leaf, **disk, kept=0, saved=(10**7 + 1,))
    # The article's size, ten replicas of it.
    check(BIG, seeds=10, together=True)
