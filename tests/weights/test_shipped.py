import json
import shutil

import jax
import numpy as np
import pytest

import prednet_jax
from prednet_jax import data, records, weights
from prednet_jax.errors import UserError
from prednet_jax.training import evaluation

CONFIG = prednet_jax.PredNetConfig(channels=(1, 2), height=32, width=32)


@pytest.mark.parametrize("name", weights.pretrained_names())
def test_every_network_of_the_package_is_whole_and_beats_copying(name):
    assert "walk" in weights.pretrained_names()  # Where `predict.py` is given none.
    config, params = prednet_jax.pretrained(name)
    about = records.read_json(weights.SHIPPED / f"{name}.json")
    path = weights.SHIPPED / f"{name}.npz"
    assert path.stat().st_size <= 3_000_000
    assert "--hidden" not in about["command"]  # train.py refuses it, with a PredNet's.
    assert {"command", "git_commit", "data", "licence"} <= about.keys()
    assert {"test", "unseen"} <= set(about["scores"])
    # Two of the sequences that the manifest scores, again.
    height, width, channels = prednet_jax.tasks.of(config).frame
    size = {"height": height, "width": width, "channels": channels}
    frames = name.removesuffix("_64")
    source = data.open_split(frames, "test", sequences=2, **size)
    found = evaluation.evaluate(params, config, source, frames=12)
    assert found["observed"]["ratio"] < 1


def test_a_network_for_frames_of_another_size_still_predicts():
    config, params = prednet_jax.pretrained("walk")
    larger, resized = prednet_jax.resize(config, params, height=48, width=64)
    assert (larger.height, larger.width) == (48, 64)
    for name, group in params.items():
        np.testing.assert_array_equal(resized[name]["kernel"], group["kernel"])
    flat = jax.tree.map(lambda x: np.full_like(x, 0.25), params)
    for leaf in jax.tree.leaves(prednet_jax.resize(config, flat, height=8, width=4)[1]):
        np.testing.assert_allclose(leaf, 0.25, rtol=1e-6)
    frames = data.open_source("walk", height=48, width=64, seed=3).read(0, 12)
    score = prednet_jax.Trainer(larger).evaluate(resized, frames)
    assert score.loss < 0.5 * score.copy_last_frame_loss
    lotter = prednet_jax.PredNetConfig(channels=(1, 2), variant="lotter")
    drawn = prednet_jax.init_params(lotter, jax.random.key(0))
    same = prednet_jax.resize(lotter, drawn, height=8, width=8)[1]
    jax.tree.map(np.testing.assert_array_equal, same, drawn)
    with pytest.raises(UserError, match="height=49"):
        prednet_jax.resize(config, params, height=49, width=64)
    with pytest.raises(UserError, match="a PredNetConfig"):
        prednet_jax.resize(prednet_jax.AutoencoderConfig(), {}, height=8, width=8)


def test_a_name_that_is_not_there_and_a_damaged_file(tmp_path, monkeypatch):
    for suffix in (".npz", ".json"):
        shutil.copy(weights.SHIPPED / f"moving_digits{suffix}", tmp_path)
    monkeypatch.setattr(weights, "SHIPPED", tmp_path)
    with pytest.raises(UserError, match=r"name='other': expected one of moving_digits"):
        prednet_jax.pretrained("other")
    # A name stands for it wherever weights are loaded.
    assert weights.load("moving_digits")[0].channels[0] == 1
    path = tmp_path / "moving_digits.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UserError, match=r"digits\.npz: damaged; its SHA-256"):
        prednet_jax.pretrained("moving_digits")


def test_a_network_of_the_package_is_trained_on_by_its_own_data(tmp_path, refused):
    """It was trained on `walk`, without a word."""
    words = ("--init_weights=moving_digits", "--sampling=windows", "--window=21")
    done = refused("longest sequence", "train.py", *words, f"--workdir={tmp_path}/r")
    assert done.stdout == "--data=moving_digits is taken from moving_digits\n"


def unfinished(whole, tmp_path):
    """As it was before its weights were written."""
    folder = tmp_path / "unfinished"
    shutil.copytree(whole, folder)
    (folder / records.WEIGHTS).unlink()
    manifest = records.read_json(folder / records.MANIFEST)
    del manifest["final_params_sha256"]
    records.write_json(folder / records.MANIFEST, manifest)
    return folder


def test_a_run_is_loaded_by_its_directory_or_its_file(whole, capsys):
    digest = records.read_json(whole / records.MANIFEST)["final_params_sha256"]
    for path in (whole, whole / records.WEIGHTS, str(whole)):
        config, params = weights.load(path)
        assert (config.channels, config.height, config.width) == ((3, 4), 8, 8)
        assert records.fingerprint(params) == digest
    assert capsys.readouterr().err == ""


def test_an_unfinished_run_gives_its_newest_good_checkpoint(whole, tmp_path, capsys):
    folder = unfinished(whole, tmp_path)
    final = records.read_tree(whole / records.WEIGHTS)
    _, params = weights.load(folder)
    assert records.fingerprint(params) == records.fingerprint(final)
    assert "not finished, so its weights after update 6" in capsys.readouterr().err
    (folder / "checkpoints" / "6" / "digest.json").unlink()
    _, params = weights.load(folder)
    assert not np.array_equal(params["gates_0"]["kernel"], final["gates_0"]["kernel"])
    assert "damaged; " in (said := capsys.readouterr().err)
    assert "its weights after update 4" in said
    _, second = weights.load(folder / "checkpoints" / "4")
    assert records.fingerprint(second) == records.fingerprint(params)
    with pytest.raises(UserError, match="²: no such file"):
        weights.load(folder / "checkpoints" / "²")
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(UserError, match="has no checkpoint; expected one: continue"):
        weights.load(folder)


def test_damaged_runs_are_named(whole, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(whole, folder)
    tree = records.read_tree(folder / records.WEIGHTS)
    tree["gates_0"]["bias"] += 1
    records.write_tree(folder / records.WEIGHTS, tree)
    with pytest.raises(UserError, match=r"weights\.npz: damaged"):
        weights.load(folder)
    (folder / records.MANIFEST).write_text(json.dumps({"model": "prednet"}))
    with pytest.raises(UserError, match=r"manifest\.json: network={}: expected"):
        weights.load(folder)


def test_scripts_take_an_unfinished_run(whole, tmp_path, forked):
    folder, output = unfinished(whole, tmp_path), tmp_path / "w.safetensors"
    words = (f"--input={folder}", f"--output={output}")
    done = forked("convert_weights.py", *words)
    assert "its weights after update 6" in done.stderr
    assert weights.load(output)[0].channels == (3, 4)
