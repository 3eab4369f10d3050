"""predict.py as a user runs it, on weights and frames that the test makes."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

import prednet_jax
from prednet_jax import records, weights
from prednet_jax.config import PredNetConfig

SCRIPT = Path(__file__).parents[2] / "experiments" / "predict.py"
CONFIG = PredNetConfig(channels=(3, 4), height=8, width=12)


@pytest.fixture
def inputs(tmp_path):
    """A run of a network of 8x12 on frames of an npz, without training it."""
    run, frames = tmp_path / "run", tmp_path / "frames.npz"
    run.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 12, 3), np.uint8)
    np.savez(frames, frames=pixels)
    params = prednet_jax.init_params(CONFIG, jax.random.key(0))
    task = prednet_jax.tasks.of(CONFIG)
    records.write_tree(run / records.WEIGHTS, params)
    records.write_json(
        run / records.MANIFEST,
        {"model": "prednet", "network": task.network(), "flags": {"data": str(frames)}}
        | {"final_params_sha256": records.fingerprint(params)},
    )
    weights.save_safetensors(tmp_path / "w.safetensors", CONFIG, params)
    return tmp_path


def predict(folder, *arguments):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), f"--workdir={folder / 'out'}", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_run_is_predicted_on_its_own_frames(inputs):
    said = predict(inputs, f"--weights={inputs / 'run'}", "--frames=9")
    out = inputs / "out"
    with open(out / "scores.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["frame"]) for row in rows] == list(range(1, 9))
    found = np.load(out / "predictions.npz")
    assert found["frames"].shape == (9, 8, 12, 3)
    frames = np.load(inputs / "frames.npz")["frames"][:9] / np.float32(255)
    np.testing.assert_allclose(found["frames"], frames, rtol=2e-7)
    error = np.square(found["predictions"] - frames).mean(axis=(1, 2, 3))
    np.testing.assert_allclose([float(r["mse"]) for r in rows], error[1:], rtol=1e-5)
    scores = json.loads((out / "scores.json").read_text())
    assert scores["means"]["observed"]["mse"] == pytest.approx(error[1:].mean())
    assert set(scores["means"]) == {"observed"}
    assert "observed, mean" in said
    film = Image.open(io.BytesIO((out / "predictions.gif").read_bytes()))
    assert film.n_frames == 9
    with Image.open(out / "predictions.png") as strip:
        assert strip.format == "PNG"


def test_extrapolation_is_scored_apart_and_flags_win_over_the_run(inputs):
    predict(
        inputs,
        f"--weights={inputs / 'w.safetensors'}",
        f"--data={inputs / 'frames.npz'}",
        "--frames=6",
        "--extrapolate_from=4",
    )
    scores = json.loads((inputs / "out" / "scores.json").read_text())
    seen = [row["observed"] for row in scores["frames"]]
    assert seen == [True, True, True, False, False]
    assert set(scores["means"]) == {"observed", "extrapolated"}


@pytest.mark.parametrize("k", ["0", "10", "99"])
def test_an_impossible_extrapolation_is_refused(tmp_path, refused, k):
    refused(
        "expected a frame from 1 to 9",
        "predict.py",
        "--frames=10",
        f"--extrapolate_from={k}",
        f"--workdir={tmp_path / 'out'}",
    )
    assert not (tmp_path / "out").exists()


def test_a_flag_that_contradicts_the_run_is_refused(inputs, refused):
    """Before it was passed over; and flags of a manifest are checked as given ones."""
    run = inputs / "run"
    words = ("predict.py", f"--weights={run}", f"--workdir={inputs}/never")
    refused("--height=16: expected 8, as in", *words, "--height=16")
    manifest = records.read_json(run / records.MANIFEST)
    for flags, message in (
        (3, "not the manifest of a run of train.py"),
        ({"crop": [1]}, "flag crop: value should be one of"),
    ):
        records.write_json(run / records.MANIFEST, manifest | {"flags": flags})
        refused(message, *words)
    other = manifest["network"] | {"height": 80}
    records.write_json(run / records.MANIFEST, manifest | {"network": other})
    refused("weights; expected", *words)
    assert not (inputs / "never").exists()
