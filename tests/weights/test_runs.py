import json
import shutil

import numpy as np
import pytest

from prednet_jax import records, weights
from prednet_jax.errors import UserError

# The network of tests/experiments: what compiled it there is on the disk.
TINY = ("--channels=3,4", "--height=8", "--width=8", "--window=4", "--updates=3")
TINY += ("--convolution=xla",)


@pytest.fixture(scope="module")
def run(train, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(*TINY, "--checkpoint_every=1", f"--workdir={folder}")
    return folder


def unfinished(run, tmp_path):
    """As it was before its weights were written."""
    folder = tmp_path / "unfinished"
    shutil.copytree(run, folder)
    (folder / records.WEIGHTS).unlink()
    manifest = records.read_json(folder / records.MANIFEST)
    del manifest["final_params_sha256"]
    records.write_json(folder / records.MANIFEST, manifest)
    return folder


def test_a_run_is_loaded_by_its_directory_or_its_file(run, capsys):
    digest = records.read_json(run / records.MANIFEST)["final_params_sha256"]
    for path in (run, run / records.WEIGHTS, str(run)):
        config, params = weights.load(path)
        assert (config.channels, config.height, config.width) == ((3, 4), 8, 8)
        assert records.fingerprint(params) == digest
    assert capsys.readouterr().err == ""


def test_an_unfinished_run_gives_its_newest_good_checkpoint(run, tmp_path, capsys):
    folder = unfinished(run, tmp_path)
    final = records.read_tree(run / records.WEIGHTS)
    _, params = weights.load(folder)
    assert records.fingerprint(params) == records.fingerprint(final)
    assert "not finished; its weights after update 3" in capsys.readouterr().err
    (folder / "checkpoints" / "3" / "digest.json").unlink()
    _, params = weights.load(folder)
    assert not np.array_equal(params["gates_0"]["kernel"], final["gates_0"]["kernel"])
    said = capsys.readouterr().err
    assert "damaged" in said
    assert "its weights after update 2" in said
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(UserError, match="has no checkpoint; --resume goes on"):
        weights.load(folder)


def test_damaged_runs_are_named(run, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(run, folder)
    tree = records.read_tree(folder / records.WEIGHTS)
    tree["gates_0"]["bias"] += 1
    records.write_tree(folder / records.WEIGHTS, tree)
    with pytest.raises(UserError, match=r"weights\.npz: damaged"):
        weights.load(folder)
    (folder / records.MANIFEST).write_text(json.dumps({"model": "prednet"}))
    with pytest.raises(UserError, match=r"manifest\.json: not that of a run"):
        weights.load(folder)


def test_scripts_take_an_unfinished_run(run, tmp_path, forked):
    folder, output = unfinished(run, tmp_path), tmp_path / "w.safetensors"
    words = (f"--input={folder}", f"--output={output}")
    done = forked("convert_weights.py", *words)
    assert done.returncode == 0, done.stderr
    assert "its weights after update 3" in done.stderr
    assert weights.load(output)[0].channels == (3, 4)
