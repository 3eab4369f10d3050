"""Frames from image files: a folder, a text list, or a text list of such lists.

The lists are the published input (`load_list` of main.py in quadjr/PredNet and
eijwat/prednet_in_chainer_py3): one path per line, of which the first word counts. With
the published `--sequences` each line names a list, and the state is reset at the start
of each list. Only one picture is in memory at a time.

The suffix of a path says whether it is a picture or a list. The content of a picture
says which format it has (`pictures`).
"""

import hashlib
import os
import pathlib
import re

import numpy as np

from prednet_jax import files as safely
from prednet_jax.data import pictures
from prednet_jax.data.frames import Fit, to_channels
from prednet_jax.data.lists import ENTRIES, Lists
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

# Largest image file, in bytes.
_BYTES = 2**28


def open_folder(path: pathlib.Path, fit: Fit, length: int | None) -> FrameSource:
    """Open the images of a folder as one sequence, in natural order of their names.

    Args:
        path: The folder; its files that are not images, and its folders, are ignored.
        fit: How a picture becomes a frame.
        length: Number of frames to use; None: all.

    Returns:
        The source.

    Raises:
        DataError: If there is no image, or one is unreadable or too small.
    """
    with os.scandir(path) as entries:
        names = [
            entry.name
            for entry in entries
            if _is_image(entry.name)
            and not entry.name.startswith(".")
            and not entry.is_dir()
        ]
    if not names:
        raise DataError(
            f"data={path}: the folder holds no images; accepted are "
            f"{' '.join(IMAGE_SUFFIXES)} (for folders of several sequences, write a "
            "text list of lists)"
        )
    names.sort(key=natural_key)
    files = [os.path.join(path, name) for name in names]
    return _open_files(str(path), files, (0,), fit, length)


def open_list(
    path: pathlib.Path, fit: Fit, length: int | None, *, allow_outside: bool = False
) -> FrameSource:
    """Open a text list of images, or of lists of images (one sequence each).

    A relative path is searched for in the folder of the list that names it, then in the
    working directory, as in the published script. A line may have further words after
    the path.

    Args:
        path: The list.
        fit: How a picture becomes a frame.
        length: Number of frames to use; None: all.
        allow_outside: Whether the lists may name files outside the folder of `path`.

    Returns:
        The source.

    Raises:
        DataError: If a list is empty, mixes images and lists, or names a file that is
            missing, outside the folder, unreadable or too small.
    """
    lists = Lists(path, allow_outside=allow_outside)
    entries = lists.read(path)
    nested = [not _is_image(file) for file in entries]
    if any(nested) != all(nested):
        raise DataError(
            f"data={path}: the list names both images and other files "
            f"({entries[nested.index(True)]}); accepted are lines that all name "
            f"images ({' '.join(IMAGE_SUFFIXES)}) or all name lists"
        )
    if not nested[0]:
        return _open_files(str(path), entries, (0,), fit, length)
    files: list[str] = []
    boundaries = []
    for entry in entries:
        boundaries.append(len(files))
        inner = lists.read(entry)
        for file in inner:
            if not _is_image(file):
                raise DataError(
                    f"data={path}: its list {entry} names {file}, which is no image; "
                    f"accepted are {' '.join(IMAGE_SUFFIXES)}"
                )
        files += inner
        if len(files) > ENTRIES:
            raise DataError(f"data={path}: names more than {ENTRIES} images in all")
    return _open_files(str(path), files, tuple(boundaries), fit, length)


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sort key that puts frame_9 before frame_10."""
    parts = re.split(r"(\d+)", name.lower())
    # Text and numbers alternate, so that numbers are compared with numbers. With the
    # name itself at the end no two names are equal.
    keys = [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]
    return [*keys, (0, 0, name)]


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def _open_files(
    name: str,
    files: list[str],
    boundaries: tuple[int, ...],
    fit: Fit,
    length: int | None,
) -> FrameSource:
    """Check and fingerprint every file; they are read one by one when needed."""
    total = limited_length(name, len(files), length)
    files = files[:total]
    # A list may name the same file many times.
    known = {file: _check_file(file, fit) for file in dict.fromkeys(files)}
    digests = [known[file] for file in files]

    def read(start: int, stop: int) -> np.ndarray:
        check_range(name, total, start, stop)
        out = np.empty((stop - start, fit.height, fit.width, fit.channels), np.uint8)
        for frame, file in zip(out, files[start:stop], strict=True):
            picture = pictures.decode(_bytes(file), file)
            frame[:] = to_channels(fit(picture, file), fit.channels)
        return out

    inside = limited_boundaries(boundaries, total)
    identity = {"files": digests, "boundaries": inside}
    return fit.source(name, total, inside, read, reader="images", **identity)


def _check_file(path: str, fit: Fit) -> str:
    """Check an image's header and size; returns what identifies its pixels."""
    data = _bytes(path)
    header = pictures.read_header(data, path)
    fit.check(header.height, header.width, path)
    digest = hashlib.sha256(data).hexdigest()
    # Earlier versions ignored the orientation; without one, fingerprints stay the same.
    turned = f" orientation {header.orientation}" if header.orientation > 1 else ""
    return digest + turned


def _bytes(path: str) -> bytes:
    try:
        return safely.read_bytes(path, _BYTES)
    except safely.FileError as error:
        raise DataError(str(error)) from None
