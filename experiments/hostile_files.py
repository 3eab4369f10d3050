"""Files that should not be trusted, made small: what `hostile_inputs.py` tries.

Each case is what is wrong and the flags of `train.py` that point to it.
"""

import dataclasses
import os
import socket
import struct
import zipfile
import zlib
from pathlib import Path

import h5py
import numpy as np
from PIL import Image

# What no message may show.
SECRET = "root:$6$secret"
SIZE = ("--channels=3,4", "--height=8", "--width=8")


@dataclasses.dataclass(frozen=True)
class Case:
    """One input.

    Attributes:
        name: what is special about it.
        flags: of train.py.
        status: with which the command has to end.
        late: whether the fault shows only when the picture is decoded, in training.
    """

    name: str
    flags: tuple[str, ...]
    status: int = 2
    late: bool = False


def make(root: Path, chainer: Path) -> list[Case]:
    """Writes every file below a folder.

    Args:
        root: an empty folder.
        chainer: a weight file of Chainer that is good.

    Returns:
        The cases.
    """
    (root / "secret.txt").write_text(f"{SECRET}\n")
    good = root / "good.model"
    good.write_bytes(chainer.read_bytes())
    return [
        *_pictures(root),
        *_lists(root),
        *_archives(root),
        *_videos(root),
        *_special(root),
        *_chainer(root, good),
        *_keras(root),
    ]


def _data(
    name: str, path: Path, *more: str, status: int = 2, late: bool = False
) -> Case:
    return Case(name, (f"--data={path}", *SIZE, *more), status, late)


def _weights(name: str, path: Path, *more: str) -> Case:
    return Case(name, (f"--init_weights={path}", *more))


def _pixels(height: int = 12, width: int = 16, bits: int = 8) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, 2**bits, (height, width, 3)).astype(f"u{bits // 8}")


def _folder(root: Path, name: str, content: bytes | None = None) -> Path:
    """A folder with three pictures, of which the first may be something else."""
    folder = root / name
    folder.mkdir()
    for i in range(3):
        Image.fromarray(_pixels()).save(folder / f"{i}.png")
    if content is not None:
        (folder / "0.png").write_bytes(content)
    return folder


def png(width: int, height: int, *, depth: int = 8, rows: bytes = b"") -> bytes:
    """A PNG in colour, chunk by chunk; without rows it claims a size only."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        crc = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)

    head = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0)
    end = chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + end


def _pictures(root: Path) -> list[Case]:
    deep = _pixels(bits=16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in deep)
    ppm = b"P6 16 12 65535\n" + deep.astype(">u2").tobytes()
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 12\nshowpage\n"
    whole = png(16, 12, rows=b"".join(b"\0" + r.tobytes() for r in _pixels()))
    small = _folder(root, "small")
    Image.fromarray(_pixels(6, 6)).save(small / "2.png")
    larger = _folder(root, "larger")
    Image.fromarray(_pixels(20, 30)).save(larger / "2.png")
    turned = _folder(root, "turned")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(_pixels()).save(turned / "3.jpg", exif=exif)
    pipe = _folder(root, "pipe_inside")
    os.mkfifo(pipe / "3.png")
    odd = Path(os.fsdecode(os.fsencode(root) + b"/n\xff\xfe"))
    odd.mkdir()
    for name in (b"/0\xff.png", b"/1.png", b"/2.png"):
        Image.fromarray(_pixels()).save(os.fsdecode(os.fsencode(odd) + name))
    (root / "none").mkdir()
    return [
        _data("PostScript named .png", _folder(root, "script", script)),
        _data(
            "PNG of 16 bits a colour",
            _folder(root, "deep_png", png(16, 12, depth=16, rows=rows)),
        ),
        _data("PPM of 16 bits a colour", _folder(root, "deep_ppm", ppm)),
        _data("PNG that claims 13000x13000", _folder(root, "big", png(13000, 13000))),
        _data(
            "PNG cut in half",
            _folder(root, "cut", whole[: len(whole) // 2]),
            late=True,
        ),
        _data("empty PNG", _folder(root, "empty_png", b"")),
        _data("one picture smaller than the crop", small),
        _data("a pipe among the pictures", pipe),
        _data("folder without pictures", root / "none"),
        _data("one picture larger than the others", larger, status=0),
        _data("JPEG turned by EXIF", turned, status=0),
        _data("names that are not UTF-8", odd, status=0),
    ]


def _lists(root: Path) -> list[Case]:
    images = _folder(root, "listed")
    names = [f"listed/{i}.png" for i in range(3)]
    lists = root / "lists"
    lists.mkdir()
    (lists / "away").symlink_to(root)
    (lists / "link.txt").symlink_to(root / "secret.txt")

    def written(name: str, text: str | bytes, folder: Path = lists) -> Path:
        path = folder / f"{name}.txt"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    text = "\n".join(names)
    os.mkfifo(lists / "pipe.png")
    inner = written("inner", text, root)
    written("outer", f"{inner.name}\n", root)
    return [
        _data("list names ../secret.txt", written("up", "../secret.txt\n")),
        _data("list names a file by its whole path", written("abs", f"{images}/0.png")),
        _data(
            "list names a file through a link to outside",
            written("through", "away/secret.txt\n"),
        ),
        _data("the list is a link to a secret", lists / "link.txt"),
        _data("list that names itself", written("own", "own.txt\n")),
        _data("list of lists of lists", written("deeper", "outer.txt\n", root)),
        _data("list names a pipe", written("names_pipe", "pipe.png\n")),
        _data("list with a zero byte", written("zero", "a\0b.png\n")),
        _data("list in UTF-16", written("utf16", text.encode("utf-16"), root)),
        _data("empty list", written("empty", "")),
        _data("list names what is missing", written("missing", "nowhere.png\n")),
        _data("list names a folder", written("folder", "away\n")),
        _data(
            "list with a byte-order mark",
            written("bom", b"\xef\xbb\xbf" + text.encode(), root),
            status=0,
        ),
        _data(
            "list with CRLF",
            written("crlf", text.replace("\n", "\r\n"), root),
            status=0,
        ),
        _data(
            "file outside, with --allow_outside",
            written("free", "\n".join(f"../{n}" for n in names)),
            "--allow_outside",
            status=0,
        ),
    ]


def npy(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    """The header of an .npy file of version 1."""
    text = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    text = text.ljust(-(len(text) + 11) % 64 + len(text)) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def archive(path: Path, name: str, content: bytes, **central: int) -> Path:
    """A zip archive of one file; what its directory says of it may be false."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.npy", content)
        for field, value in central.items():
            setattr(file.infolist()[0], field, value)
    return path


def bomb(path: Path, name: str, shape: tuple[int, ...], size: int) -> Path:
    """An archive whose one array of zeros takes `size` bytes, a thousand times its own.

    A deflate stream that is flushed whole can be repeated.
    """
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    head = npy(shape)
    start = squeeze.compress(head) + squeeze.flush(zlib.Z_FULL_FLUSH)
    step = 2**24
    part = squeeze.compress(bytes(step)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    content = start + part * (size // step) + squeeze.flush()
    return archive(
        path,
        name,
        content,
        compress_type=zipfile.ZIP_DEFLATED,
        file_size=len(head) + size,
    )


def _archives(root: Path) -> list[Case]:
    frames = np.stack([_pixels()] * 3)
    whole = root / "whole.npz"
    np.savez(whole, frames=frames)
    content = npy(frames.shape) + frames.tobytes()
    np.savez(root / "objects.npz", frames=np.array([{}], dtype=object))
    np.savez(root / "floats.npz", frames=frames / 255)
    np.savez(root / "other.npz", images=frames)
    (root / "cut.npz").write_bytes(whole.read_bytes()[:-300])
    flipped = bytearray(whole.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    (root / "flipped.npz").write_bytes(flipped)
    np.save(root / "array.npy", frames)
    (root / "array.npy").rename(root / "array.npz")
    huge = npy((1_000_000, 120, 160, 5))
    eight = 8 * 2**30
    return [
        _data(
            ".npz that claims 93 GB in 300 bytes",
            archive(root / "claims.npz", "frames", huge),
        ),
        _data(
            ".npz of 8 GB of zeros, deflated to 8 MB",
            bomb(root / "bomb.npz", "frames", (2**25, 16, 16, 1), eight),
        ),
        _data(
            "encrypted .npz",
            archive(root / "locked.npz", "frames", content, flag_bits=1),
        ),
        _data(
            ".npz with a side of -1",
            archive(root / "negative.npz", "frames", npy((-1, 8, 8, 3))),
        ),
        _data(".npz of pickled objects", root / "objects.npz"),
        _data(".npz of floating-point frames", root / "floats.npz"),
        _data(".npz without frames", root / "other.npz"),
        _data(".npz cut short", root / "cut.npz"),
        _data(".npz with one bit flipped", root / "flipped.npz"),
        _data(".npy named .npz", root / "array.npz"),
    ]


def _videos(root: Path) -> list[Case]:
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{root}/v.avi\n"
    (root / "playlist.mp4").write_text(playlist + "#EXT-X-ENDLIST\n")
    (root / "concat.mp4").write_text("ffconcat version 1.0\nfile v.avi\n")
    (root / "text.mp4").write_text("this is no video")
    video = _video(root / "v.avi")
    damaged = bytearray(video.read_bytes())
    for place in range(len(damaged) // 3, 2 * len(damaged) // 3, 97):
        damaged[place] ^= 0x55
    (root / "damaged.avi").write_bytes(damaged)
    video.rename(root / "v.mp4")
    return [
        _data("HLS playlist named .mp4", root / "playlist.mp4"),
        _data("list of FFmpeg named .mp4", root / "concat.mp4"),
        _data("text named .mp4", root / "text.mp4"),
        _data(
            "video with damaged frames",
            root / "damaged.avi",
            "--window=20",
            "--updates=1",
        ),
        _data("AVI named .mp4", root / "v.mp4", status=0),
    ]


def _video(path: Path, frames: int = 24) -> Path:
    import av

    rng = np.random.default_rng(0)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        stream.options = {"g": "12"}
        for _ in range(frames):
            pixels = rng.integers(0, 256, (32, 48, 3), dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def _special(root: Path) -> list[Case]:
    os.mkfifo(root / "pipe.npz")
    os.mkfifo(root / "pipe.mp4")
    with socket.socket(socket.AF_UNIX) as plug:
        here = os.getcwd()
        os.chdir(root)  # Names of sockets are short.
        plug.bind("socket.txt")
        os.chdir(here)
    (root / "loop.txt").symlink_to(root / "loop.txt")
    return [
        _data("pipe named .npz", root / "pipe.npz"),
        _data("pipe named .mp4", root / "pipe.mp4"),
        _data("socket named .txt", root / "socket.txt"),
        _data("link that leads to itself", root / "loop.txt"),
        _data("/dev/zero", Path("/dev/zero")),
        _data("a name of 5000 letters", Path("a" * 5000)),
        _data("folder of a user who is not there", Path("~nobody_here/x.txt")),
        _weights("pipe as weights", root / "pipe.npz"),
        _weights("/dev/zero as weights", Path("/dev/zero")),
        _weights("folder as weights", root / "none"),
    ]


def _chainer(root: Path, good: Path) -> list[Case]:
    with np.load(good) as stored:
        arrays = dict(stored)
    name = "predictor/ConvP0/W"
    nan = arrays[name].copy()
    nan.flat[3] = np.nan

    def saved(file: str, **changed: np.ndarray) -> Path:
        path = root / f"{file}.model"
        with open(path, "wb") as stream:
            np.savez(stream, **(arrays | changed))
        return path

    second = {n.replace("predictor", "other"): a for n, a in arrays.items()}
    eight = 8 * 2**30
    return [
        _weights("weights: NaN", saved("nan", **{name: nan})),
        _weights("weights: complex", saved("complex", **{name: nan + 1j})),
        _weights("weights: strings", saved("text", **{name: np.full(nan.shape, "a")})),
        _weights("weights: a scalar", saved("scalar", **{name: np.float32(1)})),
        _weights("weights: one axis", saved("flat", **{name: nan.ravel()})),
        _weights("weights: two networks", saved("two", **second)),
        _weights(
            "weights: deflate bomb",
            bomb(root / "bomb.model", name, (eight,), eight),
        ),
        _weights(
            "weights: encrypted",
            archive(root / "locked.model", "ConvP0/W", npy((1,)) + b"0", flag_bits=1),
        ),
        _weights("weights: a picture", root / "listed" / "0.png"),
        _weights("weights and other --channels", good, "--channels=3,4,6,16"),
        _weights("weights and another --height", good, "--height=48"),
        _weights("weights and another --variant", good, "--variant=lotter"),
        _weights("weights and another --model", good, "--model=autoencoder"),
    ]


def _keras(root: Path) -> list[Case]:
    leaf = "p/p/layer_i_0/kernel:0"

    def opened(name: str) -> tuple[Path, h5py.File]:
        path = root / f"{name}.hdf5"
        return path, h5py.File(path, "w")

    cases = []
    path, file = opened("huge")
    with file:
        shape = (100_000, 100_000, 3, 3)
        file.create_dataset(leaf, shape, "f4", chunks=(1, 1, 3, 3))
    cases.append(_weights("HDF5 that claims 360 GB", path))
    path, file = opened("external")
    with file:
        stored = [(str(root / "secret.txt"), 0, 36)]
        file.create_dataset(leaf, (3, 3, 1, 1), "f4", external=stored)
    cases.append(_weights("HDF5 whose numbers lie in another file", path))
    path, file = opened("virtual")
    with file:
        layout = h5py.VirtualLayout((3, 3, 1, 1), "f4")
        layout[:] = h5py.VirtualSource(root / "huge.hdf5", leaf, (3, 3, 1, 1))
        file.create_virtual_dataset(leaf, layout)
    cases.append(_weights("HDF5 made of another file", path))
    path, file = opened("link")
    with file:
        file["p"] = h5py.ExternalLink(str(root / "huge.hdf5"), "/p")
    cases.append(_weights("HDF5 with a link to another file", path))
    path, file = opened("soft")
    with file:
        file["p"] = h5py.SoftLink("/elsewhere")
    cases.append(_weights("HDF5 with a soft link", path))
    path, file = opened("two")
    with file:
        for place in ("one", "two"):
            file[f"{place}/layer_i_0/kernel:0"] = np.zeros((3, 3, 1, 1), "f4")
    cases.append(_weights("HDF5 of two networks", path))
    path.with_name("cut.hdf5").write_bytes(path.read_bytes()[:600])
    cases.append(_weights("HDF5 cut short", path.with_name("cut.hdf5")))
    path, file = opened("strings")
    with file:
        file.create_dataset(leaf, (3,), h5py.string_dtype())
    cases.append(_weights("HDF5 of strings", path))
    return cases
