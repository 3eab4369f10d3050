"""Kills, signals, mistakes and divergence: no bit of a run is lost or changes."""

import contextlib
import json
import shutil
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from runs_on_disk import (
    TINY,
    assert_equal_runs,
    events,
    flip_a_bit,
    manifest,
    metrics,
    saved,
    snapshot,
)

from prednet_jax import PredNetConfig, tasks
from prednet_jax.errors import UserError
from prednet_jax.training import checkpoints, loop, run_recorder, train_seeds
from prednet_jax.training.recipe import Recipe
from prednet_jax.training.settings import DataSettings, RecordSettings, TrainingSettings

# Goes on for a second or more; one program for all that uses it.
LONG = (*TINY, "--updates=400", "--noprogress")
#: Random moments of each slow case.
MOMENTS = 20
# Of the noises the one that compiles fastest; all draw from the key of the update.
NOISE = "--noise=gradient_gaussian:scale=1e-3"
NETWORKS = {
    "prednet": (*TINY, NOISE),
    "autoencoder": ("--model=autoencoder", "--hidden=8,4,8", "--noise=ulp"),
    "replicas": (*TINY, NOISE, "--replicas=2", "--devices=1"),
}


def runs_in(folder):
    # No deeper: checkpoints come and go while a run goes on.
    places = [folder, *sorted(folder.glob("seed_*"))]
    return [place for place in places if (place / "manifest.json").exists()]


@pytest.fixture(scope="module")
def long(train, tmp_path_factory):
    """A run of `LONG` that nothing happens to."""
    folder = tmp_path_factory.mktemp("long") / "run"
    train(*LONG, f"--workdir={folder}")
    return folder


@pytest.mark.fault
def test_a_killed_run_ends_in_the_same_bits(train, started, long, tmp_path):
    """Every metric, fingerprint and final weight is that of an undisturbed run."""
    folder = tmp_path / "killed"
    flags = (*LONG, f"--workdir={folder}", "--checkpoint_every=2")
    with started("train.py", *flags) as process:
        process.wait_for_update(folder, 1)
        process.kill()
    assert "final_params_sha256" not in manifest(folder)
    train(f"--workdir={folder}", "--resume", "--checkpoint_every=100")
    assert_equal_runs(folder, long)


def updates_shown(folder):
    """Of which TensorBoard's files have the loss."""
    return [update for update, _ in events(folder)["loss"]]


@pytest.mark.fault
def test_an_interrupted_run_loses_neither_updates_nor_events(
    train, started, long, tmp_path
):
    """The state and TensorBoard's events of that moment; the state goes at the end."""
    folder = tmp_path / "r"
    with started("train.py", *LONG, f"--workdir={folder}") as process:
        process.wait_for_update(folder, 2)
        process.send_signal(signal.SIGINT)
        done = process.wait()
    assert done.returncode == 128 + signal.SIGINT, done
    kept = saved(folder)
    said = f"interrupted by SIGINT: {folder} is saved after update {kept[0]}; --resume"
    assert said in done.stderr
    assert kept == [len(metrics(folder))]
    assert updates_shown(folder) == list(range(1, kept[0] + 1))
    train(f"--workdir={folder}", "--resume")
    assert_equal_runs(folder, long)
    assert updates_shown(folder) == list(range(1, 401))
    assert saved(folder) == [400]


@pytest.mark.fault
def test_two_signals_at_once_are_one(started, tmp_path):
    """`timeout` signals a run and its group; 103 updates were lost by the second."""
    folder = tmp_path / "r"
    with started("train.py", *LONG, f"--workdir={folder}") as process:
        process.wait_for_update(folder, 2)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGHUP)
        done = process.wait()
    # Of two signals that both wait, either may be handled first.
    first = next(x for x in signal.Signals if done.stderr.startswith(x.name))
    assert first in (signal.SIGTERM, signal.SIGHUP)
    assert done.returncode == 128 + first
    assert done.stderr.count("saving after this update") == 1
    assert f"{folder} is saved after update {saved(folder)[0]}" in done.stderr
    assert saved(folder) == [len(metrics(folder))]


def test_a_run_is_saved_by_the_clock(monkeypatch, tmp_path):
    """Without `checkpoint_every`: the newest of them, until the last one."""
    monkeypatch.setattr(run_recorder, "_SECONDS", 0.0)
    seen = []
    prune = checkpoints.prune
    monkeypatch.setattr(
        checkpoints, "prune", lambda *a: (prune(*a), seen.append(saved(tmp_path / "r")))
    )
    task = tasks.of(PredNetConfig(channels=(3,), height=8, width=8))
    recipe = Recipe(
        task=task,
        data=DataSettings(data="walk", window=3),
        training=TrainingSettings(updates=4),
    )
    train_seeds.train_seeds(recipe, {0: tmp_path / "r"})
    assert seen == [[1], [2], [3], [4]]


@pytest.mark.parametrize("damage", ["cut", "other"])
def test_frames_that_change_end_a_training_that_is_saved(monkeypatch, tmp_path, damage):
    """A mapped file that was cut ended the process; other frames were trained on."""
    monkeypatch.setattr(loop, "CHUNK_BYTES", 1)
    path = tmp_path / "frames.npy"
    frames = np.random.default_rng(0).integers(0, 255, (4000, 8, 8, 3), np.uint8)
    np.save(path, frames)
    content = path.read_bytes()
    recipe = Recipe(
        task=tasks.of(PredNetConfig(channels=(3,), height=8, width=8)),
        data=DataSettings(data=str(path), window=3),
        training=TrainingSettings(updates=20),
        records=RecordSettings(resume=True),
    )
    see = run_recorder.RunRecorder.see

    def seen(self, record, *arguments):
        see(self, record, *arguments)
        if record.update == 5 and self.folder.name == "r":
            with open(path, "r+b") as file:
                file.truncate(5000) if damage == "cut" else file.write(content[::-1])

    monkeypatch.setattr(run_recorder.RunRecorder, "see", seen)
    train_seeds.train_seeds(recipe, {0: tmp_path / "whole"})
    with pytest.raises(UserError, match=r"frames\.npy: changed .*; saved after update"):
        train_seeds.train_seeds(recipe, {0: tmp_path / "r"})
    assert saved(tmp_path / "r") == [len(metrics(tmp_path / "r"))]
    assert 5 <= len(metrics(tmp_path / "r")) < 20
    path.write_bytes(content)
    monkeypatch.setattr(run_recorder.RunRecorder, "see", see)
    train_seeds.train_seeds(recipe, {0: tmp_path / "r"})
    assert_equal_runs(tmp_path / "whole", tmp_path / "r")


TWO = (*TINY, "--channels=3", "--batch=2", "--updates=20", "--devices=1")


@contextlib.contextmanager
def two_processes(started, folder, *flags):
    """Both processes of a training, which ends with the block."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    of_both = (*flags, f"--coordinator=localhost:{port}", "--processes=2")
    command = (f"--workdir={folder}", "--noprogress", "--noplot", *of_both)
    with (
        started("train.py", *command, "--process=0") as first,
        started("train.py", *command, "--process=1") as second,
    ):
        yield first, second


@pytest.mark.fault
def test_two_processes_go_on_to_the_same_bits(started, tmp_path):
    """One batch over two processes, by gloo: what either holds is in the checkpoint."""

    def ended(both, status):
        for process in both:
            done = process.wait()
            assert done.returncode == status, done

    folder = tmp_path / "cut"
    with two_processes(started, folder, *TWO) as both:
        both[0].wait_for_update(folder, 5)
        both[1].send_signal(signal.SIGTERM)
        ended(both, 128 + signal.SIGTERM)
    assert saved(folder) == [len(metrics(folder))]
    assert saved(folder)[0] < 20
    with two_processes(started, folder, "--resume", "--devices=1") as both:
        ended(both, 0)
    with two_processes(started, tmp_path / "whole", *TWO) as both:
        ended(both, 0)
    assert_equal_runs(folder, tmp_path / "whole")


def lines(folder):
    """Updates that the metrics tell of, of the run that is behind."""
    paths = [run / "metrics.jsonl" for run in runs_in(folder)]
    return min((p.read_bytes().count(b"\n") for p in paths if p.exists()), default=0)


def moment(rng, process, folder):
    """Waits for a random moment: of a start, or some updates and a bit later."""
    if rng.random() < 0.25:
        time.sleep(rng.uniform(0, 3))
        return
    # A run that goes on cuts its metrics back to its checkpoint.
    newest = max((u for run in runs_in(folder) for u in saved(run)), default=0)
    target, end = newest + int(rng.integers(1, 5)), time.monotonic() + 300
    while lines(folder) < target and not process.ended():
        assert time.monotonic() < end
        time.sleep(0.002)
    # As long as an update or two with their checkpoint take.
    time.sleep(rng.uniform(0, 0.2))


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_kills_at_random_moments_change_no_bit(train, started, tmp_path, network):
    """Every metric, fingerprint and final weight is that of an undisturbed run."""
    rng = np.random.default_rng(len(network))
    flags = (*NETWORKS[network], "--checkpoint_every=2", "--noprogress", "--updates=60")
    train(*flags, f"--workdir={tmp_path}/whole")
    kills, rounds = 0, 0
    while kills < MOMENTS:
        folder, rounds = tmp_path / f"killed_{rounds}", rounds + 1
        command = (*flags, f"--workdir={folder}", "--resume")
        finished = False
        while not finished and kills < MOMENTS:
            with started("train.py", *command) as process:
                moment(rng, process, folder)
                done = process.kill()
            finished = done.returncode == 0
            if not finished:
                assert done.returncode == -9, done
                kills += 1
                for run in runs_in(folder) if kills % 4 == 0 else ():
                    if saved(run):
                        flip_a_bit(run / "checkpoints" / str(saved(run)[-1]))
        if not finished:
            train(*command)
        both = map(runs_in, (folder, tmp_path / "whole"))
        for one, other in zip(*both, strict=True):
            assert_equal_runs(one, other)


@pytest.mark.fault
def test_a_refused_command_leaves_the_records_there_were(refused, tmp_path):
    """One line and status 2; not a byte or a time stamp of what was there changes."""
    folder = tmp_path / "r"
    (folder / "seed_0").mkdir(parents=True)
    for name in ("manifest.json", "metrics.jsonl"):
        (folder / name).write_text("mine")
        (folder / "seed_0" / name).write_text("mine")
    before = snapshot(tmp_path)
    words = ("train.py", *TINY, f"--workdir={folder}", "--overwrite")
    refused("expected", *words, "--layer_weights=10.0", "--objective=errors")
    refused("expected", *words, "--replicas=1000000")
    assert snapshot(tmp_path) == before


@pytest.mark.fault
def test_a_run_is_replaced_only_when_asked_to(train, refused, whole, tmp_path):
    """Refused in one line; `--overwrite` removes all of the run and nothing else."""
    folder = tmp_path / "r"
    shutil.copytree(whole, folder)
    (folder / "examples.npz").write_bytes(b"of that run")
    (folder / "mine.txt").write_text("not of the run")
    before = snapshot(folder)
    words = ("train.py", *TINY, f"--workdir={folder}")
    refused("holds a finished run; expected --resume to continue it, --over", *words)
    assert snapshot(folder) == before
    train(*TINY, f"--workdir={folder}", "--overwrite")
    assert saved(folder) == [6]
    assert len(metrics(folder)) == 6
    found = {path.name for path in folder.iterdir() if "tfevents" not in path.name}
    parts = {"manifest.json", "metrics.jsonl", "weights.npz", "checkpoints"}
    assert found == parts | {"mine.txt"}
    (folder / "manifest.json").write_text('{"updates": 3}')
    refused("holds a run that is not finished", *words)


@pytest.mark.fault
def test_a_loss_that_is_no_number_ends_the_run(refused, forked, tmp_path):
    """Status 1 and one line: the update, the first such tensor, the checkpoint kept."""
    words = ("train.py", "--noprogress", *TINY, f"--workdir={tmp_path}/bad")
    words += ("--learning_rate=1e38", "--checkpoint_every=1")
    done = refused("the first tensor that is not finite is ", *words, status=1)
    assert "try a lower --learning_rate, --clip_gradient=1" in done.stderr
    failed = manifest(tmp_path / "bad")
    assert "norm of the gradient" in failed["failure"]
    assert "final_params_sha256" not in failed
    last = saved(tmp_path / "bad")[-1]
    assert f"checkpoint {last} is kept" in done.stderr
    # An update that is validated is looked at first: clipping hides NaN from a score.
    words = (*words[:-3], f"--workdir={tmp_path}/scored", "--sampling=windows")
    words += ("--validate_every=1", "--learning_rate=3e38")
    assert "is carry/hidden/0" in forked(*words, status=1).stderr


@pytest.mark.fault
def test_a_run_starts_from_another_runs_weights(train, refused, whole, tmp_path):
    """Model, variant and sizes come from there; a flag that contradicts is refused."""
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(whole, first)
    start = f"--init_weights={first}"
    agreeing = ("--channels=3,4", "--window=4", "--updates=3")
    train(start, *agreeing, f"--workdir={second}")
    assert manifest(second)["network"] == manifest(first)["network"]
    wanted = manifest(first)["final_params_sha256"]
    assert manifest(second)["initial_params_sha256"] == wanted
    never = ("train.py", start, f"--workdir={tmp_path}/never")
    refused("--width=16: expected 8, as in", *never, "--width=16")
    # And such a run goes on without being told again, from its own copy.
    end = dict(manifest(second))
    shutil.rmtree(second / "checkpoints")
    begun = {k: v for k, v in end.items() if k != "final_params_sha256"}
    (second / "manifest.json").write_text(json.dumps(begun))
    first.rename(tmp_path / "moved")
    train(f"--workdir={second}", "--resume")
    assert manifest(second)["final_params_sha256"] == end["final_params_sha256"]
    (tmp_path / "moved").rename(first)
    (first / "weights.npz").write_bytes(b"PK")
    refused("weights.npz", *never)
    assert not (tmp_path / "never").exists()


EXHAUSTED = """
import jax.numpy as jnp
from tiny_task import Tiny

class Hungry(Tiny):
    def init_params(self, key):
        return {'w': jnp.zeros(2**46)}

TASK = Hungry()
"""


@pytest.mark.fault
def test_out_of_memory_is_one_line(refused, tmp_path):
    """Status 1, one line that says what to make smaller, no directory."""
    (tmp_path / "hungry.py").write_text(EXHAUSTED)
    shutil.copy(Path(__file__).with_name("tiny_task.py"), tmp_path)
    words = ("train.py", "--model=hungry:TASK", f"--workdir={tmp_path}/r")
    refused("out of memory", *words, folder=tmp_path, status=1)
    assert not (tmp_path / "r").exists()
