"""Data sets prepared and read without TensorFlow, from files in their real layout."""

import gzip
import json
import sys

import av
import numpy as np
import pytest
from PIL import Image

from prednet_jax import data
from prednet_jax.data import DataError
from prednet_jax.data.builders import prepare

RANDOM = np.random.default_rng(0)


def pixels(*shape):
    return RANDOM.integers(0, 256, shape, np.uint8)


def metadata(folder):
    with open(f"{folder}/metadata.json") as file:
        return json.load(file)


def film(path, frames):
    """A video without losses."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=5)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "bgr0"
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())


def write_idx(path, array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(head + array.tobytes()))


def test_the_walk_comes_back_as_it_went_in(tmp_path):
    size = {"height": 12, "width": 16, "length": 70}
    folder = prepare("walk", None, str(tmp_path), **size)
    source = data.open_source(folder, height=12, width=16)
    walk = data.open_source("walk", height=12, width=16)
    assert (source.length, source.boundaries) == (70, (0,))
    np.testing.assert_array_equal(source.read(60, 70), walk.read(60, 70))
    assert "tensorflow" not in sys.modules
    # A second call finds it; another seed is another data set.
    before = metadata(folder)
    assert (
        prepare("walk", None, str(tmp_path), height=12, width=16, length=70) == folder
    )
    assert metadata(folder) == before
    other = prepare("walk", None, str(tmp_path), **size, seed=1)
    assert other != folder
    assert data.open_source(other, height=12, width=16).fingerprint != (
        source.fingerprint
    )


@pytest.mark.parametrize("kind", ["folder", "list", "video"])
def test_images_and_videos(tmp_path, kind):
    frames = pixels(5, 8, 12, 3)
    originals = tmp_path / "in"
    originals.mkdir()
    for number, frame in enumerate(frames):
        Image.fromarray(frame).save(originals / f"{number}.png")
    source = originals
    if kind == "list":
        source = originals / "list.txt"
        source.write_text("".join(f"{number}.png\n" for number in range(5)))
    if kind == "video":
        source = tmp_path / "film.avi"
        film(source, frames)
    folder = prepare(
        "image_sequence", str(source), str(tmp_path / "out"), height=8, width=12
    )
    found = data.open_source(folder, height=8, width=12)
    np.testing.assert_array_equal(found.read(0, 5), frames)


def test_fpsi_is_scaled_and_each_video_is_a_sequence(tmp_path):
    originals = tmp_path / "in"
    originals.mkdir()
    for name, count in (("a.avi", 3), ("b.avi", 2)):
        film(originals / name, pixels(count, 24, 32, 3))
    folder = prepare("fpsi", str(originals), str(tmp_path / "out"))
    found = data.open_source(folder)
    assert (found.height, found.width, found.boundaries) == (120, 160, (0, 3))
    direct = data.open_source(str(originals / "b.avi"), crop="resize")
    np.testing.assert_array_equal(found.read(3, 5), direct.read(0, 2))
    # A folder of videos is read directly, too.
    source = data.open_source(str(originals), crop="resize")
    assert source.boundaries == (0, 3)
    np.testing.assert_array_equal(found.read(2, 4), source.read(2, 4))
    assert metadata(folder)["made_from"] == {"train": source.fingerprint}


def test_kitti_is_cut_and_divided_as_published(tmp_path):
    drives = {
        "2011_09_26/2011_09_26_drive_0001_sync": 2,
        "2011_09_26/2011_09_26_drive_0002_sync": 3,
        "2011_09_26/2011_09_26_drive_0005_sync": 1,
        "2011_09_26/2011_09_26_drive_0079_sync": 2,
    }
    frames = {}
    for drive, count in drives.items():
        folder = tmp_path / "in" / drive / "image_03" / "data"
        folder.mkdir(parents=True)
        for number in range(count):
            frames[drive, number] = pixels(375, 1242, 3)
            picture = Image.fromarray(frames[drive, number])
            picture.save(folder / f"{number:010d}.png", compress_level=0)
    made = prepare("kitti_raw", str(tmp_path / "in"), str(tmp_path / "out"))
    train = data.open_source(made, height=128, width=160)
    assert (train.length, train.boundaries) == (5, (0, 2))
    assert data.open_source(f"{made}:validation", height=128, width=160).length == 1
    test = data.open_source(f"{made}:test", height=128, width=160)
    assert test.length == 2
    # 375 rows to 128 are 424 columns; the middle 160 begin at 132.
    original = Image.fromarray(frames["2011_09_26/2011_09_26_drive_0079_sync", 1])
    scaled = np.asarray(original.resize((424, 128), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(test.read(1, 2)[0], scaled[:, 132:292])
    with pytest.raises(DataError, match="expected one of train, validation, test"):
        data.open_source(f"{made}:night", height=128, width=160)


def test_moving_mnist(tmp_path):
    path = tmp_path / "in" / "mnist_test_seq.npy"
    path.parent.mkdir()
    frames = pixels(20, 3, 64, 64)
    np.save(path, frames)
    made = prepare("moving_mnist_test", str(path.parent), str(tmp_path / "out"))
    found = data.open_source(made, height=64, width=64, channels=1)
    assert found.boundaries == (0, 20, 40)
    np.testing.assert_array_equal(found.read(20, 40)[..., 0], frames[:, 1])
    whole = path.read_bytes()
    for broken in (whole[:-40], whole[:40], b"", b"no .npy"):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"mnist_test_seq\.npy: not a whole \.npy"):
            prepare("moving_mnist_test", str(path.parent), str(tmp_path / "out"))


def test_other_files_are_not_taken_for_those_of_before(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "mnist_test_seq.npy", pixels(2, 1, 64, 64))
    out = str(tmp_path / "out")
    made = prepare("moving_mnist_test", str(tmp_path / "one"), out)
    before = metadata(made)
    assert prepare("moving_mnist_test", str(tmp_path / "one"), out) == made
    with pytest.raises(DataError, match=r"made from other files than those of .*other"):
        prepare("moving_mnist_test", str(tmp_path / "other"), out)
    assert metadata(made) == before


@pytest.fixture
def mnist_files(tmp_path):
    originals = tmp_path / "in"
    originals.mkdir()
    arrays = {}
    for stem, count in (("train", 6), ("t10k", 4)):
        arrays[stem] = pixels(count, 28, 28)
        write_idx(originals / f"{stem}-images-idx3-ubyte.gz", arrays[stem])
        labels = (np.arange(count) % 10).astype(np.uint8)
        write_idx(originals / f"{stem}-labels-idx1-ubyte.gz", labels)
    return originals, arrays


def test_mnist_is_prepared_and_is_what_the_sources_read(
    tmp_path, monkeypatch, mnist_files
):
    originals, arrays = mnist_files
    folder = prepare("mnist", str(originals), str(tmp_path / "out"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "out"))
    found = data.open_source("mnist")
    shown = {frame.tobytes() for frame in found.read(0, 6)}
    assert shown == {image.tobytes() for image in arrays["train"]}
    assert data.open_source("moving_mnist").read(0, 2).any()
    # By its path, also of the other split.
    size = {"height": 28, "width": 28, "channels": 1}
    for suffix, stem in (("", "train"), (":test", "t10k")):
        source = data.open_source(f"{folder}{suffix}", **size)
        assert source.length == len(arrays[stem])
        shown = {frame.tobytes() for frame in source.read(0, source.length)}
        assert shown == {image.tobytes() for image in arrays[stem]}
    assert "tensorflow" not in sys.modules


def test_a_broken_idx_file_is_named(tmp_path, mnist_files):
    originals, _ = mnist_files
    path = originals / "t10k-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for broken in (whole[:-40], gzip.compress(gzip.decompress(whole)[:-1]), b""):
        path.write_bytes(broken)
        with pytest.raises(DataError, match="t10k-images-idx3-ubyte"):
            prepare("mnist", str(originals), str(tmp_path / "out"))
    # Nothing half-made is taken for the data set.
    path.write_bytes(whole)
    assert prepare("mnist", str(originals), str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("mnist", "train-images-idx3-ubyte.gz"),
        ("moving_mnist_test", "mnist_test_seq.npy"),
        ("kitti_raw", "image_03/data"),
        ("fpsi", "video"),
    ],
)
def test_what_was_not_brought_is_named_with_where_it_is(tmp_path, name, wanted):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError) as caught:
        prepare(name, str(empty), str(tmp_path / "out"))
    message = str(caught.value)
    for part in (str(empty), wanted, "http", "Nothing is downloaded"):
        assert part in message
    assert "\n" not in message
    assert not list((tmp_path / "out").glob(f"{name}/*"))


def test_a_folder_of_another_kind_is_refused(tmp_path):
    (tmp_path / "dataset_info.json").write_text("{}")
    with pytest.raises(DataError, match="no pictures that"):
        data.open_source(str(tmp_path))
