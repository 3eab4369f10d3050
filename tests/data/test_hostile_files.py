"""Files that mean harm are refused at once, in one line, in little memory.

What the libraries refuse is tried through ours: pickles (NumPy), PostScript and huge
pictures (Pillow), playlists (FFmpeg), links (h5py).
"""

import hashlib
import os
import resource
import signal
import socket
import struct
import zipfile
import zlib

import h5py
import numpy as np
import pytest
from PIL import Image, ImageOps

from prednet_jax import data, weights
from prednet_jax.data.frames import fingerprint
from prednet_jax.errors import UserError

SECRET = "root:$6$secret"
PIXELS = np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)


@pytest.fixture
def guarded():
    """What hangs for a minute is ended, and what takes a gigabyte fails."""

    def hung(number, frame):
        raise TimeoutError("an input hung")

    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 2**30, limits[1]))
    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    resource.setrlimit(resource.RLIMIT_AS, limits)


def refused(path, message, use=None):
    """One short line, which shows nothing of a foreign file."""
    with pytest.raises(UserError, match=message) as caught:
        (use or read)(path)
    text = str(caught.value)
    assert "\n" not in text
    assert SECRET not in text
    assert len(text) < 600 + 2 * len(str(path))


def read(path, **options):
    source = data.open_source(str(path), height=8, width=8, **options)
    return source.read(0, source.length)


def npy(shape, dtype="|u1"):
    text = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    text = text.ljust(-(len(text) + 11) % 64 + len(text)) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def archive(path, name, content, **central):
    """A zip archive of one file; what its directory says of it may be false."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.npy", content)
        for field, value in central.items():
            setattr(file.infolist()[0], field, value)
    return path


def bomb(path, name, shape, size):
    """An archive whose one array of zeros takes a thousand times its own size."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    head, step = npy(shape), 2**24
    start = squeeze.compress(head) + squeeze.flush(zlib.Z_FULL_FLUSH)
    part = squeeze.compress(bytes(step)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    content = start + part * (size // step) + squeeze.flush()
    deflated = {"compress_type": zipfile.ZIP_DEFLATED}
    return archive(path, name, content, file_size=len(head) + size, **deflated)


EIGHT = 8 * 2**30


def test_archives(tmp_path, guarded):
    whole = npy((3, 12, 16, 3)) + PIXELS.tobytes() * 3
    np.savez(tmp_path / "flipped.npz", frames=np.stack([PIXELS] * 3))
    flipped = bytearray((tmp_path / "flipped.npz").read_bytes())
    flipped[len(flipped) // 2] ^= 1
    (tmp_path / "flipped.npz").write_bytes(flipped)
    (tmp_path / "cut.npz").write_bytes(flipped[:-300])
    huge = npy((1_000_000, 120, 160, 5))
    refused(archive(tmp_path / "a.npz", "frames", huge), "not a readable .npz")
    zeros = bomb(tmp_path / "b.npz", "frames", (2**25, 16, 16, 1), EIGHT)
    refused(zeros, "more than 4294967296 bytes")
    refused(archive(tmp_path / "c.npz", "frames", whole, flag_bits=1), "encrypted")
    refused(archive(tmp_path / "d.npz", "frames", npy((-1, 8, 8, 3))), "not a readable")
    refused(tmp_path / "flipped.npz", "Bad CRC")
    refused(tmp_path / "cut.npz", "not a zip file")
    zeros = bomb(tmp_path / "b.model", "predictor/ConvP0/W", (EIGHT,), EIGHT)
    refused(zeros, "more than", weights.load)


def test_what_is_no_regular_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # Names of sockets are short.
    for name in ("pipe.npz", "pipe.mp4", "pipe.png"):
        os.mkfifo(name)
    with socket.socket(socket.AF_UNIX) as plug:
        plug.bind("socket.txt")
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    (tmp_path / "list.txt").write_text("pipe.png\n")
    for name in ("pipe.npz", "pipe.mp4", "/dev/zero"):
        refused(name, "is a pipe, a device or a socket, not a regular file")
    refused("socket.txt", "cannot be read")
    refused("loop.txt", "cannot be read")
    refused("list.txt", "line 1: no file 'pipe.png'")
    refused(str(tmp_path), r"pipe\.png: is a pipe")
    for name in ("a" * 5000, "~nobody_here/x.txt", "a\0b"):
        refused(name, "data=")
    for name in ("pipe.npz", "/dev/zero"):
        refused(name, "is a pipe", weights.load)
    refused(".", "is a directory", weights.load)


def test_lists_stay_in_their_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.txt").write_text(f"{SECRET}\n")
    Image.fromarray(PIXELS).save("0.png")
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "away").symlink_to(tmp_path)
    Image.fromarray(PIXELS).save(lists / "away.png")

    def listed(text, **options):
        content = text.encode() if isinstance(text, str) else text
        (lists / "list.txt").write_bytes(content)
        return read(lists / "list.txt", **options)

    outside = r"line 1: names a file outside.*--allow_outside"
    for text in ("../secret.txt", "../0.png", f"{tmp_path}/0.png", "away/secret.txt"):
        refused(text, outside, listed)
    refused("list.txt", r"its lists name .*list\.txt, which is no image", listed)
    refused("a\0b.png", "line 1: no file", listed)
    refused("away.png".encode("utf-16"), "not UTF-8 at byte 0", listed)
    refused("away", "line 1: no file", listed)
    for text in (b"\xef\xbb\xbfaway.png", b"away.png\r\naway.png\r\n"):
        assert listed(text).any()
    assert listed("../0.png", allow_outside=True).any()


def png(width, height, *, depth=8, rows=b""):
    """A PNG in colour, chunk by chunk; without rows it claims a size only."""

    def chunk(kind, body):
        crc = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)

    head = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0)
    end = chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + end


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 12\n", "none of BMP, GIF"),
        (png(16, 12, depth=16, rows=bytes(12 * 97)), "16 bits a channel"),
        (b"P6 16 12 65535\n" + bytes(2 * 16 * 12 * 3), "16 bits a channel"),
        (png(13000, 13000), "13000x13000 pixels.*67108864"),
        (png(130000, 130000), "not a readable image|pixels"),
        (png(16, 12, rows=bytes(400))[:80], "not a readable image"),
        (b"", "none of BMP, GIF"),
    ],
)
def test_pictures(tmp_path, content, message, guarded):
    (tmp_path / "0.png").write_bytes(content)
    refused(tmp_path, rf"0\.png: .*({message})")


@pytest.mark.parametrize("orientation", [1, 3, 6, 7, 9])
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_exif_rotations_are_honoured(tmp_path, orientation, suffix):
    """As Pillow's own `exif_transpose` turns them; the frame's size is the turned."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(PIXELS).save(tmp_path / f"0.{suffix}", exif=exif)
    with Image.open(tmp_path / f"0.{suffix}") as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    height, width = expected.shape[:2]
    assert (height > width) == (orientation in (5, 6, 7, 8))
    source = data.open_source(str(tmp_path), height=height, width=width)
    np.testing.assert_array_equal(source.read(0, 1)[0], expected)


def test_fingerprints_of_pictures_are_those_of_every_published_run(tmp_path):
    """A rotation is in the fingerprint, and nothing else is."""
    prints = []
    for turn in (1, 3):
        exif = Image.Exif()
        exif[0x0112] = turn
        path = tmp_path / "0.jpg"
        Image.fromarray(PIXELS).save(path, exif=exif)
        size = {"height": 8, "width": 8, "crop": "center"}
        prints.append(data.open_source(str(tmp_path), **size).fingerprint)
        if turn == 1:
            cut = {"size": (8, 8, 3), "crop": "center", "offset": (0, 0)}
            digests = [hashlib.sha256(path.read_bytes()).hexdigest()]
            images = {"reader": "images", "files": digests, "boundaries": (0,)}
            plain = fingerprint(**cut, **images)
    assert prints[0] == plain
    assert prints[0] != prints[1]


LEAF = "p/p/layer_i_0/kernel:0"


def test_hdf5_that_leads_elsewhere_or_is_huge(tmp_path, guarded):
    huge = tmp_path / "huge.hdf5"
    (tmp_path / "secret.txt").write_text(SECRET)

    def made(name, make):
        with h5py.File(tmp_path / name, "w") as file:
            make(file)
        return tmp_path / name

    def dataset(name, shape, dtype="f4", **options):
        return made(name, lambda f: f.create_dataset(LEAF, shape, dtype, **options))

    dataset(huge.name, (100_000, 100_000, 3, 3), chunks=(1, 1, 3, 3))
    refused(huge, "more than 4294967296 bytes", weights.load)
    stored = [(str(tmp_path / "secret.txt"), 0, 36)]
    external = dataset("a.hdf5", (3, 3, 1, 1), external=stored)
    refused(external, "lies in another file", weights.load)

    def virtual(file):
        layout = h5py.VirtualLayout((3, 3, 1, 1), "f4")
        layout[:] = h5py.VirtualSource(huge, LEAF, (3, 3, 1, 1))
        file.create_virtual_dataset(LEAF, layout)

    refused(made("b.hdf5", virtual), "lies in another file", weights.load)
    for link in (h5py.ExternalLink(str(huge), "/p"), h5py.SoftLink("/elsewhere")):
        linked = made("c.hdf5", lambda file, link=link: file.update({"p": link}))
        refused(linked, "no PredNet layer", weights.load)
    strings = dataset("e.hdf5", (3,), h5py.string_dtype())
    refused(strings, "expected floating-point numbers", weights.load)
    two = dataset("f.hdf5", (3, 3, 1, 1))
    with h5py.File(two, "a") as file:
        file.create_dataset(f"b/{LEAF}", (3, 3, 1, 1), "f4")
    refused(two, "holds 2 networks, below", weights.load)
    (tmp_path / "cut.hdf5").write_bytes(two.read_bytes()[:600])
    refused(tmp_path / "cut.hdf5", "not a readable HDF5", weights.load)
