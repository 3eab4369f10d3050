"""Trees of splits, films that are thinned, and sources that somebody adds."""

import functools

import numpy as np
import pytest
from PIL import Image

from prednet_jax import data
from prednet_jax.data import open_source, open_split, sources, walk
from prednet_jax.errors import UserError

SIZE = {"height": 6, "width": 8, "channels": 3}
RNG = np.random.default_rng(0)


def film(path, length, pixels=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RNG.integers(0, 256, (length, 6, 8, 3), np.uint8)
    np.save(path, pixels)
    return pixels


@pytest.mark.parametrize("name", ["val", "validation", "Val", "dev", "val_images"])
def test_a_folder_of_splits_is_split_by_its_names(tmp_path, name, capsys):
    """All of it was trained on, also what its owner kept for validation."""
    frames = film(tmp_path / "train" / "a.npy", 12)
    more = film(tmp_path / "train" / "b.npy", 3)
    held_out = film(tmp_path / name / "c.npy", 5)
    source = open_source(str(tmp_path), **SIZE)
    np.testing.assert_array_equal(source.read(0, 15), np.concatenate([frames, more]))
    assert source.boundaries == (0, 12)
    train = open_split(str(tmp_path), "train", **SIZE)
    validation = open_split(str(tmp_path), "validation", **SIZE)
    assert (train.length, train.boundaries) == (15, (0, 12))
    np.testing.assert_array_equal(validation.read(0, 5), held_out)
    said = capsys.readouterr().err
    line = f"split by the names in it, train: train, validation: {name}; train is trai"
    assert said.count(line) == 1
    with pytest.raises(UserError, match="has the parts train, validation and no test"):
        open_split(str(tmp_path), "test", **SIZE)
    film(tmp_path / "test" / "d.npy", 7)
    assert open_split(str(tmp_path), "test", **SIZE).length == 7
    with pytest.raises(
        UserError, match=r"sequences=2: .* has 1 in this split; expected at most"
    ):
        open_split(str(tmp_path), "test", sequences=2, **SIZE)


def test_a_folder_without_splits_is_one_source(tmp_path, capsys):
    for name in ("train", "other"):
        film(tmp_path / name / "a.npy", 4)
    assert open_source(str(tmp_path), **SIZE).length == 8
    assert "train and all else in it are read together" in capsys.readouterr().err


def test_splits_lie_deeper_and_are_neither_double_nor_without_training(tmp_path):
    """Of two folders for one split one was left out; without train all was trained."""
    for name in ("val", "test"):
        film(tmp_path / "data" / name / "a.npy", 4)
    assert open_split(str(tmp_path), "test", **SIZE).length == 4
    with pytest.raises(UserError, match="parts validation, test and no train; expect"):
        open_source(str(tmp_path), **SIZE)
    for name in ("train", "training"):
        film(tmp_path / "data" / name / "a.npy", 4)
    with pytest.raises(UserError, match="has 2 parts train, train and training; expe"):
        open_source(str(tmp_path), **SIZE)


def test_files_that_are_no_pictures_are_left_out_with_their_number(tmp_path, capsys):
    film(tmp_path / "sub" / "a.npy", 4)
    Image.new("RGB", (8, 6)).save(tmp_path / "a.png")
    (tmp_path / "b.heic").write_bytes(b"of a telephone")
    for _ in range(2):
        assert open_source(str(tmp_path), **SIZE).length == 1
    said = "other folders and files of other kinds are left out, 2 files"
    assert capsys.readouterr().err.count(said) == 1


def test_every_second_frame_of_each_sequence(tmp_path):
    """Also the last one of an odd sequence; splits are made before."""
    frames = RNG.integers(0, 256, (12, 6, 8, 3), np.uint8)
    np.savez(tmp_path / "a.npz", frames=frames, boundaries=[0, 5])
    path = str(tmp_path / "a.npz")
    source = open_source(path, **SIZE, every=2)
    chosen = [0, 2, 4, 5, 7, 9, 11]
    assert (source.length, source.boundaries) == (7, (0, 3))
    np.testing.assert_array_equal(source.read(0, 7), frames[chosen])
    np.testing.assert_array_equal(source.read(2, 4), frames[[4, 5]])
    whole = open_source(path, **SIZE)
    assert whole.fingerprint != source.fingerprint
    assert open_source(path, **SIZE, every=1).fingerprint == whole.fingerprint
    train = open_split(path, "train", **SIZE, every=2)
    np.testing.assert_array_equal(train.read(0, 5), frames[[0, 2, 5, 7, 9]])
    far = open_source("walk", **SIZE, every=3)
    walked = open_source("walk", **SIZE).read(6, 7)
    np.testing.assert_array_equal(far.read(2, 3), walked)
    with pytest.raises(UserError, match="every=0: expected a whole number, at least 1"):
        open_source(path, **SIZE, every=0)


def test_a_change_of_aspect_is_announced(tmp_path):
    Image.new("RGB", (320, 180)).save(tmp_path / "a.png")
    scaled = open_source(str(tmp_path), height=24, width=32)
    assert "width over height changes from 1.78 to 1.33" in scaled.done
    kept = open_source(str(tmp_path), height=18, width=32)
    assert kept.done.endswith("scaled to 32x18")


@pytest.mark.parametrize("listed", [False, True])
def test_several_films_are_several_sequences(tmp_path, listed):
    films = [film(tmp_path / f"{name}.npy", n) for name, n in (("a", 4), ("b", 3))]
    path = tmp_path
    if listed:
        path = tmp_path / "films.txt"
        path.write_text("b.npy\na.npy\n")
        films.reverse()
    source = open_source(str(path), **SIZE)
    assert source.boundaries == (0, len(films[0]))
    np.testing.assert_array_equal(source.read(0, 7), np.concatenate(films))


def test_an_added_kind_of_file_is_read_in_folders_lists_and_splits(
    monkeypatch, tmp_path
):
    def opened(path, fit):
        pixels = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, 12, 16, 1)
        fit = fit.settled(12, 16)
        frames = fit.frames(lambda index: pixels[index], lambda _: str(path))
        return fit.source(str(path), len(pixels), (0,), frames, file=str(pixels.sum()))

    monkeypatch.setitem(sources.FILES, ".raw", opened)
    size = {"height": 6, "width": 8, "channels": 1}
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        for i in range(2):
            content = np.full((5, 12, 16), i, np.uint8)
            (tmp_path / split / f"{i}.raw").write_bytes(content.tobytes())
    source = data.open_split(str(tmp_path), "validation", **size)
    assert source.boundaries == (0, 5)
    assert source.read(5, 6).tolist() == np.ones((1, 6, 8, 1)).tolist()
    (tmp_path / "list.txt").write_text("train/0.raw\nval/1.raw\n")
    listed = data.open_source(str(tmp_path / "list.txt"), **size)
    assert listed.boundaries == (0, 5)
    assert listed.done.startswith("pictures of 16x12")


def test_an_added_source_works_everywhere(monkeypatch, tmp_path):
    """CONTRIBUTING named two places, and splits knew the names by heart."""
    line = data.NamedSource((6, 8, 3), functools.partial(walk.open_walk, varied=True))
    monkeypatch.setitem(sources.NAMES, "mine", line)
    assert data.own_size("mine") == (6, 8, 3)
    assert open_source("mine", seed=3).read(0, 1).shape == (1, 6, 8, 3)
    found = {
        split: open_split("mine", split, sequences=3, **SIZE)
        for split in ("train", "validation", "test")
    }
    assert len({part.fingerprint for part in found.values()}) == 3
    for part in found.values():
        assert part.boundaries == (0, 300, 600)
    with pytest.raises(UserError, match=r"split=unseen: .*expected split train"):
        open_split("mine", "unseen", **SIZE)
    # Of a source that no seed changes the frames themselves are divided.
    pixels = film(tmp_path / "a.npy", 20)

    def opened(*, seed, **size):
        return open_source(str(tmp_path / "a.npy"), **size)

    monkeypatch.setitem(sources.NAMES, "fixed", data.NamedSource((6, 8, 3), opened))
    train, test = (open_split("fixed", split, **SIZE) for split in ("train", "test"))
    np.testing.assert_array_equal(train.read(0, 16), pixels[:16])
    np.testing.assert_array_equal(test.read(0, 2), pixels[18:])
