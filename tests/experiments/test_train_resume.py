import json
import shutil

import jax
import numpy as np
import pytest
from runs_on_disk import (
    TINY,
    assert_equal_runs,
    flip_a_bit,
    manifest,
    metrics,
    saved,
    snapshot,
)

from prednet_jax import data, predict, weights


@pytest.fixture(scope="module")
def pair(train, tmp_path_factory):
    """Two replicas, with checkpoints at 3 and 6."""
    folder = tmp_path_factory.mktemp("pair") / "run"
    flags = ("--replicas=2", "--devices=1", "--checkpoint_every=3")
    train(*TINY, f"--workdir={folder}", *flags)
    return folder


def stopped(whole, folder, *, at, lines):
    """A copy of a run as if it had been killed after its checkpoint `at`."""
    shutil.copytree(whole, folder)
    for run in [folder, *folder.glob("seed_*")]:
        if not (run / "manifest.json").exists():
            continue
        for update in saved(run):
            if update > at:
                shutil.rmtree(run / "checkpoints" / str(update))
        text = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        (run / "metrics.jsonl").write_text("".join(text[:lines]) + '{"update": 6, "lo')
        (run / "weights.npz").unlink()
        content = (run / "manifest.json").read_text()
        begin = content.index('"wall_seconds"')
        (run / "manifest.json").write_text(content[:begin] + '"x": 0\n}\n')
    return folder


@pytest.mark.fault
def test_resume_needs_no_other_flag(train, whole, tmp_path):
    """A line names the damaged one; the end is that of an undisturbed run, bit for bit.

    A bit of it was flipped, and it goes on from the one before.
    """
    folder = stopped(whole, tmp_path / "r", at=4, lines=5)
    flip_a_bit(folder / "checkpoints/4")
    done = train(f"--workdir={folder}", "--resume")
    assert "checkpoints/4: damaged" in done.stderr
    assert "continues after update 2" in done.stdout
    assert_equal_runs(folder, whole)
    assert saved(folder) == [2, 4, 6]
    assert manifest(folder)["resumed"] == [{"after_update": 2}]


@pytest.mark.fault
def test_where_nothing_was_begun_a_run_begins(train, whole, tmp_path):
    """It ends in the same bits with its final state kept."""
    train(*TINY, f"--workdir={tmp_path}/r", "--resume")
    assert_equal_runs(tmp_path / "r", whole)
    assert saved(tmp_path / "r") == [6]


@pytest.mark.fault
def test_resuming_a_finished_run_changes_nothing(train, whole):
    """A line says so; not a byte or a time stamp changes."""
    before = snapshot(whole)
    repeated = (*TINY, "--noise=none", "--data=walk", "--pixel_max=1")
    done = train(f"--workdir={whole}", "--resume", *repeated)
    assert "finished, 6 updates; nothing to do" in done.stdout
    assert snapshot(whole) == before


def test_what_a_finished_run_lost_is_made_again_or_named(train, whole, tmp_path):
    """It was called finished, though `predict.py` found no weights."""
    folder = shutil.copytree(whole, tmp_path / "r")
    weights_file = folder / "weights.npz"
    for damage in (weights_file.unlink, lambda: weights_file.write_bytes(b"PK\3\4")):
        damage()
        train("--resume", f"--workdir={folder}")
        assert_equal_runs(whole, folder)
        assert weights_file.read_bytes() == (whole / "weights.npz").read_bytes()
    weights_file.unlink()
    shutil.move(folder / "checkpoints", tmp_path / "away")
    before = snapshot(folder)
    done = train("--resume", f"--workdir={folder}")
    assert "weights.npz is missing or damaged, and the records cannot" in done.stderr
    assert snapshot(folder) == before
    shutil.move(tmp_path / "away", folder / "checkpoints")
    train("--resume", f"--workdir={folder}")
    (folder / "metrics.jsonl").unlink()
    done = train("--resume", f"--workdir={folder}")
    assert "has lines of 0 updates only; expected 6 (--overwrite" in done.stderr


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ({"channels": [3, 4], "unknown": 1}, "unexpected keyword argument 'unknown'"),
        ({"channels": [3, 5], "height": 8, "width": 8}, "expected {'model': 'prednet'"),
        (5, "network=5: expected the settings of prednet"),
    ],
)
def test_a_finished_run_of_a_damaged_network_is_named(
    refused, whole, tmp_path, network, message
):
    """It was called finished, though `predict.py` could not load it."""
    folder = shutil.copytree(whole, tmp_path / "r")
    path = folder / "manifest.json"
    path.write_text(json.dumps(manifest(folder) | {"network": network}))
    done = refused(message, "train.py", "--resume", f"--workdir={folder}")
    assert str(path) in done.stderr


@pytest.mark.fault
def test_more_updates_go_on_beyond_the_end(train, whole, tmp_path):
    """The end is that of 9 updates in one go, bit for bit."""
    folder = tmp_path / "r"
    shutil.copytree(whole, folder)
    train(f"--workdir={folder}", "--resume", "--updates=9", "--checkpoint_every=5")
    train(*TINY, "--updates=9", f"--workdir={tmp_path}/nine")
    assert_equal_runs(folder, tmp_path / "nine")
    assert manifest(folder)["flags"]["updates"] == 9


@pytest.mark.fault
@pytest.mark.slow
def test_rates_that_depend_on_the_length_refuse_more_updates(train, refused, tmp_path):
    """Refused in one line: its rate depends on the length; nothing changes."""
    folder = tmp_path / "r"
    train(*TINY, "--variant=lotter", f"--workdir={folder}")
    before = snapshot(folder)
    words = ("train.py", f"--workdir={folder}", "--resume", "--updates=12")
    refused("the learning rate of prednet depends on the number of", *words)
    assert snapshot(folder) == before


@pytest.mark.fault
def test_resume_with_another_flag_is_refused(refused, whole):
    """One line with the flag and both values, status 2; nothing changes."""
    before = snapshot(whole)
    for flag, message in (
        ("--learning_rate=0.1", "--learning_rate=0.1: expected none given"),
        ("--noise=ulp", "--noise=ulp: expected none"),
        ("--channels=3,5", "--channels=3,5: expected 3,4"),
        ("--updates=5", "--updates=5: expected 6, or more"),
        (
            "--overwrite",
            "resume continues a run and overwrite begins it anew: expected one",
        ),
    ):
        refused(message, "train.py", f"--workdir={whole}", "--resume", flag)
    assert snapshot(whole) == before


@pytest.mark.fault
def test_replicas_go_on_together(train, pair, tmp_path):
    """Both go on from the update they share, to the same bits."""
    folder = stopped(pair, tmp_path / "r", at=6, lines=6)
    shutil.rmtree(folder / "seed_1/checkpoints/6")
    done = train(f"--workdir={folder}", "--resume")
    assert done.stdout.count("continues after update 3") == 2
    for seed in ("seed_0", "seed_1"):
        assert_equal_runs(folder / seed, pair / seed)


@pytest.mark.fault
def test_a_refusal_deletes_no_replica(refused, pair, tmp_path):
    """Refused in one line; every checkpoint stays."""
    folder = stopped(pair, tmp_path / "r", at=6, lines=6)

    def check(message, *flags):
        before = snapshot(folder)
        refused(message, "train.py", f"--workdir={folder}", "--resume", *flags)
        assert snapshot(folder) == before

    check("--replicas=3: expected 2", "--replicas=3")
    check("--seed=5: expected 0", "--seed=5")
    content = (folder / "seed_0/manifest.json").read_bytes()
    (folder / "seed_0/manifest.json").unlink()
    check("seed_0: metrics.jsonl without manifest.json")
    (folder / "seed_0/manifest.json").write_bytes(content)
    shutil.rmtree(folder / "seed_1")
    check("seed_1 has none; expected a run in")


@pytest.mark.fault
@pytest.mark.slow
def test_seeds_go_on_where_each_stopped(train, whole, tmp_path):
    """One finished, one stopped, one never begun: all end in the same bits."""
    folder = tmp_path / "r"
    train(*TINY, "--seeds=0,1,2", f"--workdir={tmp_path}/all", "--checkpoint_every=2")
    shutil.copytree(tmp_path / "all/seed_0", folder / "seed_0")
    stopped(tmp_path / "all/seed_1", folder / "seed_1", at=4, lines=5)
    before = snapshot(folder / "seed_0")
    train(f"--workdir={folder}", "--resume")
    assert snapshot(folder / "seed_0") == before
    for seed in ("seed_0", "seed_1", "seed_2"):
        assert_equal_runs(folder / seed, tmp_path / "all" / seed)
    assert_equal_runs(folder / "seed_0", whole)


WINDOWS = (
    *(*TINY, "--sampling=windows", "--sequences=3", "--batch=2", "--devices=1"),
    *("--learning_rate=2e-3", "--schedule=cosine", "--clip_gradient=1"),
)
VALIDATION = "validation.jsonl"


@pytest.fixture(scope="module")
def windowed(train, tmp_path_factory):
    """Six updates, checkpoints at 2, 4 and 6, scores at 2, 4 and 6; with noise."""
    folder = tmp_path_factory.mktemp("windows") / "run"
    keep = ("--checkpoint_every=2", "--validate_every=2", f"--workdir={folder}")
    train(*WINDOWS, *keep, "--noise=gradient_gaussian:scale=1e-3")
    return folder


def test_a_resumed_run_is_the_same_in_all_bits(train, windowed, tmp_path):
    folder = stopped(windowed, tmp_path / "r", at=2, lines=3)
    done = train(f"--workdir={folder}", "--resume")
    assert "continues after update 2" in done.stdout
    assert_equal_runs(folder, windowed)
    assert metrics(folder, VALIDATION) == metrics(windowed, VALIDATION)


def test_the_records_say_what_was_trained_and_scored(windowed):
    found = manifest(windowed)
    assert found["sampling"] == "windows"
    assert "3 walks of 300 frames, seeds 10000000 to 10000002" in found["data"]
    held_out = found["validation"]
    assert "seeds 20000000" in held_out["data"]
    assert (held_out["sequences"], held_out["frames"]) == (16, 100)
    # Windows of four frames from the zero state score three transitions each.
    assert [row["frames_seen"] for row in metrics(windowed)] == [6, 12, 18, 24, 30, 36]


def test_the_scores_are_those_of_predict(windowed):
    """Pooled over 16 held-out walks of 100 frames, and only then divided."""
    task, params = weights.load_run(windowed)
    source = data.open_split("walk", "validation", height=8, width=8, channels=3)
    shown = np.stack([source.read(300 * i, 300 * i + 100) for i in range(16)], 1)
    frames = jax.numpy.asarray(shown, "f4") / 255
    predictions, _ = predict(params, task.config, frames)
    loss = np.square(predictions[1:] - frames[1:]).mean()
    copying = np.square(np.diff(frames, axis=0)).mean()
    row = metrics(windowed, VALIDATION)[-1]
    assert row["update"] == 6
    assert row["loss"] == pytest.approx(loss, rel=1e-5)
    assert row["copy_last_frame_loss"] == pytest.approx(copying, rel=1e-5)
    assert row["ratio"] == pytest.approx(loss / copying, rel=1e-5)


def test_the_best_checkpoint_is_that_of_the_lowest_validation_loss(windowed):
    initial, *scored = metrics(windowed, VALIDATION)
    assert initial["update"] == 0
    assert initial["loss"] > scored[-1]["loss"]
    for row in scored:
        kept = windowed / "checkpoints" / str(row["update"]) / "digest.json"
        assert json.loads(kept.read_text())["loss"] == row["loss"]
