"""Frames from image files: a folder, a text list, or a text list of such lists.

The lists are the published input (`load_list` of main.py in quadjr/PredNet and
eijwat/prednet_in_chainer_py3): one path a line, of which the first word counts; with
`--sequences` the lines are lists themselves, and the state is reset at each. One
picture is in memory at a time.
"""

import hashlib
import io
import pathlib
import re

import numpy as np

from prednet_jax.data.frames import Fit, to_channels
from prednet_jax.data.lists import read_list
from prednet_jax.data.source import (
    DataError,
    FrameSource,
    check_range,
    limited_boundaries,
    limited_length,
)

IMAGE_SUFFIXES = (
    *(".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm"),
    *(".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"),
)
LIST_SUFFIXES = (".txt", ".lst", ".list")

# Modes of Pillow with more than 8 bits; converting them would clip without a word.
_DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")


def open_folder(path: pathlib.Path, fit: Fit, length: int | None) -> FrameSource:
    """Open the images of a folder as one sequence, in natural order of their names.

    Args:
        path: The folder; files that are no images, and folders in it, are left out.
        fit: How a picture becomes a frame.
        length: Number of frames to use; None is all.

    Returns:
        The source.

    Raises:
        DataError: If there is no image, or one is unreadable or too small.
    """
    files = [
        file
        for file in path.iterdir()
        if file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".")
    ]
    if not files:
        raise DataError(
            f"data={path}: the folder holds no images; accepted are "
            f"{' '.join(IMAGE_SUFFIXES)} (for folders of several sequences, write a "
            "text list of lists)"
        )
    files.sort(key=lambda file: natural_key(file.name))
    return _open_files(str(path), files, (0,), fit, length)


def open_list(path: pathlib.Path, fit: Fit, length: int | None) -> FrameSource:
    """Open a text list of images, or of lists of images (one sequence each).

    A relative path is looked for beside the list that names it, then in the working
    directory, as the published script does. A line may carry more words after the
    path.

    Args:
        path: The list.
        fit: How a picture becomes a frame.
        length: Number of frames to use; None is all.

    Returns:
        The source.

    Raises:
        DataError: If a list is empty, mixes images and lists, or names a file that is
            missing, unreadable or too small.
    """
    entries = read_list(path)
    nested = [file.suffix.lower() not in IMAGE_SUFFIXES for file in entries]
    if any(nested) != all(nested):
        raise DataError(
            f"data={path}: the list names both images and other files "
            f"({entries[nested.index(True)]}); accepted are lines that all name "
            f"images ({' '.join(IMAGE_SUFFIXES)}) or all name lists"
        )
    if not nested[0]:
        return _open_files(str(path), entries, (0,), fit, length)
    files: list[pathlib.Path] = []
    boundaries = []
    for entry in entries:
        boundaries.append(len(files))
        inner = read_list(entry)
        for file in inner:
            if file.suffix.lower() not in IMAGE_SUFFIXES:
                raise DataError(
                    f"data={path}: its list {entry} names {file}, which is no image; "
                    f"accepted are {' '.join(IMAGE_SUFFIXES)}"
                )
        files += inner
    return _open_files(str(path), files, tuple(boundaries), fit, length)


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sort key under which frame_9 comes before frame_10."""
    parts = re.split(r"(\d+)", name.lower())
    # Text and numbers alternate, so equal places always compare alike; the name
    # itself at the end makes the order total.
    keys = [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]
    return [*keys, (0, 0, name)]


def read_image(data: bytes, fit: Fit, path: pathlib.Path) -> np.ndarray:
    """Decode one image file and bring it to size.

    Args:
        data: The bytes of the file.
        fit: How a picture becomes a frame.
        path: What a message calls the file.

    Returns:
        uint8 `[fit.height, fit.width, fit.channels]`.

    Raises:
        DataError: If the image is unreadable, deeper than 8 bits, or too small.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            _check_mode(image.mode, path)
            picture = np.asarray(image.convert("RGB"))
    # Pillow raises SyntaxError and struct.error, too, on some broken files.
    except DataError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from error
    return to_channels(fit(picture, str(path)), fit.channels)


def _open_files(
    name: str,
    files: list[pathlib.Path],
    boundaries: tuple[int, ...],
    fit: Fit,
    length: int | None,
) -> FrameSource:
    """Check and fingerprint every file, then read them one by one on demand."""
    total = limited_length(name, len(files), length)
    files = files[:total]
    digests = [_check_file(file, fit) for file in files]

    def read(start: int, stop: int) -> np.ndarray:
        check_range(name, total, start, stop)
        out = np.empty((stop - start, fit.height, fit.width, fit.channels), np.uint8)
        for frame, file in zip(out, files[start:stop], strict=True):
            frame[:] = read_image(_bytes(file), fit, file)
        return out

    inside = limited_boundaries(boundaries, total)
    identity = {"files": digests, "boundaries": inside}
    return fit.source(name, total, inside, read, reader="images", **identity)


def _check_file(path: pathlib.Path, fit: Fit) -> str:
    """Check an image's header and size; the SHA-256 of the file."""
    from PIL import Image

    data = _bytes(path)
    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
            mode = image.mode
    except Exception as error:
        raise _unreadable(path, error) from error
    _check_mode(mode, path)
    fit.check(height, width, str(path))
    return hashlib.sha256(data).hexdigest()


def _check_mode(mode: str, path: pathlib.Path) -> None:
    if mode in _DEEP_MODES:
        raise DataError(
            f"{path}: has mode {mode} of Pillow, more than 8 bits a channel; "
            "accepted are images of 8 bits"
        )


def _bytes(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def _unreadable(path: pathlib.Path, error: Exception) -> DataError:
    reason = "no image format that Pillow knows" if "identify" in str(error) else error
    return DataError(f"{path}: not a readable image ({reason})")
