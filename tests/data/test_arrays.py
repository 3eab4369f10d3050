"""Arrays of all layouts, and the .hkl files of coxlab/prednet."""

import h5py
import numpy as np
import pytest
from PIL import Image

from prednet_jax.data import open_source, open_split
from prednet_jax.errors import UserError
from tests.processes import ROOT

SIZE = {"height": 6, "width": 8}
RNG = np.random.default_rng(0)
# Two sequences of five frames: [N, T, H, W, C].
FRAMES = RNG.integers(0, 256, (2, 5, 6, 8, 3), np.uint8)
FLAT = FRAMES.reshape(10, 6, 8, 3)


def hickle(path, value, version):
    """A value as hickle 2, 3, 4 or 5 writes it: an array, or a list of strings.

    Recorded from hickle 3.4.9, 4.0.4 and 5.0.3; of 2.1.0 read in its source.
    """
    root = "data_0" if version < 4 else "data"
    with h5py.File(path, "w") as file:
        file.attrs["VERSION" if version < 4 else "HICKLE_VERSION"] = f"{version}.0"
        if not isinstance(value, list):
            file.create_dataset(root, data=value, compression="gzip")
        elif version == 2:
            file.create_dataset(root, data=np.array(value, "S"))
        elif version < 5:
            strings = np.array(value, object)
            file.create_dataset(root, data=strings, dtype=h5py.special_dtype(vlen=str))
        else:
            group, written = file.create_group(root), {}
            for i, text in enumerate(value):
                content = written.get(text)
                if content is None:
                    content = np.frombuffer(text.encode(), "S1")[None]
                node = group.create_dataset(f"data{i}", data=content)
                written.setdefault(text, node.ref)


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_hkl_of_kitti_with_its_sources(tmp_path, version, capsys):
    path = tmp_path / "X_train.hkl"
    hickle(path, FLAT, version)
    assert open_source(str(path), **SIZE).boundaries == (0,)
    names = ["city-a"] * 4 + ["city-b"] * 5 + ["road-12"]
    hickle(tmp_path / "sources_train.hkl", names, version)
    source = open_source(str(path), **SIZE)
    assert source.boundaries == (0, 4, 9)
    np.testing.assert_array_equal(source.read(2, 10), FLAT[2:])
    assert (
        "3 sequences, as sources_train.hkl next to it tells" in capsys.readouterr().err
    )
    # The same frames and sequences as of NumPy are the same data.
    np.savez(tmp_path / "same.npz", frames=FLAT, boundaries=[0, 4, 9])
    same = open_source(str(tmp_path / "same.npz"), **SIZE)
    assert same.fingerprint == source.fingerprint
    # As process_kitti.py leaves them: a folder of splits.
    hickle(tmp_path / "X_val.hkl", FLAT[:4], version)
    for split, length in (("train", 10), ("validation", 4)):
        part = open_split(str(tmp_path), split, **SIZE, channels=3)
        assert part.length == length


@pytest.mark.parametrize("version", ["3.4.9", "4.0.4", "5.0.3"])
def test_hkl_that_hickle_itself_wrote(version):
    path = ROOT / "tests" / "golden" / "hickle" / version / "X_train.hkl"
    source = open_source(str(path), height=4, width=5)
    expected = np.random.default_rng(0).integers(0, 256, (6, 4, 5, 3), np.uint8)
    np.testing.assert_array_equal(source.read(0, 6), expected)
    assert source.boundaries == (0, 3)


def test_no_hkl_is_refused(tmp_path):
    def refused(message):
        # While the error is kept, so are the variables of what raised it.
        with pytest.raises(UserError, match=message) as error:
            open_source(str(tmp_path / "X_a.hkl"), **SIZE)
        kept.append(error)

    kept = []
    (tmp_path / "X_a.hkl").write_text("none")
    refused(
        r"X_a\.hkl: not a readable \.hkl .*; expected HDF5 of hickle with one array"
    )
    hickle(tmp_path / "X_a.hkl", ["a", "b"], 4)
    refused(r"X_a\.hkl: an \.hkl that holds no frames; expected one array")
    with h5py.File(tmp_path / "X_a.hkl", "w") as file:
        file["data_0"] = h5py.ExternalLink("other.hkl", "data_0")
    refused("not a readable")
    with h5py.File(tmp_path / "X_a.hkl", "w") as file:
        file.create_dataset("data", (10**9, 6, 8, 3), np.uint8, chunks=(1, 6, 8, 3))
    refused("its array lies in another file, or is not stored as a whole")
    hickle(tmp_path / "X_a.hkl", FLAT, 4)
    hickle(tmp_path / "sources_a.hkl", ["a", "b"], 4)
    refused("sources_a.hkl next to it names 2 sources; expected one source a frame")
    hickle(tmp_path / "sources_a.hkl", FLAT[0, 0], 4)
    refused("sources_a.hkl next to it names 24 sources")
    for _ in range(2):  # HDF5 writes no file again that is still open.
        with h5py.File(tmp_path / "sources_a.hkl", "w") as file:
            file["other"] = 1
        refused("sources_a.hkl next to it is no list of sources")
    (tmp_path / "sources_a.hkl").write_text("none")
    refused("sources_a.hkl next to it is no list of sources")


@pytest.mark.parametrize(
    "layout", ["NTHWC", "NTCHW", "TNHWC", "TNCHW", "CNTHW", "HWNTC", "TCHW", "THWC"]
)
def test_a_layout_names_the_axes(tmp_path, layout):
    one = "N" not in layout
    axes = ["NTHWC".index(axis) for axis in ("N" * one + layout)]
    array = np.ascontiguousarray(FRAMES.transpose(axes))
    np.save(tmp_path / "a.npy", array[0] if one else array)
    hickle(tmp_path / "a.hkl", array[0] if one else array, 4)
    for name in ("a.npy", "a.hkl"):
        source = open_source(str(tmp_path / name), **SIZE, layout=layout.lower())
        assert source.boundaries == ((0,) if one else (0, 5))
        np.testing.assert_array_equal(
            source.read(0, source.length), FLAT[: source.length]
        )


def test_grey_layouts_and_moving_mnist_as_published(tmp_path, capsys):
    grey = FRAMES[..., 0]
    moved = grey.swapaxes(0, 1)
    np.save(tmp_path / "mnist_test_seq.npy", moved)
    np.save(tmp_path / "a.npy", moved)
    size = SIZE | {"channels": 1}
    published = open_source(str(tmp_path / "mnist_test_seq.npy"), **size)
    assert "shape [5, 2, 6, 8] is read as layout TNHW" in capsys.readouterr().err
    given = open_source(str(tmp_path / "a.npy"), **size, layout="TNHW")
    for source in (published, given):
        assert source.boundaries == (0, 5)
        np.testing.assert_array_equal(
            source.read(0, 10)[..., 0], grey.reshape(10, 6, 8)
        )


@pytest.mark.parametrize(
    ("shape", "readings"),
    [
        ((2, 5, 6, 8), "NTHW or TNHW"),
        ((5, 3, 6, 8), "TCHW or NTHW or TNHW"),
        ((2, 5, 6, 8, 3), "NTHWC or TNHWC"),
        ((2, 5, 3, 6, 8), "NTCHW or TNCHW"),
        ((3, 6, 8), "THW or CHW"),
        ((4, 6, 8), "THW or CHW"),
        ((6, 8, 3), "THW or HWC"),
        ((6, 8, 1), "THW or HWC"),
        ((6, 8, 4), "THW or HWC"),
        ((5, 3, 8), "THW or HCW"),
        ((5, 1, 8), "THW or HCW"),
        ((1, 3, 6, 8), "TCHW or NTHW"),
        ((3, 5, 6, 8), "NTHW or TNHW or CTHW"),
        ((4, 5, 6, 8), "NTHW or TNHW or CTHW"),
        ((5, 4, 6, 8), "TCHW or NTHW or TNHW"),
        ((1, 3, 3, 6, 8), "NTCHW or NCTHW"),
        ((5, 1, 3, 6, 8), "TNCHW or NCTHW"),
        ((9, 3, 8, 3), "THWC or TCHW"),
        ((9, 1, 8, 3), "THWC or TCHW"),
    ],
)
def test_a_layout_is_guessed_where_there_is_one_reading(tmp_path, shape, readings):
    np.save(tmp_path / "a.npy", np.zeros(shape, np.uint8))
    with pytest.raises(
        UserError, match=f"can be read as {readings}; choose one by --l"
    ):
        open_source(str(tmp_path / "a.npy"), **SIZE)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((5, 1, 6, 8), "TCHW"),
        ((1, 5, 6, 8), "NTHW"),
        ((1, 5, 6, 8, 3), "NTHWC"),
        ((1, 3, 5, 6, 8), "NCTHW"),
    ],
)
def test_one_reading_is_taken_and_said(tmp_path, shape, layout, capsys):
    array = RNG.integers(0, 256, shape, np.uint8)
    np.save(tmp_path / "a.npy", array)
    source = open_source(str(tmp_path / "a.npy"), **SIZE)
    assert (source.length, source.boundaries) == (5, (0,))
    expected = np.moveaxis(array, layout.find("C"), -1) if "C" in layout else array
    np.testing.assert_array_equal(
        source.read(0, 5), np.broadcast_to(expected.reshape(5, 6, 8, -1), (5, 6, 8, 3))
    )
    assert f"is read as layout {layout}" in capsys.readouterr().err


def test_grey_sequences_with_their_channel_first_are_sequences(tmp_path):
    np.save(tmp_path / "a.npy", RNG.integers(0, 256, (5, 1, 7, 6, 8), np.uint8))
    source = open_source(str(tmp_path / "a.npy"), **SIZE)
    assert (source.length, source.boundaries) == (35, (0, 7, 14, 21, 28))


@pytest.mark.parametrize(
    "shape", [(5, 6, 8), (1, 6, 8), (5, 6, 8, 1), (3, 6, 8, 3), (1, 6, 8, 3)]
)
def test_frames_in_the_usual_order_need_no_layout(tmp_path, shape, capsys):
    np.save(tmp_path / "a.npy", np.zeros(shape, np.uint8))
    assert open_source(str(tmp_path / "a.npy"), **SIZE).length == shape[0]
    assert "layout" not in capsys.readouterr().err
    # Frames of one column: no other axis can be colours.
    np.save(tmp_path / "a.npy", np.zeros((5, 6, 1, 3), np.uint8))
    narrow = open_source(str(tmp_path / "a.npy"), height=6, width=1)
    assert (narrow.length, narrow.width) == (5, 1)
    # Of three frames that open sequences, the first axis is time.
    np.savez(tmp_path / "a.npz", frames=np.zeros((3, 6, 8), np.uint8), boundaries=[0])
    assert open_source(str(tmp_path / "a.npz"), **SIZE).length == 3


@pytest.mark.parametrize("layout", ["HWC", "CHW", "WCH"])
def test_a_picture_is_a_film_of_one_frame(tmp_path, layout):
    """An array [3, H, W] was read as three grey frames."""
    axes = ["HWC".index(axis) for axis in layout]
    np.save(tmp_path / "a.npy", FLAT[0].transpose(axes))
    source = open_source(str(tmp_path / "a.npy"), **SIZE, layout=layout)
    assert source.length == 1
    np.testing.assert_array_equal(source.read(0, 1), FLAT[:1])


def test_pictures_with_transparency_are_refused_with_the_way_out(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 4, 5, 6, 8), np.uint8))
    with pytest.raises(UserError, match=r"layout=NCTHW: C is 4 .*leave out a fourth"):
        open_source(str(tmp_path / "a.npy"), **SIZE)


def test_a_layout_that_does_not_fit_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((5, 4, 6, 8), np.uint8))
    np.savez(tmp_path / "b.npz", frames=FRAMES, boundaries=[0, 3])
    for name, layout, message in (
        ("a.npy", "THW", "names 3 axes, and the array .* has 4, .*expected one letter"),
        ("a.npy", "TCHW", "C is 4 in the shape .*; expected an axis of 1 or 3"),
        ("a.npy", "TTHW", "expected H and W, and perhaps N, T and C, each once"),
        ("a.npy", "THWX", "expected H and W"),
        ("b.npz", "NTHWC", "holds boundaries, and layout=NTHWC has an axis N"),
    ):
        with pytest.raises(UserError, match=message):
            open_source(str(tmp_path / name), **SIZE, layout=layout)
    with pytest.raises(
        UserError, match="layout=THWC with data=walk: expected an array"
    ):
        open_source("walk", **SIZE, layout="THWC")
    (tmp_path / "pictures").mkdir()
    Image.fromarray(FLAT[0]).save(tmp_path / "pictures" / "0.png")
    (tmp_path / "list.txt").write_text("pictures/0.png\n")
    for name in ("pictures", "list.txt"):  # It was passed over.
        with pytest.raises(UserError, match=r"layout=THWC with .*: expected an array"):
            open_source(str(tmp_path / name), **SIZE, layout="THWC")
    (tmp_path / "arrays.txt").write_text("a.npy\na.npy\n")
    listed = open_source(str(tmp_path / "arrays.txt"), **SIZE, layout="TNHW")
    assert listed.boundaries == tuple(range(0, 40, 5))
    (tmp_path / "c.mp4").write_text("none")
    with pytest.raises(UserError, match=r"layout=THWC with .*: expected an array"):
        open_source(str(tmp_path / "c.mp4"), **SIZE, layout="THWC")


@pytest.mark.parametrize(
    ("kind", "advice"),
    [("float32", "divide floats up to 255"), ("int64", r"by \.astype\('uint8'\)")],
)
def test_pixels_of_another_range_are_refused_with_the_way_to_frames(
    tmp_path, kind, advice
):
    """The range was named, and not what to do."""
    np.save(tmp_path / "a.npy", FLAT.astype(kind))
    with pytest.raises(UserError, match=advice):
        open_source(str(tmp_path / "a.npy"), **SIZE)
