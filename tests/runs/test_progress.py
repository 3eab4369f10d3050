import dataclasses
import time

import pytest

from prednet_jax import records, runs, tasks
from prednet_jax.config import PredNetConfig
from prednet_jax.files import FileError
from prednet_jax.runs import progress, shortened

TINY = tasks.of(PredNetConfig(channels=(3, 4), height=8, width=12))


def job(root, updates=4, arm="float32"):
    design = runs.Design(
        root=root,
        script="train.py",
        tasks=(TINY,),
        arms=("stale_targets",),
        first_seed=7,
        seeds=1,
        window=3,
        updates=max(updates, 5),
        keep_every=2,
    )
    (found,) = (job for job in design.runs() if job.arm.name == arm)
    return found.replaced(updates=updates)


def test_a_run_that_is_cut_is_the_run_that_ends_there(forked, tmp_path):
    long, short = job(tmp_path / "long", 6), job(tmp_path / "short", 4)
    for made in (long, short):
        forked("train.py", *made.arguments(made.folder), "--noprogress")
    expected = records.read_run(short.run_folder(7))
    assert shortened.reached(long, 7) == 6
    # A run whose process was stopped after its last update has no receipt yet.
    (short.run_folder(7) / records.WEIGHTS).unlink()
    shortened.shorten(short, 7, 4)
    assert runs.split_finished([short])[0] == []
    with pytest.raises(FileError, match="no such checkpoint"):
        shortened.shorten(long, 7, 3)
    shortened.shorten(long, 7, 4)
    found = records.read_run(long.run_folder(7))
    same = ("final_params_sha256", "data_order_sha256", "initial_params_sha256")
    for name in same:
        assert getattr(found.manifest, name) == getattr(expected.manifest, name), name
    assert found.manifest.other["shortened_from"] == 6
    assert list(found.metrics["loss"]) == list(expected.metrics["loss"])
    assert runs.split_finished([long.replaced(updates=4)])[0] == []
    assert runs.split_finished([long])[0] != []


def test_the_largest_size_that_every_needed_run_has_reached(tmp_path, monkeypatch):
    reached = {"a": [3000, 3000, 1000], "b": [3000, 2000, 0]}
    monkeypatch.setattr(
        shortened, "reached", lambda job, seed: reached[job.name][seed - 7]
    )

    class Named:
        seeds = (7, 8, 9)

        def __init__(self, name):
            self.name = name

    needed = [Named("a"), Named("b")]
    size = shortened.largest_size(needed, (1000, 2000, 3000))
    assert (size.seeds, size.updates) == (2, 2000)
    reached["b"] = [900, 0, 0]
    assert shortened.largest_size(needed, (1000, 2000, 3000)) is None


def written(job, losses, seed=7):
    folder = job.run_folder(seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / records.METRICS).unlink(missing_ok=True)
    writer = records.MetricsWriter(folder)
    for update, loss in enumerate(losses, 1):
        writer.write(update=update, last_frame_loss=loss)
    writer.close()


def test_a_state_has_the_update_and_the_mean_of_the_last_losses(tmp_path):
    one = job(tmp_path, updates=4000)
    assert progress.training_state(one) == progress.State(0.0)
    written(one, [0.5] * 1950 + [0.25] * 50)
    state = progress.training_state(one)
    assert state.share == 0.5
    assert state.text == "prednet float32: update 2000 of 4000, loss 0.2500"
    assert progress.early_loss(one) == 0.5
    assert progress.early_loss(job(tmp_path, arm="stale_targets")) is None


def test_a_finished_run_is_not_shown_as_running(tmp_path):
    both = dataclasses.replace(job(tmp_path, updates=50), seeds=(7, 8))
    assert progress.training_state(both) == progress.State(0.0)
    both.folder.mkdir(parents=True)
    (both.folder / "log.txt").touch()
    texts = [progress.training_state(both).text]
    for seed, count in ((7, 20), (7, 50), (8, 30), (8, 50)):
        written(both, [0.5] * count, seed)
        texts.append(progress.training_state(both).text)
    assert texts == [
        "prednet float32, seed 1 of 2: compiling",
        "prednet float32, seed 1 of 2: update 20 of 50, loss 0.5000",
        "prednet float32, seed 2 of 2: starting",
        "prednet float32, seed 2 of 2: update 30 of 50, loss 0.5000",
        "",
    ]


def test_a_file_gets_a_line_also_when_nothing_happens(capsys):
    def half():
        return progress.State(0.5, "half way")

    with progress.Reporter(every=0.6) as reporter:
        reporter.stage("judging")
        time.sleep(1.5)
        reporter.follow([(1.0, half)])
        time.sleep(1.5)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith("] judging") for line in lines)
    assert any("50% done" in line and line.endswith("half way") for line in lines)
