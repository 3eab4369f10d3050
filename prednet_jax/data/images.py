"""Frames from image files: a folder, a folder of folders, or text lists.

The lists are the published input (`load_list` of main.py in quadjr/PredNet and
eijwat/prednet_in_chainer_py3): one path per line, of which the first word counts. With
the published `--sequences` each line names a list, and the state is reset at the start
of each list. Only one picture is in memory at a time.

The content of a picture, not its name, gives its format, which must be one of
`FORMATS`: for a PostScript file, for example, Pillow would start another program.
docs/api/file_formats.md lists the formats that are refused.
"""

import contextlib
import dataclasses
import functools
import hashlib
import io
import itertools
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from prednet_jax import files
from prednet_jax.data.frames import Fit, FrameSource
from prednet_jax.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# The most pixels of a picture, for instance 8192x8192: 192 MiB in RGB.
PIXELS = 2**26
IMAGE_SUFFIXES = (
    *(".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm"),
    *(".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"),
)
LIST_SUFFIXES = (".txt", ".lst", ".list")

# Largest image file and largest list, in bytes.
_IMAGE_BYTES, _LIST_BYTES = 2**28, 2**30
# Modes of Pillow with more than 8 bits; a conversion would clip them silently.
_DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
_BITS_PER_SAMPLE = 258  # TIFF 6.0, section 8.
_ORIENTATION = 0x0112  # Exif 2.32, 4.6.4.


def sequences_below(
    path: str | os.PathLike[str],
    suffixes: Sequence[str] | None = None,
    *,
    deeper: bool = True,
) -> dict[str, list[str]]:
    """Returns the files of some suffixes in a folder, by the folder that they lie in.

    Files are in natural order, without hidden names and links to folders.
    """

    def refuse(error: OSError) -> None:
        raise error

    below: dict[str, list[str]] = {}
    for folder, inner, names in os.walk(os.fspath(path), onerror=refuse):
        inner[:] = [name for name in inner if deeper and not name.startswith(".")]
        visible = [name for name in names if not name.startswith(".")]
        chosen = [n for n in visible if suffixes is None or _suffix(n) in suffixes]
        if chosen:
            chosen.sort(key=natural_key)
            below[folder] = [os.path.join(folder, name) for name in chosen]
    return {folder: below[folder] for folder in sorted(below, key=natural_key)}


def open_images(name: str, sequences: Iterable[Sequence[str]], fit: Fit) -> FrameSource:
    """Opens image files, checked and fingerprinted now and decoded when read."""
    paths: list[str] = []
    begins: tuple[int, ...] = ()
    for sequence in sequences:
        begins += (len(paths),)
        paths += sequence
    height, width, _ = read_header(_bytes(paths[0]), paths[0])
    fit = fit.settled(height, width)
    # A list may name the same file many times.
    read = {path: _digest_and_size(path, fit) for path in dict.fromkeys(paths)}
    mixed = len({size for _, size in read.values()}) > 1
    fit = dataclasses.replace(fit, mixed=mixed)

    def picture(index: int) -> np.ndarray:
        data = _bytes(path := paths[index])
        if not read[path][0].startswith(hashlib.sha256(data).hexdigest()):
            decode(data, path)  # Names a broken one.
            raise files.changed(path)
        return decode(data, path)

    frames = fit.frames(picture, lambda index: paths[index])
    identity = {"files": [read[path][0] for path in paths], "boundaries": begins}
    return fit.source(name, len(paths), begins, frames, reader="images", **identity)


def open_list(
    path: Path, entries: Sequence[str], fit: Fit, root: str | None
) -> FrameSource:
    """Opens a text list of images, or of lists of images (one sequence each).

    `entries` is `listed(path, root)`; `root` is the folder for the lists in it too.
    """
    nested = [_suffix(entry) not in IMAGE_SUFFIXES for entry in entries]
    if any(nested) != all(nested):
        raise UserError(
            f"data={path}: the list names both images and other files "
            f"({entries[nested.index(True)]}); accepted are lines that all name "
            f"images ({' '.join(IMAGE_SUFFIXES)}) or all name lists"
        )
    if not any(nested):
        return open_images(str(path), [entries], fit)
    sequences = {entry: listed(entry, root) for entry in dict.fromkeys(entries)}
    named = itertools.chain.from_iterable(sequences.values())
    if others := [file for file in named if _suffix(file) not in IMAGE_SUFFIXES]:
        raise UserError(
            f"data={path}: its lists name {others[0]}, which is no image; accepted are "
            f"{' '.join(IMAGE_SUFFIXES)}"
        )
    return open_images(str(path), [sequences[entry] for entry in entries], fit)


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Returns the sort key that puts frame_9 before frame_10."""
    parts = re.split(r"(\d+)", name.lower())
    # Text and numbers alternate, so that numbers are compared with numbers. With the
    # name itself at the end no two names are equal.
    keys = [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]
    return [*keys, (0, 0, name)]


def listed(path: str | os.PathLike[str], root: str | None) -> list[str]:
    """Returns the files that a text list names; all lie in `root` unless it is None.

    A relative path is searched for in the folder of the list, then in the working
    directory, as in the published script; further words after it do not count.
    """
    lines = files.read_text(path, _LIST_BYTES).splitlines()
    entries = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line:
            continue
        candidates = [
            os.path.join(folder, text)
            for text in dict.fromkeys((line, line.split()[0]))
            for folder in (os.path.dirname(path), "")
        ]
        entry = next(filter(os.path.isfile, candidates), None)
        if entry is None:
            raise UserError(
                f"{path}, line {number}: no file {line[:80]!r}, neither next to the "
                "list nor in the working directory"
            )
        real = os.path.realpath(entry)
        if root is not None and os.path.commonpath((real, root)) != root:
            raise UserError(
                f"{path}, line {number}: names a file outside {root}; accepted are "
                "files below it, or any with --allow_outside"
            )
        entries.append(entry)
    if not entries:
        raise UserError(f"{path}: the list is empty; accepted is one path per line")
    return entries


_bytes = functools.partial(files.read_bytes, limit=_IMAGE_BYTES)


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _digest_and_size(path: str, fit: Fit) -> tuple[str, tuple[int, int]]:
    """Returns the digest of a picture that fits, and its height and width."""
    data = _bytes(path)
    height, width, orientation = read_header(data, path)
    fit.check(height, width, path)
    turned = f" orientation {orientation}" if orientation > 1 else ""
    return hashlib.sha256(data).hexdigest() + turned, (height, width)


def read_header(data: bytes, name: object) -> tuple[int, int, int]:
    """Returns height and width, after rotation, and the EXIF orientation, 1 to 8.

    Pixels are decoded only if the picture has a channel of transparency.
    """
    with _opened(data, name) as image:
        pictures = getattr(image, "n_frames", 1)
        if pictures > 1 and image.format != "MPO":
            video = " (or the path of the GIF alone, which is read as a video)"
            raise UserError(
                f"{name}: holds {pictures} pictures; accepted are files of one"
                f"{video if image.format == 'GIF' else ''}"
            )
        if (
            image.has_transparency_data
            and np.asarray(image.convert("RGBA"))[..., 3].min() < 255
        ):
            raise UserError(
                f"{name}: has transparent pixels; accepted are opaque pictures, so "
                "put it onto a background first"
            )
        turn = _orientation(image, data)
        width, height = image.size
    return (width, height, turn) if turn > 4 else (height, width, turn)


def decode(data: bytes, name: object) -> np.ndarray:
    """Decodes the pixels uint8 `[h, w, 3]` of a file that `read_header` accepts."""
    from PIL import ImageOps

    with _opened(data, name) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def check_size(width: int, height: int, name: object) -> None:
    """Refuses a picture, or a frame of a video, without pixels or with too many."""
    if not 0 < width * height <= PIXELS:
        raise UserError(
            f"{name}: {width}x{height} pixels (width x height); accepted are 1 to "
            f"{PIXELS} pixels"
        )


@contextlib.contextmanager
def _opened(data: bytes, name: object) -> "Iterator[Image.Image]":
    """Opens a picture of an accepted size and depth; the error names a broken file."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            # Pillow only warns about large pictures; `check_size` refuses them.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                check_size(*image.size, name)
                if bits := _more_than_8_bits(image, data):
                    raise UserError(
                        f"{name}: has {bits}, more than 8 bits a channel; accepted are "
                        "images of 8 bits"
                    )
                yield image
    except (UserError, MemoryError):
        raise
    # On broken files Pillow also raises SyntaxError, struct.error and others.
    except Exception as error:
        unknown = "identify" in str(error)
        why = f"none of {', '.join(FORMATS)}" if unknown else files.reason(error)
        raise UserError(f"{name}: not a readable image ({why})") from error


def _more_than_8_bits(image: "Image.Image", data: bytes) -> str | None:
    if image.mode in _DEEP_MODES:
        return f"mode {image.mode} of Pillow"
    # Pillow reduces 16-bit colours to 8 bits and reports the mode RGB.
    depth = 8
    if image.format == "PNG":
        depth = data[24]
    elif image.format == "TIFF":
        depth = max(image.tag_v2.get(_BITS_PER_SAMPLE, (1,)))  # type: ignore[attr-defined]
    elif image.format == "PPM":
        _, _, _, arguments = image.tile[0]  # type: ignore[attr-defined]
        depth = arguments[1].bit_length() if isinstance(arguments, tuple) else 8
    return f"{depth} bits a channel" if depth > 8 else None


def _orientation(image: "Image.Image", data: bytes) -> int:
    """Returns the EXIF orientation, 1 to 8, unless Pillow applies it itself; then 1."""
    from PIL import Image

    if image.format == "TIFF":
        return 1  # Pillow applies it.
    if image.format == "PNG" and b"eXIf" in data:
        image.load()  # The chunk may come after the pixels.
    exif = Image.Exif()
    exif.load(image.info.get("exif", b""))
    orientation = exif.get(_ORIENTATION, 1)
    return orientation if orientation in range(2, 9) else 1
