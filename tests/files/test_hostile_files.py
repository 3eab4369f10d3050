"""Hostile files are refused at once, in one line that does not show their content."""

import os
import resource
import signal

import numpy as np
import pytest
from PIL import Image

from prednet_jax import data, weights
from prednet_jax.errors import UserError

# What a message has to say of some of them; of the others it has to be one line.
MESSAGES = {
    "PostScript named .png": "none of BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP",
    "PNG of 16 bits a colour": "16 bits a channel",
    "PPM of 16 bits a colour": "16 bits a channel",
    "PNG that claims 13000x13000": "13000x13000 pixels.*67108864",
    "a pipe among the pictures": "3.png: is a pipe",
    "list names ../secret.txt": "line 1: names a file outside.*--allow_outside",
    "list names a file by its whole path": "outside",
    "list names a file through a link to outside": "outside",
    "the list is a link to a secret": "line 1: no file, neither",
    "list that names itself": "own.txt, which is no image",
    ".npz that claims 93 GB in 300 bytes": "claims 96000000000 bytes",
    ".npz of 8 GB of zeros, deflated to 8 MB": "more than 4294967296 bytes",
    "encrypted .npz": "encrypted",
    ".npz with one bit flipped": "Bad CRC",
    "video with damaged frames": "frame 0 of 24 cannot be decoded",
    "pipe named .mp4": "is a pipe",
    "socket named .txt": "is a socket",
    "/dev/zero": "is a device",
    "weights: NaN": "1 values that are not finite, of 81",
    "weights: complex": "complex64; expected floating-point",
    "weights: a scalar": r"shape \(\); expected 4 axes",
    "weights: two networks": "2 networks, below 'other/' and 'predictor/'",
    "weights: deflate bomb": "more than 4294967296 bytes",
    "HDF5 that claims 360 GB": "more than 4294967296 bytes",
    "HDF5 whose numbers lie in another file": "lies in another file",
    "HDF5 with a link to another file": "is a link",
    "HDF5 of two networks": "2 networks",
}


def use(case):
    """Opens what a case points to, and reads all of it."""
    flag, _, path = case.flags[0].partition("=")
    if flag == "--init_weights":
        return weights.load(path, height=8, width=8)
    outside = "--allow_outside" in case.flags
    source = data.open_source(path, height=8, width=8, allow_outside=outside)
    return source.read(0, source.length)


@pytest.fixture
def guarded(hostile, monkeypatch):
    """What hangs is ended, and what takes memory fails."""
    monkeypatch.chdir(hostile[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 2**30, limits[1]))
    before = signal.signal(signal.SIGALRM, _hung)
    yield hostile
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    resource.setrlimit(resource.RLIMIT_AS, limits)


def _hung(number, frame):
    raise TimeoutError("an input hung")


def test_every_input(guarded, hostile_files):
    root, cases = guarded
    assert MESSAGES.keys() <= cases.keys()
    contradictions = {name for name in cases if name.startswith("weights and other")}
    contradictions |= {name for name in cases if name.startswith("weights and another")}
    for name, case in cases.items():
        signal.alarm(60)
        if not case.status or name in contradictions:
            use(case)
            continue
        with pytest.raises(UserError, match=MESSAGES.get(name)) as caught:
            use(case)
        text = str(caught.value)
        assert "\n" not in text, name
        assert hostile_files.SECRET not in text, name
        assert len(text) < 500 + len(str(root)) + 5000 * ("5000" in name), name


def test_a_foreign_line_is_never_quoted(tmp_path):
    """Not even of a list that may lie outside, and names what is missing."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "foreign.txt").write_text("password:x:0\n")
    (inside / "list.txt").write_text("../foreign.txt\n")
    with pytest.raises(UserError, match="line 1: no file, neither") as caught:
        data.open_source(
            str(inside / "list.txt"), height=8, width=8, allow_outside=True
        )
    assert "password" not in str(caught.value)


@pytest.mark.parametrize("orientation", range(1, 10))
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_exif_rotations_are_honoured(tmp_path, orientation, suffix):
    """As Pillow's own `exif_transpose` turns them; the frame's size is the turned."""
    from PIL import ImageOps

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (12, 20, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    for i in range(2):
        Image.fromarray(pixels).save(tmp_path / f"{i}.{suffix}", exif=exif)
    with Image.open(tmp_path / f"0.{suffix}") as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    height, width = expected.shape[:2]
    assert (height > width) == (orientation in (5, 6, 7, 8))
    source = data.open_source(str(tmp_path), height=height, width=width)
    np.testing.assert_array_equal(source.read(0, 1)[0], expected)


def test_a_rotation_is_in_the_fingerprint_and_nothing_else_is_new(tmp_path):
    """Fingerprints of pictures without a rotation are those of every published run."""
    for name, turn in (("plain", None), ("turned", 3)):
        (tmp_path / name).mkdir()
        exif = Image.Exif()
        if turn:
            exif[0x0112] = turn
        picture = Image.fromarray(np.full((8, 8, 3), 9, np.uint8))
        picture.save(tmp_path / name / "0.jpg", exif=exif)
    plain, turned = (
        data.open_source(str(tmp_path / name), height=8, width=8).fingerprint
        for name in ("plain", "turned")
    )
    assert plain != turned
    content = (tmp_path / "plain" / "0.jpg").read_bytes()
    assert plain == _fingerprint_before([content])


def _fingerprint_before(contents):
    import hashlib

    from prednet_jax.data.source import fingerprint

    return fingerprint(
        size=(8, 8, 3),
        crop="center",
        offset=(0, 0),
        reader="images",
        files=[hashlib.sha256(content).hexdigest() for content in contents],
        boundaries=(0,),
    )


def test_other_faults_are_not_hidden(tmp_path, monkeypatch):
    """A machine without memory is no broken picture."""

    def full(*args, **kwargs):
        raise MemoryError

    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "0.png")
    source = data.open_source(str(tmp_path), height=8, width=8)
    monkeypatch.setattr(Image.Image, "convert", full)
    with pytest.raises(MemoryError):
        source.read(0, 1)


def test_a_list_is_opened_with_few_calls(tmp_path, monkeypatch):
    """One look at each name, one opening, no decoding: 200,000 pictures in seconds."""
    count = 50
    for i in range(count):
        Image.fromarray(np.full((8, 8, 3), i, np.uint8)).save(tmp_path / f"{i}.png")
    (tmp_path / "list.txt").write_text("".join(f"{i}.png\n" for i in range(count)))
    calls = {"open": 0, "stat": 0, "lstat": 0, "Image.open": 0}

    def counted(module, name, key):
        original = getattr(module, name)

        def call(*args, **kwargs):
            calls[key] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    for name in ("open", "stat", "lstat"):
        counted(os, name, name)
    counted(Image, "open", "Image.open")
    source = data.open_source(str(tmp_path / "list.txt"), height=8, width=8)
    # And a few for the list itself and the folders above it.
    assert count <= calls["open"] <= count + 5
    assert calls["stat"] + calls["lstat"] <= 2 * count + 60
    assert calls["Image.open"] == 0
    before = dict(calls)
    assert source.reader().fingerprint == source.fingerprint
    assert calls == before
