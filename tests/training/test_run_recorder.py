import io
import re
import resource
import sys
import types
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, patch

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from prednet_jax import PredNetConfig, optimizers, process, records, tasks
from prednet_jax.errors import RunError, UserError, log_line
from prednet_jax.objectives import Method
from prednet_jax.training import progress, run_directory, run_recorder
from prednet_jax.training.loop import UpdateRecord
from prednet_jax.training.recipe import Recipe
from prednet_jax.training.settings import DataSettings, RecordSettings, TrainingSettings
from prednet_jax.training.truncated import TrainState
from tests.experiments import tiny_task

MANIFEST = records.Manifest(model="prednet", network={}, seed=0, updates=9, flags={})


def state(**fields):
    good = {"w": np.ones(3, np.float32)}
    found = {"params": good, "optimizer_state": {"mu": good}, "carry": good}
    return TrainState(**found | {"update": np.int32(1)} | fields)


def test_what_is_no_number_ends_the_run():
    """The loss, the gradient, and a tensor after the last update, which is named."""
    bad = {"a": np.ones(2), "b": {"kernel": np.array([1, np.inf])}}
    run_recorder.check_finite("run", record(1), lambda: state(params=bad), False)
    run_recorder.check_finite("run", record(1), state, True)
    for fields, after, message in (
        ({"loss": np.nan}, {}, "update 1: loss nan, .*; every tensor is finite, the"),
        ({"grad_norm": np.inf}, {"carry": bad}, "inf; .* is carry/b/kernel; try a"),
        ({"grad_norm": np.inf}, {"carry": np.array(np.nan)}, "finite is carry; try a"),
        ({}, {"params": bad}, "tensor that is not finite is params/b/kernel"),
        # Carried state, then moments, then weights.
        ({}, {"params": bad, "optimizer_state": {"mu": bad}}, "optimizer_state/mu/b/k"),
    ):
        wrong = replace(record(1), **fields)
        with pytest.raises(RunError, match=message):
            run_recorder.check_finite("run", wrong, lambda a=after: state(**a), True)


def test_a_gradient_of_zero_is_reported_once(tmp_path, capsys):
    """It was reported again at every update after the tenth, whatever its gradient."""
    task = tasks.of(PredNetConfig(channels=(3,), height=8, width=8))
    recipe = Recipe(task=task, training=TrainingSettings(updates=99))
    keeper = run_recorder.RunRecorder(recipe, tmp_path, MANIFEST, 0)
    norms = [0.0] * 10 + [1.0] * 20 + [0.0] * 5
    for update, norm in enumerate(norms, 1):
        keeper.see(replace(record(update), grad_norm=norm), state, False)
    keeper.close()
    assert capsys.readouterr().err.count("the gradient was exactly zero") == 1


def test_a_relative_folder_is_no_bucket(tmp_path, monkeypatch):
    """TensorBoard's writer took a path that starts with `s3:` for one."""
    monkeypatch.chdir(tmp_path)
    folder = Path("s3:run")
    folder.mkdir()
    task = tasks.of(PredNetConfig(channels=(3,), height=8, width=8))
    recipe = Recipe(task=task, training=TrainingSettings(updates=1))
    run_recorder.RunRecorder(recipe, folder, MANIFEST, 0).close()
    assert list((tmp_path / "s3:run").glob("events*"))


@pytest.mark.fault
def test_a_run_that_begins_again_scores_update_0_once(tmp_path):
    """Frames that changed before update 1, or a kill before the first checkpoint."""
    task = tasks.of(PredNetConfig(channels=(3,), height=8, width=8))
    recipe = Recipe(
        task=task,
        training=TrainingSettings(updates=2),
        data=DataSettings(validate_every=1),
    )
    scores = dict.fromkeys(records.SCORES, 0.5)
    validation = Mock(score=Mock(return_value=Mock(**scores)))
    for _ in range(2):
        with patch.object(Recipe, "validation", validation):
            run_recorder.RunRecorder(recipe, tmp_path, MANIFEST, 0, {}).close()
    rows = records.read_validation(tmp_path)
    assert rows == [{"update": 0, **scores}]


@pytest.mark.fault
def test_a_part_of_a_run_keeps_the_events_of_another(tmp_path, monkeypatch):
    """The clock was set back to the second in which the first part began."""
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.5)
    task = tasks.of(PredNetConfig(channels=(3,), height=8, width=8))
    recipe = Recipe(task=task, training=TrainingSettings(updates=2))
    for _ in range(2):
        run_recorder.RunRecorder(recipe, tmp_path, MANIFEST, 0).close()
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2


def test_clipping_is_optax_own_before_the_optimiser():
    params = {"w": jnp.arange(4.0), "b": jnp.ones(2)}
    gradients = {"w": jnp.array([3.0, 0, -4, 12]), "b": jnp.array([0.5, -2])}
    ours = optimizers.clipped(optimizers.chainer_adam(), 0.7)
    theirs = optax.chain(optax.clip_by_global_norm(0.7), optimizers.chainer_adam())
    (mine, _), (other, _) = (
        one.update(gradients, one.init(params), params) for one in (ours, theirs)
    )
    for name in params:
        np.testing.assert_array_equal(mine[name], other[name])


BIG = PredNetConfig(channels=(3, 48, 96, 192), height=120, width=160)


@pytest.mark.fault
def test_sizes_that_cannot_fit_are_refused_from_their_shapes():
    """Refused with the flag named; no array is made."""
    many = {"training": TrainingSettings(updates=99999999999)}
    examples = {"records": RecordSettings(examples=10**8)}
    for config, fields, seeds, message in (
        (replace(BIG, height=200000, width=200000), {}, 1, "height=200000, width=2000"),
        (BIG, many, 1, "updates=99999999999: the plan of"),
        (BIG, {}, 5000, "replicas=5000: "),
        (BIG, {"data": DataSettings(batch=10**5)}, 1, "batch=100000"),
        (BIG, examples, 1, "examples=100000000: their prediction takes"),
    ):
        with pytest.raises(UserError, match=message):
            Recipe(task=tasks.of(config), **fields).check_sizes(seeds, together=True)


@pytest.mark.fault
def test_the_estimate_knows_what_is_computed_again(monkeypatch):
    """At 128x160 ten frames in batches of four take 2.0 GiB, and again a third."""
    task = tasks.of(replace(BIG, variant="lotter", height=128))
    recipe = Recipe(task=task, data=DataSettings(window=10, batch=4))
    again = replace(recipe, method=Method(rematerialize=True))
    monkeypatch.setattr(process, "memory_bytes", lambda: 10**9)
    with pytest.raises(
        UserError, match=r"takes at least 2\.0 GB; .*--rematerialize, 0\.\d GB"
    ):
        recipe.check_sizes(1)
    again.check_sizes(1)
    monkeypatch.setattr(process, "memory_bytes", lambda: 10**8)
    with pytest.raises(UserError, match=r"takes at least 0\.\d GB; .* machine$"):
        again.check_sizes(1)


@pytest.mark.fault
def test_replicas_that_open_too_many_files_are_refused(monkeypatch):
    """Beforehand; they ended in a traceback, with some of the directories made."""
    task = tasks.of(PredNetConfig(channels=(3,), height=8, width=8))
    recipe = Recipe(task=task, training=TrainingSettings(updates=2))
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 300))
    monkeypatch.setattr(resource, "setrlimit", lambda _, now: limits.append(now))
    with pytest.raises(UserError, match="replicas=40: they need 320 open files"):
        recipe.check_sizes(40, together=True)
    recipe.check_sizes(40)
    assert limits == []
    recipe.check_sizes(30, together=True)
    assert limits == [(300, 300)]


def test_a_given_rate_changes_nothing_else_of_adam():
    """Epsilon stays Keras's in `lotter`; it became Chainer's."""
    task = tasks.of(PredNetConfig(channels=(3,), height=8, width=8, variant="lotter"))
    recipe = Recipe(task=task, training=TrainingSettings(updates=2, learning_rate=0.01))
    assert recipe.optimizer is optimizers.chainer_adam(0.01, eps=1e-7)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def record(update, loss=0.02, copied=0.01):
    return UpdateRecord(update, 0, loss, loss, copied, 1.0, 0.0)


def test_a_pipe_gets_whole_lines_now_and_then(monkeypatch, capsys):
    """One of a network of images has no ratio; nothing where nothing is wanted."""
    seldom = progress.Progress("prednet seed 1", 40)
    monkeypatch.setattr(progress, "_PAUSE", 0.0)
    often = progress.Progress("prednet seed 0", 40, 10)
    images = progress.Progress("autoencoder", 4)
    quiet = progress.Progress("prednet", 3, shown=False)
    for update in (11, 12):  # The first compiles: nothing is said of its rate.
        often.update(record(update))
        images.update(record(update, copied=None))
        quiet.update(record(update))
    monkeypatch.undo()
    seldom.update(record(1))
    seldom.update(record(2))
    line, other = capsys.readouterr().err.splitlines()
    pattern = (
        r"prednet seed 0: 12 of 40, .+update/s, [\d:?]+ left, "
        r"loss 0.02000 \(2.00 of copying, while training\)"
    )
    assert re.fullmatch(pattern, line)
    assert other.endswith("loss 0.02000")


def test_a_terminal_gets_a_bar_and_no_message_is_glued_to_it(monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    bar = progress.Progress("prednet", 3)
    bar.update(record(1), record(1, copied=0.03))
    log_line("careful")
    before, after = screen.getvalue().split("careful\n")
    # The bar's line is wiped before the message and drawn anew behind it.
    assert re.search(r"\r *\r$", before)
    assert "1/3" in after
    assert "loss=" not in after
    assert "loss 0.02000 (1.00 of copying, while training)" in after
    bar.close()


def test_the_closing_line_is_of_all_updates_of_a_resumed_run(tmp_path):
    """It was of those of the last process: here of the last two, or of none."""
    losses = [9.0, *[3.0] * 7, 5.0, 1.0]
    for updates, expected in (
        (10, ", loss 3.00 times the loss of copying the last frame"),
        (1, ""),
    ):
        writer = records.MetricsWriter(tmp_path)
        for update, loss in enumerate(losses[:updates], 1):
            copied = 1.0 if updates > 1 else None
            writer.write(update=update, loss=loss, copy_last_frame_loss=copied)
        writer.close()
        records.write_json(tmp_path / records.MANIFEST, {})
        assert progress.reached(tmp_path) == expected


def test_a_network_from_elsewhere_is_not_imported_by_the_name_in_a_record(tmp_path):
    """A finished run was refused, if its module imports this package by another one."""
    recipe = types.SimpleNamespace(task=tiny_task.TINY)
    run_directory.check_network(recipe, tmp_path)
