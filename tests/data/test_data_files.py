import os
import shutil

import h5py
import jax
import numpy as np
import pytest
from PIL import Image

from prednet_jax.data import open_source
from prednet_jax.errors import UserError


def picture(i, height=12, width=16):
    """A picture with a gradient that tells its number, and that no two share."""
    y, x = np.mgrid[:height, :width]
    planes = [10 * i + x, 200 - 3 * i - y, 5 * x + 3 * y]
    return np.stack(planes, -1).astype(np.uint8)


def write_images(folder, numbers, name="f_{}.png", **size):
    folder.mkdir(exist_ok=True)
    for i in numbers:
        Image.fromarray(picture(i, **size)).save(folder / name.format(i))
    return folder


def pictures(numbers, **size):
    return np.stack([picture(i, **size) for i in numbers])


FULL = {"height": 12, "width": 16}


def test_folder_in_natural_order(tmp_path):
    folder = write_images(tmp_path / "f", range(12))
    (folder / "notes.txt").write_text("not an image")
    (folder / ".hidden.png").write_text("nor this")
    source = open_source(str(folder), **FULL)
    assert (source.length, source.boundaries) == (12, (0,))
    np.testing.assert_array_equal(source.read(0, 12), pictures(range(12)))
    np.testing.assert_array_equal(source.read(9, 11), pictures([9, 10]))


def test_list_of_images(tmp_path, monkeypatch):
    write_images(tmp_path / "with space", [3, 1, 2])
    write_images(tmp_path / "plain", [4])
    absolute = tmp_path / "plain" / "f_4.png"
    (tmp_path / "list.txt").write_text(
        f"with space/f_3.png\n\n with space/f_1.png \nplain/f_4.png 7\n{absolute}\n"
    )
    # From elsewhere: the paths are found beside the list.
    monkeypatch.chdir(tmp_path / "plain")
    source = open_source(str(tmp_path / "list.txt"), **FULL)
    np.testing.assert_array_equal(source.read(0, 4), pictures([3, 1, 4, 4]))


def test_published_list_of_lists(tmp_path, monkeypatch):
    # As generate_image.py writes them: inside the folder, relative to where it ran.
    for name, numbers in (("a", [0, 1, 2]), ("b", [5, 6])):
        write_images(tmp_path / name, numbers)
        lines = [f"{name}/f_{i}.png" for i in numbers]
        (tmp_path / name / "train_list.txt").write_text("\n".join(lines))
    (tmp_path / "sequences.txt").write_text("a/train_list.txt\nb/train_list.txt\n")
    monkeypatch.chdir(tmp_path)
    source = open_source("sequences.txt", **FULL)
    assert source.boundaries == (0, 3)
    np.testing.assert_array_equal(source.read(0, 5), pictures([0, 1, 2, 5, 6]))
    one = open_source("a/train_list.txt", **FULL)
    assert one.boundaries == (0,)
    assert one.length == 3


def test_npz(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, frames=pictures(range(6)), boundaries=np.array([0, 4]))
    source = open_source(str(path), **FULL)
    assert source.boundaries == (0, 4)
    np.testing.assert_array_equal(source.read(1, 6), pictures(range(1, 6)))
    np.savez(path, frames=pictures(range(6)))
    assert open_source(str(path), **FULL).boundaries == (0,)
    assert open_source(str(path), **FULL).fingerprint != source.fingerprint


def test_an_npy_is_mapped_and_grey_frames_have_no_channel(tmp_path):
    frames = pictures(range(6))
    np.save(tmp_path / "c.npy", frames)
    np.savez(tmp_path / "a.npz", frames)
    one, other = (open_source(str(tmp_path / n), **FULL) for n in ("a.npz", "c.npy"))
    np.testing.assert_array_equal(other.read(1, 6), frames[1:])
    assert one.fingerprint == other.fingerprint
    np.save(tmp_path / "grey.npy", frames[..., 0])
    grey = open_source(str(tmp_path / "grey.npy"), **FULL, channels=1)
    np.testing.assert_array_equal(grey.read(0, 6), frames[..., :1])
    for dtype in (np.float16, np.float64):
        np.save(tmp_path / "f.npy", (frames / 255).astype(dtype))
        fractions = open_source(str(tmp_path / "f.npy"), **FULL)
        np.testing.assert_array_equal(fractions.read(1, 6), frames[1:])
    (tmp_path / "cut.npy").write_bytes((tmp_path / "c.npy").read_bytes()[:-9])
    with pytest.raises(UserError, match=r"cut\.npy: not a readable \.npy"):
        open_source(str(tmp_path / "cut.npy"), **FULL)


def test_a_folder_of_folders_is_a_sequence_each(tmp_path, capsys):
    for name, numbers in (("b10", [5, 6]), ("b9", [0, 1, 2]), (".hidden", [7])):
        write_images(tmp_path / name, numbers)
    source = open_source(str(tmp_path), **FULL)
    assert source.boundaries == (0, 3)
    np.testing.assert_array_equal(source.read(0, 5), pictures([0, 1, 2, 5, 6]))
    (tmp_path / "film.mp4").write_text("")
    with pytest.raises(UserError, match="holds folders of images, and videos"):
        open_source(str(tmp_path), **FULL)
    write_images(tmp_path, [9], "cover{}.png")
    assert open_source(str(tmp_path), **FULL).length == 1
    assert (
        "other folders and files of other kinds are left out, 6 files"
        in capsys.readouterr().err
    )


def test_pictures_that_move_or_show_what_is_behind_are_refused(tmp_path):
    """Before, a frame was the first picture, and what alpha had hidden."""
    stack = [Image.fromarray(picture(i)) for i in range(3)]
    clear = np.dstack([picture(0), np.full((12, 16), 255, np.uint8)])
    clear[3, 3, 3] = 254
    a, b = (write_images(tmp_path / name, range(2)) for name in "ab")
    stack[0].save(a / "a.gif", save_all=True, append_images=stack[1:])
    Image.fromarray(clear).save(b / "b.png")
    with pytest.raises(UserError, match=r"a\.gif: holds 3 pictures; accepted.*video"):
        open_source(str(a), **FULL)
    with pytest.raises(UserError, match=r"b\.png: has transparent pixels; accepted"):
        open_source(str(b), **FULL)


def test_fingerprint_is_of_content_not_of_place(tmp_path):
    one = write_images(tmp_path / "one", range(3))
    two = write_images(tmp_path / "two", range(3), name="g{}.png")
    prints = {open_source(str(folder), **FULL).fingerprint for folder in (one, two)}
    assert len(prints) == 1
    cut = open_source(str(one), height=8, width=8, crop="center")
    prints.add(cut.fingerprint)
    prints.add(open_source(str(one), height=8, width=8, offset=(1, 0)).fingerprint)
    prints.add(open_source(str(one), height=8, width=8, crop="resize").fingerprint)
    write_images(two, [2], name="g0.png")
    prints.add(open_source(str(two), **FULL).fingerprint)
    assert len(prints) == 5


def test_grey_and_colour(tmp_path):
    folder = tmp_path / "grey"
    folder.mkdir()
    Image.fromarray(picture(1)[..., 0]).save(folder / "0.png")
    Image.fromarray(picture(1)).convert("RGBA").save(folder / "1.png")
    colour = open_source(str(folder), **FULL).read(0, 2)
    np.testing.assert_array_equal(colour[0], np.repeat(picture(1)[..., :1], 3, -1))
    np.testing.assert_array_equal(colour[1], picture(1))
    grey = open_source(str(folder), **FULL, channels=1).read(0, 2)[..., 0]
    np.testing.assert_array_equal(grey[0], picture(1)[..., 0])
    # Pillow's own luma is the oracle.
    expected = np.asarray(Image.fromarray(picture(1)).convert("L"))
    np.testing.assert_array_equal(grey[1], expected)


@pytest.mark.parametrize("offset", [(0, 0), (2, -1), (-4, 3)])
def test_crop_is_the_published_one(tmp_path, offset):
    folder = write_images(tmp_path / "f", [1], height=13, width=17)
    cut = {"height": 6, "width": 8, "crop": "center", "offset": offset}
    frame = open_source(str(folder), **cut).read(0, 1)[0]
    # read_image of main.py, with --size 8,6.
    image = picture(1, height=13, width=17)
    top = offset[1] + (image.shape[0] - 6) // 2
    left = offset[0] + (image.shape[1] - 8) // 2
    np.testing.assert_array_equal(frame, image[top : top + 6, left : left + 8])


def test_what_would_lose_more_than_half_is_scaled_and_either_is_said(tmp_path):
    folder = write_images(tmp_path / "f", [1], height=12, width=16)
    write_images(folder, [2], height=8, width=12)
    half, less = {"height": 8, "width": 12}, {"height": 8, "width": 11}
    for size, crop, said in (
        (
            half,
            "center",
            "of which 12x8 is cut out, 50 % of the first; --crop=antialias",
        ),
        (less, "antialias", "16x12 (width x height; others differ), scaled to 11x8"),
    ):
        source = open_source(str(folder), **size)
        same = open_source(str(folder), **size, crop=crop)
        assert said in source.done == same.done
        assert source.fingerprint == same.fingerprint
        np.testing.assert_array_equal(source.read(0, 2), same.read(0, 2))
    moved = open_source(str(folder), **less, offset=(1, 0))
    assert "cut out" in moved.done
    assert open_source(str(write_images(tmp_path / "g", [1])), **FULL).done == ""
    # The first has the size of a frame: that the other is cut was not said.
    write_images(tmp_path / "g", [2], height=FULL["height"] + 2, width=FULL["width"])
    assert open_source(str(tmp_path / "g"), **FULL).done.startswith(
        "pictures of 16x12 (width x height; others differ), of which 16x12 is cut out, "
        "100 % of the first"
    )


@pytest.mark.parametrize(("height", "width"), [(5, 7), (24, 40), (12, 16), (1, 1)])
def test_resize_is_bilinear_between_pixel_centres(tmp_path, height, width):
    folder = write_images(tmp_path / "f", [1])
    source = open_source(str(folder), height=height, width=width, crop="resize")
    image = picture(1).astype(float)

    def taps(size, new):
        at = np.clip((np.arange(new) + 0.5) * size / new - 0.5, 0, size - 1)
        weights = 1 - np.abs(at[:, None] - np.arange(size))
        return np.clip(weights, 0, 1)

    expected = np.einsum("yh,hwc,xw->yxc", taps(12, height), image, taps(16, width))
    # Half a level of rounding, and 255 / 2^11 of the integer weights.
    assert np.abs(source.read(0, 1)[0] - expected).max() <= 0.5 + 255 / 2**11


@pytest.mark.parametrize(("h", "w", "c"), [(5, 7, 3), (6, 4, 1), (24, 40, 3)])
def test_antialias_is_that_of_jax_image(tmp_path, h, w, c):
    np.save(tmp_path / "one.npy", picture(1)[None, ..., :c])
    fit = {"height": h, "width": w, "channels": c, "crop": "antialias"}
    frame = open_source(str(tmp_path / "one.npy"), **fit).read(0, 1)[0]
    image = picture(1)[..., :c].astype(np.float32)
    expected = np.asarray(jax.image.resize(image, (h, w, c), "bilinear"))
    assert np.abs(frame - expected).max() <= 1


def test_a_broken_picture_is_named_when_it_is_read(tmp_path):
    folder = write_images(tmp_path / "f", range(3))
    whole = (folder / "f_1.png").read_bytes()
    (folder / "f_1.png").write_bytes(whole[: len(whole) // 2])
    source = open_source(str(folder), **FULL)
    source.read(0, 1)
    with pytest.raises(UserError, match="frames 2:4"):
        source.read(2, 4)
    with pytest.raises(UserError, match=r"f_1\.png: not a readable image"):
        source.read(0, 3)


def test_a_file_that_changes_while_it_is_in_use_is_refused(tmp_path):
    """Other frames were read than those of the fingerprint, or a process died."""
    films = np.repeat(np.repeat(pictures(range(40)), 2, 1), 2, 2)

    def npy(path):
        np.save(path, films)

    def hkl(path):
        with h5py.File(path, "w") as file:
            file["data_0"] = films

    def gif(path):
        first, *others = map(Image.fromarray, films)
        first.save(path, save_all=True, append_images=others, duration=100)

    def png(path):
        write_images(path.parent, range(40))

    kinds = (npy, "a.npy"), (hkl, "a.hkl"), (gif, "a.gif"), (png, "f_1.png")
    for write, name in kinds:
        path = tmp_path / f"of_{name}" / name
        path.parent.mkdir()
        write(path)
        given = path.parent if name == "f_1.png" else path
        source = open_source(str(given), crop="antialias", **FULL)
        whole, content = source.read(0, 40), path.read_bytes()
        # The same content at another time, or in another file, is no change.
        os.utime(path, (1e9, 1e9))
        if write in (gif, png):  # The others stay open.
            shutil.copy(path, tmp_path / "copy")
            os.replace(tmp_path / "copy", path)
        np.testing.assert_array_equal(source.read(0, 40), whole)
        changes = content[: len(content) // 2], content[:-9] + bytes(9), content[::-1]
        for number, change in enumerate(changes):
            path.write_bytes(change)
            os.utime(path, (number, number))
            with pytest.raises(UserError, match=rf"{name}.*(changed|not a readable)"):
                source.read(0, 40)
        path.write_bytes(content)
        np.testing.assert_array_equal(source.read(0, 40), whole)


# Files that are damaged or mean harm are in test_hostile_files.py.
REFUSED = (
    ("nowhere", {}, r"nowhere'.*no such.*walk, digits.*\.npz"),
    ("", {}, "data='': no such source or file"),
    ("file.xyz", {}, r"file\.xyz.*unknown kind.*accepted"),
    ("empty", {}, r"empty: the folder holds no images.*\.png"),
    ("deep", {}, "more than 8 bits"),
    ("empty.txt", {}, "the list is empty.*one path per line"),
    ("missing.txt", {}, r"line 2: no file 'images/f_7\.png'"),
    ("mixed.txt", {}, r"mixed\.txt: the list names both images and other .*inner"),
    ("deeper.txt", {}, r"deeper\.txt: its lists name .*inner\.txt.*no image"),
    ("object.npz", {}, "Object arrays cannot be loaded.*accepted"),
    ("key.npz", {}, r"arrays \['images', 'others'\].*'frames', \[T, H, W, C\]"),
    ("range.npz", {}, r"float64 from -?\d\S* to 2.* frames 0 to 3; .*from 0 to 1"),
    ("dtype.npz", {}, r"int64 of shape .*of uint8 .*or of fractions"),
    ("shape.npz", {}, r"shape \[4, 3, 12, 16\] can be read as TCHW or"),
    ("bounds.npz", {}, "boundaries.*below its 4 frames"),
    ("floats.npz", {}, "boundaries is float64"),
    ("images", {"height": 14}, "16x12.*smaller than the crop.*antialias"),
    ("images", {"width": 8, "offset": (5, 0)}, "offset=.*-4 to 4 right"),
    ("images", {"crop": "middle"}, "crop='middle'.*center, antialias, resize"),
    ("images", {"crop": "resize", "offset": (1, 0)}, "offset=.*crop='center'"),
    ("images", {"offset": (1,)}, "offset=.*two numbers"),
    ("images", {"height": 0}, "height=0"),
    ("images", {"channels": 4}, "channels=4.*3 .RGB. or 1"),
    ("images", {"seed": -1}, "seed=-1"),
    ("walk", {"crop": "resize"}, "crop='resize'.*walk"),
)


def test_what_is_refused_is_named_on_one_line(tmp_path):
    write_images(tmp_path / "images", range(2))
    (tmp_path / "empty").mkdir()
    deep = tmp_path / "deep"
    deep.mkdir()
    Image.fromarray(np.full((12, 16), 4000, np.uint16)).save(deep / "0.png")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "missing.txt").write_text("images/f_0.png\nimages/f_7.png\n")
    (tmp_path / "inner.txt").write_text("images/f_0.png\n")
    (tmp_path / "mixed.txt").write_text("images/f_0.png\ninner.txt\n")
    (tmp_path / "deeper.txt").write_text("outer.txt\n")
    (tmp_path / "outer.txt").write_text("inner.txt\n")
    (tmp_path / "file.xyz").write_text("?")
    frames = pictures(range(4))
    np.savez(tmp_path / "key.npz", images=frames, others=frames)
    np.savez(tmp_path / "range.npz", frames=frames / 100)
    np.savez(tmp_path / "dtype.npz", frames=frames.astype(int))
    np.savez(tmp_path / "shape.npz", frames=frames.transpose(0, 3, 1, 2))
    np.savez(tmp_path / "bounds.npz", frames=frames, boundaries=np.array([0, 9]))
    np.savez(tmp_path / "floats.npz", frames=frames, boundaries=np.array([0.0]))
    np.savez(tmp_path / "object.npz", frames=np.array([{}], dtype=object))
    for data, options, message in REFUSED:
        path = data if data in ("walk", "") else str(tmp_path / data)
        with pytest.raises(UserError, match=message) as caught:
            open_source(path, **{**FULL, **options})
        assert "\n" not in str(caught.value)
