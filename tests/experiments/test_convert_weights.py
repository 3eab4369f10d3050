"""convert_weights.py as a user runs it."""

import jax
import pytest

import prednet_jax
from prednet_jax import weights
from prednet_jax.config import PredNetConfig

CONFIG = PredNetConfig(channels=(3, 4), height=8, width=12)
SCRIPT = "convert_weights.py"


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "start.npz"
    weights.save_chainer(
        path, CONFIG, prednet_jax.init_params(CONFIG, jax.random.key(0))
    )
    return path


def test_what_cannot_be_written_is_refused_and_nothing_is_touched(
    tmp_path, model, refused
):
    before = model.read_bytes()
    source = f"--input={model}"
    refused("start.npz exists; expected a new", SCRIPT, source, f"--output={model}")
    refused("suffix '.pt'", SCRIPT, source, f"--output={tmp_path / 'w.pt'}")
    refused(
        "w.hdf5: variant='watanabe': expected 'lotter'",
        SCRIPT,
        source,
        f"--output={tmp_path / 'w.hdf5'}",
    )
    beside = tmp_path / "w.json"
    beside.write_text("mine")
    refused("w.json exists;", SCRIPT, source, f"--output={tmp_path / 'w.hdf5'}")
    assert beside.read_text() == "mine"
    beside.unlink()
    for name, reason in (
        ("new/w.npz", "no directory"),
        ("start.npz/w", "start.npz is no directory that can be written"),
        ("", "exists, and is a directory; expected a new path"),
    ):
        refused(reason, SCRIPT, source, f"--output={tmp_path / name}")
    missing = tmp_path / "missing.npz"
    refused("missing.npz", SCRIPT, f"--input={missing}", f"--output={tmp_path / 'w'}")
    assert model.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [model.name]
