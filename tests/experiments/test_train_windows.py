import json

import jax
import numpy as np
import pytest
from runs_on_disk import TINY, assert_equal_runs, manifest, metrics
from test_train_resume import stopped

from prednet_jax import data, predict
from prednet_jax.weights import runs

WINDOWS = (
    *(*TINY, "--sampling=windows", "--sequences=3", "--batch=2", "--devices=1"),
    *("--learning_rate=2e-3", "--schedule=cosine", "--clip_gradient=1"),
)


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory):
    """Six updates, checkpoints at 2, 4 and 6, scores at 2, 4 and 6; with noise."""
    folder = tmp_path_factory.mktemp("windows") / "run"
    keep = (
        "--checkpoint_every=2",
        "--validate_every=2",
        "--noise=gradient_gaussian:scale=1e-3",
    )
    train(*WINDOWS, *keep, f"--workdir={folder}")
    return folder


def validation(folder):
    lines = (folder / "validation.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_resumed_run_is_the_same_in_all_bits(train, whole, tmp_path):
    folder = stopped(whole, tmp_path / "r", at=2, lines=3)
    done = train(f"--workdir={folder}", "--resume")
    assert "going on after update 2" in done.stdout
    assert_equal_runs(folder, whole)
    assert validation(folder) == validation(whole)


def test_the_records_say_what_was_trained_and_scored(whole):
    found = manifest(whole)
    assert found["sampling"] == "windows"
    assert "3 walks of 300 frames, seeds 10000000 to 10000002" in found["data"]
    held_out = found["validation"]
    assert "seeds 20000000" in held_out["data"]
    assert (held_out["sequences"], held_out["frames"]) == (16, 100)
    # Windows of four frames from the zero state score three transitions each.
    assert [row["frames_seen"] for row in metrics(whole)] == [6, 12, 18, 24, 30, 36]


def test_the_scores_are_those_of_predict(whole):
    """Pooled over 16 held-out walks of 100 frames, and only then divided."""
    task, params = runs.load_run(whole)
    source = data.open_split("walk", "validation", height=8, width=8, channels=3)
    shown = np.stack([source.read(300 * i, 300 * i + 100) for i in range(16)], 1)
    frames = jax.numpy.asarray(shown, "f4") / 255
    predictions, _ = predict(params, task.config, frames)
    loss = np.square(predictions[1:] - frames[1:]).mean()
    copying = np.square(np.diff(frames, axis=0)).mean()
    row = validation(whole)[-1]
    assert row["update"] == 6
    assert row["loss"] == pytest.approx(loss, rel=1e-5)
    assert row["copy_last_frame_loss"] == pytest.approx(copying, rel=1e-5)
    assert row["ratio"] == pytest.approx(loss / copying, rel=1e-5)


def test_the_best_checkpoint_is_that_of_the_lowest_validation_loss(whole):
    for row in validation(whole):
        text = (whole / "checkpoints" / str(row["update"]) / "digest.json").read_text()
        assert json.loads(text)["loss"] == row["loss"]
