"""The PyTorch ports' own predictions, and hostile files.

Recorded by record_pytorch_port.py, beside this file.

A port's network and ours add up a step's terms in another order, so the largest
difference allowed is 1e-6 of the range of pixels.
"""

import os
import pickle
import shutil
import zipfile

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from prednet_jax import Trainer, predict, weights, windows
from prednet_jax.errors import UserError
from tests.processes import ROOT

pytestmark = pytest.mark.optimized
GOLDEN = ROOT / "tests" / "golden" / "pytorch_tiny"
SIZE = {"height": 8, "width": 12}


def load(port, suffix=".pth", **options):
    path = GOLDEN / f"{port}{suffix}"
    return weights.load(path, variant=port, **(SIZE | options))


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("port", weights.PORTS)
def test_predictions_are_the_ports(port, suffix):
    config, params = load(port, suffix)
    assert (config.variant, config.channels) == (port, (3, 4, 6))
    assert config.recurrent == (3, 5, 6)
    recorded = np.load(GOLDEN / f"{port}.npz")
    found, _ = predict(params, config, recorded["frames"])
    expected = recorded["predictions"] / np.float32(weights.PORTS[port])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    # The recording tells right from wrong: it moves, and is clipped here and there.
    assert expected[1:].std() > 0.1
    assert 0.01 < (expected == 1).mean() < 0.5


def test_without_a_variant_it_is_the_authors_port_and_said(capsys):
    config, _ = weights.load(GOLDEN / "watanabe_pytorch.pth", **SIZE)
    assert config.variant == "watanabe_pytorch"
    assert "read as watanabe_pytorch; variant lotter_pytorch" in capsys.readouterr().err
    with pytest.raises(UserError, match="variant='lotter': expected one of watanabe_p"):
        weights.load(GOLDEN / "watanabe_pytorch.pth", variant="lotter")


def test_an_imported_port_is_a_network_like_any_other(tmp_path):
    port = "watanabe_pytorch"
    config, params = load(port)
    path = tmp_path / "w.safetensors"
    weights.save_safetensors(path, config, params)
    again, same = weights.load(path)
    assert again == config
    jax.tree.map(np.testing.assert_array_equal, same, params)
    # It trains: the program of an update is there.
    trainer = Trainer(config)
    window = next(windows(np.load(GOLDEN / f"{port}.npz")["frames"], 3))
    start = trainer.init(params, batch=2)
    state, _ = jax.eval_shape(lambda state: trainer.step(state, *window), start)
    assert jax.tree.structure(state.params) == jax.tree.structure(params)


def with_pickle(tmp_path, content):
    """The golden file with another pickle in it."""
    path = tmp_path / "w.pth"
    with (
        zipfile.ZipFile(GOLDEN / "watanabe_pytorch.pth") as old,
        zipfile.ZipFile(path, "w") as new,
    ):
        for name in old.namelist():
            own = name.endswith("/data.pkl")
            new.writestr(name, content(old.read(name)) if own else old.read(name))
    return path


class Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_no_program_in_a_pickle_is_run(tmp_path):
    harm = tmp_path / "harm"
    content = pickle.dumps({"cell0.weight_ih": Runs(harm)}, protocol=2)
    path = with_pickle(tmp_path, lambda _, content=content: content)
    with pytest.raises(UserError, match=r"it names posix\.system, which is not run"):
        weights.load(path)
    assert not harm.exists()
    pickle.loads(content)
    assert harm.exists()  # The test can fail.


def test_other_pickles_are_refused(tmp_path):
    for content in (
        b"\x80\x02cbuiltins\neval\n(X\x01\x00\x00\x001tR.",
        b"\x80\x02(icollections\nOrderedDict\n.",  # Another way to make an object.
        b"\x80\x02ccollections\nOrderedDict\n)\x81.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02r\xff\xff\xff\xff.",
        b"\x80\x02]q\x00h\x00a.",
        b"\x80\x02(K\x01tQ.",
        b"",
        b"\x80\x02N.",
    ):
        with pytest.raises(UserError, match=r"w\.pth: .*expected a state dict"):
            weights.load(with_pickle(tmp_path, lambda _, content=content: content))


def test_a_tensor_that_reaches_beyond_its_storage_is_refused(tmp_path):
    """A size, a stride or a count that the file does not hold."""
    with zipfile.ZipFile(GOLDEN / "watanabe_pytorch.pth") as archive:
        name = next(n for n in archive.namelist() if n.endswith("data.pkl"))
        first = archive.read(name)
    # BININT1 6, 11, 3, 3: the size of cell0.weight_ch's or another's kernel.
    place = first.index(b"(K\x0cK\x0bK\x03K\x03t")
    for number in (1, 3):
        changed = bytearray(first)
        changed[place + number + 1] = 0xFF
        path = with_pickle(tmp_path, lambda _, c=bytes(changed): c)
        with pytest.raises(UserError, match=r"a tensor of size .* in a storage of"):
            weights.load(path)


def test_damaged_files_are_refused(tmp_path):
    whole = (GOLDEN / "watanabe_pytorch.pth").read_bytes()
    for cut in (20, 200, len(whole) // 2, len(whole) - 30):
        path = tmp_path / "w.pth"
        path.write_bytes(whole[:cut])
        with pytest.raises(UserError, match=r"w\.pth: .*expected"):
            weights.load(path)


def test_a_checkpoint_around_the_state_dict_is_read(tmp_path):
    """Prefixes of DataParallel and of a dictionary around it; two networks are not."""
    shutil.copy(GOLDEN / "watanabe_pytorch.pth", tmp_path / "w.pth")
    stored = weights.pytorch.read_pth(tmp_path / "w.pth")
    renamed = {f"state_dict.module.{n}": x.copy() for n, x in stored.items()}
    save_file(renamed, tmp_path / "w.safetensors")
    path = tmp_path / "w.safetensors"
    config, params = weights.load(path, variant="watanabe_pytorch", **SIZE)
    _, plain = load("watanabe_pytorch")
    jax.tree.map(np.testing.assert_array_equal, params, plain)
    assert config.layers == 3
    second = {f"b.{name}": x.copy() for name, x in stored.items()}
    save_file(renamed | second, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match="holds 2 networks"):
        weights.load(tmp_path / "w.safetensors")


def test_references_to_references_are_followed_once(tmp_path):
    """Thirty doublings; before, each path to a dictionary was walked by itself."""
    node = {}
    for _ in range(30):
        node = {"a": node, "b": node}
    path = with_pickle(tmp_path, lambda _: pickle.dumps(node, protocol=2))
    with pytest.raises(UserError, match=r"no array 'conv0\.0\.weight'"):
        weights.load(path)
