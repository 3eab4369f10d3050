import csv
import io
import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image
from skimage.metrics import structural_similarity

import prednet_jax
from prednet_jax import data, records, weights
from prednet_jax.config import PredNetConfig
from prednet_jax.models import sequences
from prednet_jax.report import strips
from tests.processes import ROOT

KERAS = ROOT / "tests" / "golden" / "keras_tiny"
PORTS = ROOT / "tests" / "golden" / "pytorch_tiny"
CONFIG = PredNetConfig(channels=(3, 4), height=8, width=12)


def untrained_run(run, network, frames):
    """A run's directory with initial weights."""
    run.mkdir()
    task = prednet_jax.tasks.of(network)
    params = task.init_params(jax.random.key(0))
    records.write_tree(run / records.WEIGHTS, params)
    records.write_json(
        run / records.MANIFEST,
        {"model": task.name, "network": task.network(), "flags": {"data": str(frames)}}
        | {"final_params_sha256": records.fingerprint(params)},
    )


@pytest.fixture
def inputs(tmp_path):
    """A run of a network of 8x12 on frames of an npz, without training it."""
    frames = tmp_path / "frames.npz"
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 12, 3), np.uint8)
    np.savez(frames, frames=pixels)
    untrained_run(tmp_path / "run", CONFIG, frames)
    return tmp_path


@pytest.fixture
def predict(forked):
    def run(folder, *arguments):
        return forked("predict.py", f"--workdir={folder / 'out'}", *arguments).stdout

    return run


def test_a_run_is_predicted_on_its_own_frames(predict, inputs):
    out = inputs / "out"
    out.mkdir()
    for name in ("layers.npz", "layers.png", "scores.json"):
        (out / name).write_bytes(b"of an earlier call")
    said = predict(inputs, f"--weights={inputs / 'run'}", "--frames=9")
    assert not list(out.glob("layers.*"))
    assert "an earlier prediction is replaced" in said
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


def test_what_belongs_to_a_run_brings_its_frames(forked, inputs):
    """Its weights by their own path were scored on a walk; it had seen the frames."""
    manifest = records.read_json(inputs / "run" / records.MANIFEST)
    manifest["flags"]["sampling"] = "stream"
    records.write_json(inputs / "run" / records.MANIFEST, manifest)
    run = f"~/{os.path.relpath(inputs / 'run', Path.home())}"
    done = forked("evaluate.py", f"--weights={run}/weights.npz", "--frames=2")
    assert "frames.npz, test: 1 sequences: 1 pieces of 2 frames are" in done.stdout
    assert "The sequences are short" not in done.stdout  # --frames is given.
    assert "trained on a stream through all of " in done.stderr
    np.savez(inputs / "other.npz", **np.load(inputs / "frames.npz"))
    other = f"--data={inputs / 'other.npz'}"
    for words in (("--split=all",), (other,)):
        assert not forked("evaluate.py", f"--weights={run}", *words).stderr


def test_strips_have_a_row_for_maps_of_any_size_and_films_an_end():
    maps = {"E1": np.zeros((201, 4, 4, 1)), "R0": np.ones((201, 8, 8, 1))}
    with Image.open(io.BytesIO(strips.strip(maps, None))) as strip:
        assert strip.size == (1640, 16 + 2 * 176)
    film = strips.film({name: of[:, :4, :4] for name, of in maps.items()}, None)
    assert Image.open(io.BytesIO(film)).n_frames == 200


def test_the_future_comes_after_the_last_frame(predict, refused, inputs):
    """Frames after the end were refused; numbers in pictures began with 0."""
    run, out = f"--weights={inputs / 'run'}", inputs / "out"
    frames = np.load(inputs / "frames.npz")["frames"][:, None]
    config, params = weights.load(inputs / "run")
    for words, seen in (
        ((), slice(0, 12)),
        (("--start=5", "--frames=1"), slice(5, 6)),
        (("--start=9",), slice(9, 12)),
    ):
        said = predict(inputs, run, "--future=3", "--layers=R1", *words)
        found = np.load(out / "predictions.npz")
        future, _ = prednet_jax.forecast(params, config, frames[seen], 3)
        np.testing.assert_allclose(found["future"], future[:, 0], rtol=0, atol=1e-6)
        first, last = seen.stop, seen.stop + 2
        assert f"future: frames {first} to {last}; the network has seen frames " in said
        with open(out / "scores.csv") as file:
            rows = [int(row["frame"]) for row in csv.DictReader(file)]
        assert rows == list(range(seen.start + 1, seen.stop))
        layers = np.load(out / "layers.npz")
        assert layers["R1"].shape[0] == seen.stop - seen.start + 3
        np.testing.assert_array_equal(layers["number"], range(seen.start, last + 1))
        np.testing.assert_array_equal(layers["seen"], layers["number"] < first)
        np.testing.assert_array_equal(found["seen"], layers["seen"])
    both = predict(inputs, run, "--future=2", "--frames=9", "--extrapolate_from=4")
    assert "has seen frames 0 to 3" in both
    words = ("predict.py", run, f"--workdir={inputs}/never")
    for flags, message in (
        (("--frames=13", "--future=2"), "expected a sum of at most 12, where a "),
        (("--future=-1",), "--future"),
    ):
        refused(message, *words, *flags)
    network = prednet_jax.AutoencoderConfig(height=8, width=12, channels=3)
    untrained_run(inputs / "single", network, inputs / "frames.npz")
    words = (words[0], f"--weights={inputs / 'single'}", words[2])
    refused("sees single images and has no next", *words, "--future=2")


def test_a_network_of_another_module_predicts(forked, refused, tmp_path, monkeypatch):
    """Only evaluate.py took one."""
    source = ROOT / "tests" / "experiments" / "tiny_task.py"
    (tmp_path / "another_task.py").write_text(source.read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    task = prednet_jax.tasks.load("another_task:TINY")
    untrained_run(tmp_path / "run", task, "walk")
    words = ("--weights=run", "--model=another_task:TINY", "--workdir=out")
    forked("predict.py", *words, "--frames=4", folder=tmp_path)
    found = np.load(tmp_path / "out" / "predictions.npz")
    params = task.init_params(jax.random.key(0))
    expected = task.predict(params, jax.numpy.asarray(found["frames"]))
    np.testing.assert_allclose(found["predictions"], expected, rtol=0, atol=1e-6)
    for flag in ("--future=2", "--layers=R0", "--extrapolate_from=2"):
        message = f"{flag} with the network another_task:TINY: expected a PredNet"
        refused(message, "predict.py", *words, flag, folder=tmp_path)


def test_strips_show_every_horizon_and_say_what_was_seen(monkeypatch):
    """Of ten frames after the tenth they left out t+1 and t+4."""
    captions = []
    monkeypatch.setattr(
        strips.ImageDraw.ImageDraw,
        "text",
        lambda self, place, text, fill: captions.append((text, fill)),
    )
    rows = {"true": np.full((20, 4, 6, 1), np.nan)}
    strips.strip(rows, 10, start=7, words=("seen", "own"))
    assert captions[:2] == [("frame 15\nseen", "black"), ("frame 16\nseen", "black")]
    assert [text for text, _ in captions[2:12]] == [
        f"frame {17 + h}\nown, t+{h + 1}" for h in range(10)
    ]
    assert {fill for _, fill in captions[2:12]} == {"#D55E00"}
    captions.clear()
    strips.film(rows, 10, start=7, words=("seen", "own"))
    assert captions[9:11] == [
        ("16 seen: true", "black"),
        ("17 own, t+1: true", "#D55E00"),
    ]


def test_without_weights_it_is_the_network_of_the_package(predict, tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4, 60, 100, 3), np.uint8)
    np.savez(tmp_path / "mine.npz", frames=pixels)
    mine = tmp_path / "mine.npz"
    said = predict(tmp_path, f"--data={mine}", "--frames=3").splitlines()
    assert said[:2] == [
        "without --weights: the network walk of the package (prednet_jax.pretrained), "
        "for frames of 24 rows, 32 columns and 3 channels",
        f"data={mine}: pictures of 100x60 (width x height), scaled to 32x24: width over"
        " height changes from 1.67 to 1.33",
    ]
    assert "shown: frames 0 to 2 of 4" in said
    shown = np.load(tmp_path / "out" / "predictions.npz")["frames"]
    source = data.open_source(str(mine), height=24, width=32, crop="antialias")
    whole = source.read(0, 3)
    np.testing.assert_allclose(shown, whole / np.float32(255), rtol=2e-7)
    cut = (f"--data={mine}", "--frames=4", "--crop=center")
    assert "of which 32x24 is cut out" in predict(tmp_path, *cut)
    assert "scaled" not in predict(tmp_path)  # They are made at this size.
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    of = scores["means"]["observed"]
    assert of["mse"] < of["copy_mse"]


def test_imported_weights_of_keras_predict_what_keras_recorded(predict, tmp_path):
    """Frames go in as uint8: the recorded ones, rounded, move a prediction by .004."""
    gold = np.load(KERAS / "gold_A.npz")
    shown, k = gold["frames"][0], int(gold["extrap_start_time"])
    np.savez(tmp_path / "frames.npz", frames=np.rint(255 * shown).astype(np.uint8))
    said = predict(
        tmp_path,
        f"--weights={KERAS / 'A_save_weights.hdf5'}",
        "--height=24",
        "--width=32",
        f"--data={tmp_path / 'frames.npz'}",
        f"--frames={len(shown)}",
        f"--extrapolate_from={k}",
        "--layers=R0,E1",
    )
    assert "layers.npz" in said
    assert "replaced" not in said
    found = np.load(tmp_path / "out" / "predictions.npz")
    recorded = gold["extrap/prediction"][0]
    np.testing.assert_allclose(found["predictions"], recorded, rtol=0, atol=0.01)
    # From the frames as they went in, to the last digits.
    config, params = weights.load(KERAS / "A_save_weights.hdf5", height=24, width=32)
    again, maps = sequences.predict_sequence(
        params, config, found["frames"], extrapolate_from=k, maps=("R0", "E1")
    )
    np.testing.assert_allclose(found["predictions"], again, rtol=0, atol=1e-6)
    layers = np.load(tmp_path / "out" / "layers.npz")
    assert layers["R0"].shape == (7, 24, 32, config.recurrent[0])
    np.testing.assert_allclose(layers["E1"], maps["E1"], rtol=0, atol=1e-6)
    with Image.open(tmp_path / "out" / "layers.png") as strip:
        assert strip.format == "PNG"


def test_a_keras_file_brings_its_size_and_where_it_extrapolates(
    predict, forked, tmp_path
):
    """Both were passed over; what was read stood nowhere."""
    model = json.loads((KERAS / "A_model.json").read_text())
    model["config"]["layers"][1]["config"]["extrap_start_time"] = 3
    (tmp_path / "a_model.json").write_text(json.dumps(model))
    path = tmp_path / "a_weights.hdf5"
    path.write_bytes((KERAS / "A_save_weights.hdf5").read_bytes())
    said = predict(tmp_path, f"--weights={path}", "--data=walk", "--frames=6")
    assert f"--extrapolate_from=3 is stored in {path}" in said
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert scores["extrapolate_from"] == 3
    words = (f"--weights={path}", "--data=walk", "--frames=3", "--nostored_start")
    assert "extrapolated" not in predict(tmp_path, *words)
    # These were refused by a flag that nobody gave, or saw three frames only.
    shown = {"--frames=3": "it is after the last", "--future=2": "--future comes after"}
    for flag, why in shown.items():
        words = (f"--weights={path}", "--data=walk", "--frames=5", flag)
        said = predict(tmp_path, *words)
        assert "frames are seen: extrap_start_time 3, and " + why in said
        assert "extrapolated" not in said
    done = forked(
        "convert_weights.py", f"--input={path}", f"--output={tmp_path}/a.safetensors"
    )
    for text in (
        "variant lotter, frames of 24 rows, 32 columns",
        "extrap_start_time 3",
    ):
        assert text in done.stdout


def test_pixel_max_of_a_port_is_that_of_its_frames(predict, tmp_path):
    """It was refused, since the weights are scaled to 1 as they are read."""
    path, size = PORTS / "watanabe_pytorch.safetensors", {"height": 8, "width": 12}
    flags = [f"--weights={path}", "--variant=watanabe_pytorch", "--pixel_max=255"]
    flags += [f"--{name}={value}" for name, value in size.items()]
    predict(tmp_path, *flags, "--data=walk", "--frames=3")
    found = np.load(tmp_path / "out" / "predictions.npz")
    config, params = weights.load(
        path, variant="watanabe_pytorch", pixel_max=255, **size
    )
    expected, _ = prednet_jax.predict(params, config, found["frames"][:, None])
    np.testing.assert_allclose(found["predictions"], expected[:, 0], rtol=0, atol=1e-6)


def test_a_flag_that_contradicts_the_run_is_refused(inputs, refused):
    """Before it was passed over; and flags of a manifest are checked as given ones."""
    run = inputs / "run"
    words = ("predict.py", f"--weights={run}", f"--workdir={inputs}/never")
    refused("--height=16: expected 8, as in", *words, "--height=16")
    manifest = records.read_json(run / records.MANIFEST)
    for flags, message in (
        (3, "not the manifest of a run"),
        ({"data": "x.npz", "crop": [1]}, "--crop=[1]: expected a text"),
    ):
        records.write_json(run / records.MANIFEST, manifest | {"flags": flags})
        refused(message, *words)
    other = manifest["network"] | {"height": 80}
    records.write_json(run / records.MANIFEST, manifest | {"network": other})
    refused("weights; expected", *words)
    assert not (inputs / "never").exists()


RNG = np.random.default_rng(0)


def scored(forked, tmp_path, config, made, *flags):
    """Weights that nobody trained, and what evaluate.py writes of them."""
    params = prednet_jax.init_params(config, jax.random.key(0))
    weights.save_safetensors(tmp_path / "w.safetensors", config, params)
    record = tmp_path / "record.json"
    done = forked(
        "evaluate.py",
        f"--weights={tmp_path / 'w.safetensors'}",
        f"--data={made}",
        f"--output={record}",
        *flags,
    )
    return params, json.loads(record.read_text()), done.stdout


def test_moving_mnist_ten_to_ten(tmp_path, forked):
    """Sums over a frame's pixels, and SSIM with the range of 2, as OpenSTL has them."""
    frames = RNG.integers(0, 256, (20, 3, 32, 32), np.uint8)
    made = tmp_path / "test.npz"
    shown = frames.swapaxes(0, 1).reshape(-1, 32, 32, 1)
    np.savez(made, frames=shown, boundaries=np.arange(0, 60, 20))
    config = prednet_jax.PredNetConfig(channels=(1, 2), height=32, width=32)
    flags = ("--split=all", "--frames=20", "--extrapolate_from=10", "--sequences=0")
    flags = (forked, tmp_path, config, made, *flags)
    params, record, said = scored(*flags, "--ssim_range=2")
    truth = frames[..., None] / np.float32(255)  # [T, B, H, W, C]
    found, _ = sequences.predict_sequence(params, config, truth, extrapolate_from=10)
    wrong = (found - truth)[10:]
    of = record["extrapolated"]
    # np.mean(wrong ** 2, axis=(frames, sequences)).sum(), likewise of |wrong|.
    for name, size in (("squared", np.square(wrong)), ("absolute", np.abs(wrong))):
        expected = size.mean(axis=(0, 1)).sum()
        assert of[f"{name}_error"] == pytest.approx(expected, rel=1e-4)
    options = {"data_range": 2, "channel_axis": -1, "win_size": 7}
    pairs = [(truth[t, b], found[t, b]) for t in range(10, 20) for b in range(3)]
    ssim = [structural_similarity(*pair, **options) for pair in pairs]
    assert of["ssim"] == pytest.approx(np.mean(ssim), rel=1e-4)
    copied = np.square(truth[9] - truth[10:]).mean(axis=(0, 1)).sum()
    assert of["copy_squared_error"] == pytest.approx(copied, rel=1e-4)
    # Pooled over sequences, and only then divided.
    assert of["mse"] == pytest.approx(np.square(wrong).mean(), rel=1e-4)
    assert of["ratio"] == pytest.approx(of["mse"] / of["copy_mse"])
    assert of["psnr"] == pytest.approx(-10 * np.log10(of["mse"]))
    assert (record["sequences"], record["frames"], record["split"]) == (3, 20, "all")
    assert "extrapolated: mse" in said
    _, last, said = scored(*flags, "--skip=2")
    wrong = float(np.square(found[1:10, 2] - truth[1:10, 2]).mean())
    assert (last["sequences"], last["skip"]) == (1, 2)
    assert last["observed"]["mse"] == pytest.approx(wrong, rel=1e-4)


def test_scores_by_horizon_are_those_of_a_forecast_from_every_frame(
    tmp_path, forked, refused
):
    """One start of a rollout was scored, and of 150 frames the last 50 were not."""
    frames = RNG.integers(0, 256, (18, 8, 8, 1), np.uint8)
    made = tmp_path / "film.npz"
    np.savez(made, frames=frames, boundaries=[0, 7, 14])
    config = prednet_jax.PredNetConfig(channels=(1, 2), height=8, width=8)
    flags = (forked, tmp_path, config, made, "--split=all")
    params, record, said = scored(*flags, "--frames=7", "--horizons=1,3")
    assert "4 frames are not scored: ends of sequences that are shorter than 7" in said
    assert record["left_out"] == 4
    truth = frames[:14].reshape(2, 7, 1, 8, 8, 1) / np.float32(255)
    for horizon in (1, 3):
        wrong = np.zeros((7 - horizon, 2))
        for t, n in np.ndindex(wrong.shape):
            future, _ = prednet_jax.forecast(params, config, truth[n, : t + 1], horizon)
            wrong[t, n] = np.square(future[-1] - truth[n, t + horizon]).mean()
        of = record["horizons"][str(horizon)]
        assert of["mse"] == pytest.approx(wrong.mean(), rel=1e-4)
        np.testing.assert_allclose(of["mse_by_start"], wrong.mean(axis=1), rtol=1e-4)
        copied = np.square(truth[:, :-horizon] - truth[:, horizon:]).mean()
        assert of["copy_mse"] == pytest.approx(copied, rel=1e-4)
        assert of["starts"] == 7 - horizon
        assert f"t+{horizon}" in said
    assert record["horizons"]["1"]["mse"] == pytest.approx(record["observed"]["mse"])
    with Image.open(tmp_path / "record.png") as figure:
        assert figure.format == "PNG"
    # The figure took the place of the scores, or of the figure of v1.6.
    for name in ("record.png", "v1.5"):
        words = (f"--weights={tmp_path}/w.safetensors", f"--data={made}", "--split=all")
        path = f"--output={tmp_path}/new_{name}"
        forked("evaluate.py", *words, "--frames=7", "--horizons=1", path)
        assert "horizons" in json.loads((tmp_path / f"new_{name}").read_text())
        assert (tmp_path / f"new_{name}.png").exists()
    long = tmp_path / "long.npz"
    np.savez(long, frames=RNG.integers(0, 256, (150, 8, 8, 1), np.uint8))
    _, record, said = scored(forked, tmp_path, config, long, "--split=all")
    assert "not scored" not in said
    assert (record["sequences"], record["frames"]) == (2, 75)
    words = ("evaluate.py", f"--weights={tmp_path / 'w.safetensors'}", "--split=all")
    words = (*words, f"--data={made}", "--frames=7")
    refused("horizons=2,7: 7 is not from 1 to 6", *words, "--horizons=2,7")
    refused("--horizons=x: expected whole numbers", *words, "--horizons=x")
    for part in ("train", "test"):  # Only train was scored, as all.
        (tmp_path / "parts" / part).mkdir(parents=True)
        shutil.copy(made, tmp_path / "parts" / part)
    parts = f"--data={tmp_path / 'parts'}"
    refused("it has the parts train, test; expected one of them as", *words, parts)
