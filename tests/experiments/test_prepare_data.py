import gzip
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from prednet_jax import data
from prednet_jax.errors import UserError

SCRIPT = "prepare_data.py"
RANDOM = np.random.default_rng(0)


def pixels(*shape):
    return RANDOM.integers(0, 256, shape, np.uint8)


@pytest.fixture
def prepared(forked, tmp_path):
    """Runs the script on the folder `in`; its --data, as its last line says."""

    def run(name):
        words = (f"--source={tmp_path / 'in'}", f"--data_dir={tmp_path / 'out'}")
        done = forked(SCRIPT, f"--dataset={name}", *words)
        assert done.stderr == ""
        (line,) = done.stdout.splitlines()
        return line.rpartition("--data=")[2]

    return run


def test_kitti_is_cut_and_divided_as_published(prepared, refused, tmp_path):
    frames = {}
    for drive, count in {"0001": 2, "0002": 3, "0005": 1, "0079": 2}.items():
        name = f"2011_09_26_drive_{drive}_sync"
        folder = tmp_path / "in" / "2011_09_26" / name / "image_03" / "data"
        folder.mkdir(parents=True)
        for number in range(count):
            frames[drive, number] = pixels(375, 1242, 3)
            picture = Image.fromarray(frames[drive, number])
            picture.save(folder / f"{number:010d}.png", compress_level=0)
    made = prepared("kitti_raw")
    size = {"height": 128, "width": 160, "channels": 3}
    train, validation, test = (
        data.open_split(made, split, **size)
        for split in ("train", "validation", "test")
    )
    assert (train.length, train.boundaries) == (5, (0, 2))
    assert validation.length == 1
    assert test.length == 2
    # 375 rows to 128 are 424 columns; the middle 160 begin at 132.
    original = Image.fromarray(frames["0079", 1])
    scaled = np.asarray(original.resize((424, 128), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(test.read(1, 2)[0], scaled[:, 132:292])
    words = (f"--source={tmp_path / 'in'}", f"--data_dir={tmp_path / 'out'}")
    refused("is there already", SCRIPT, "--dataset=kitti_raw", *words)
    last = tmp_path / "in/2011_09_26/2011_09_26_drive_0079_sync/image_03/data"
    Image.new("RGB", (90, 375)).save(last / "9.png")
    words = (words[0], f"--data_dir={tmp_path / 'other'}")
    refused("9.png: 90x375: too narrow", SCRIPT, "--dataset=kitti_raw", *words)
    assert not list((tmp_path / "other").iterdir())


def test_mnist_is_what_the_sources_read(prepared, tmp_path, monkeypatch):
    from prednet_jax.data import builders

    originals, arrays = tmp_path / "in", {}
    originals.mkdir()
    for stem, count in (("train", 6), ("t10k", 4)):
        arrays[stem] = pixels(count, 28, 28)
        for kind, array in (
            ("images-idx3", arrays[stem]),
            ("labels-idx1", (np.arange(count) % 10).astype(np.uint8)),
        ):
            head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
            content = gzip.compress(head + array.tobytes())
            (originals / f"{stem}-{kind}-ubyte.gz").write_bytes(content)
    assert prepared("mnist") == "mnist or moving_mnist"
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "out"))
    shown = {frame.tobytes() for frame in data.open_source("mnist").read(0, 6)}
    assert shown == {image.tobytes() for image in arrays["train"]}
    assert data.open_source("moving_mnist").read(0, 2).any()
    path = originals / "t10k-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for broken in (whole[:-40], gzip.compress(gzip.decompress(whole)[:-1]), b""):
        path.write_bytes(broken)
        with pytest.raises(UserError, match="t10k-images-idx3-ubyte"):
            builders.prepare("mnist", originals, tmp_path / "out")


def test_what_was_not_brought_is_named_with_where_it_is(tmp_path):
    from prednet_jax.data import builders

    (tmp_path / "in").mkdir()
    for name, wanted in (
        ("mnist", "train-images-idx3-ubyte.gz"),
        ("kitti_raw", "image_03/data"),
    ):
        with pytest.raises(UserError) as caught:
            builders.prepare(name, tmp_path / "in", tmp_path / "out")
        for part in (str(tmp_path / "in"), wanted, "http", "Nothing is downloaded"):
            assert part in str(caught.value)
        assert not (tmp_path / "out").exists()
        with pytest.raises(UserError, match="an address; expected a path"):
            builders.prepare(name, tmp_path / "in", Path("gs://bucket/out"))
