"""Frames from image files: a folder, a folder of folders, or text lists.

The lists are the published input (`load_list` of main.py in quadjr/PredNet and
eijwat/prednet_in_chainer_py3): one path per line, of which the first word counts. With
the published `--sequences` each line names a list, and the state is reset at the start
of each list. Only one picture is in memory at a time.

The suffix of a path says whether it is a picture or a list. The content of a picture
says which format it has (`pictures`).
"""

import functools
import hashlib
import os
import pathlib
import re
from collections.abc import Iterable, Sequence

from prednet_jax import files
from prednet_jax.data import pictures
from prednet_jax.data.frames import Fit
from prednet_jax.data.source import (
    DataError,
    FrameSource,
    limited_boundaries,
    limited_length,
)

IMAGE_SUFFIXES = (
    *(".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm"),
    *(".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"),
)
LIST_SUFFIXES = (".txt", ".lst", ".list")

# Largest image file and largest list, in bytes.
_IMAGE_BYTES, _LIST_BYTES = 2**28, 2**30


def sequences_below(
    path: str | os.PathLike[str], suffixes: Sequence[str], *, deeper: bool = True
) -> dict[str, list[str]]:
    """The files of some suffixes in a folder, by the folder that they lie in.

    Hidden names and links to folders are left out. Folders and files are in natural
    order of their names.

    Args:
        path: The folder.
        suffixes: In lower case, with the dot.
        deeper: Whether to look into the folders below.

    Raises:
        OSError: A folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise error

    below: dict[str, list[str]] = {}
    for folder, inner, names in os.walk(os.fspath(path), onerror=refuse):
        inner[:] = [name for name in inner if deeper and not name.startswith(".")]
        visible = [name for name in names if not name.startswith(".")]
        listed = [name for name in visible if _suffix(name) in suffixes]
        if listed:
            listed.sort(key=natural_key)
            below[folder] = [os.path.join(folder, name) for name in listed]
    return {folder: below[folder] for folder in sorted(below, key=natural_key)}


def open_images(
    name: str,
    sequences: Iterable[Sequence[str]],
    fit: Fit,
    length: int | None = None,
) -> FrameSource:
    """Open image files, which are checked and fingerprinted now and decoded when read.

    Args:
        name: What messages call the source.
        sequences: The files of each sequence.
        fit: How a picture becomes a frame.
        length: Number of frames to use; None: all.

    Raises:
        DataError: A file is unreadable, no image or too small.
    """
    paths: list[str] = []
    boundaries = []
    for sequence in sequences:
        boundaries.append(len(paths))
        paths += sequence
    total = limited_length(name, len(paths), length)
    paths = paths[:total]
    height, width, _ = pictures.read_header(_bytes(paths[0]), paths[0])
    fit = fit.settled(height, width)
    # A list may name the same file many times.
    digests = {path: _digest(path, fit) for path in dict.fromkeys(paths)}
    begins = limited_boundaries(boundaries, total)
    frames = fit.frames(
        lambda index: pictures.decode(_bytes(paths[index]), paths[index]),
        lambda index: paths[index],
    )
    identity = {"files": [digests[path] for path in paths], "boundaries": begins}
    return fit.source(name, total, begins, frames, reader="images", **identity)


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
        allow_outside: Whether the lists may name files outside the folder of `path`,
            which may come from somebody else.

    Raises:
        DataError: A list is empty, mixes images and lists, or names a file that is
            missing, outside the folder, unreadable or too small.
    """
    root = None if allow_outside else os.path.realpath(os.path.dirname(path.absolute()))
    entries = _listed(str(path), root)
    nested = [_suffix(entry) not in IMAGE_SUFFIXES for entry in entries]
    if any(nested) != all(nested):
        raise DataError(
            f"data={path}: the list names both images and other files "
            f"({entries[nested.index(True)]}); accepted are lines that all name "
            f"images ({' '.join(IMAGE_SUFFIXES)}) or all name lists"
        )
    if not nested[0]:
        return open_images(str(path), [entries], fit, length)
    sequences = {entry: _listed(entry, root) for entry in dict.fromkeys(entries)}
    for entry, listed in sequences.items():
        for file in listed:
            if _suffix(file) not in IMAGE_SUFFIXES:
                raise DataError(
                    f"data={path}: its list {entry} names {file}, which is no image; "
                    f"accepted are {' '.join(IMAGE_SUFFIXES)}"
                )
    return open_images(str(path), [sequences[entry] for entry in entries], fit, length)


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sort key that puts frame_9 before frame_10."""
    parts = re.split(r"(\d+)", name.lower())
    # Text and numbers alternate, so that numbers are compared with numbers. With the
    # name itself at the end no two names are equal.
    keys = [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]
    return [*keys, (0, 0, name)]


def _listed(path: str, root: str | None) -> list[str]:
    """The regular files that a text list names, below `root` if there is one."""
    try:
        lines = files.read_text(path, _LIST_BYTES).splitlines()
    except files.FileError as error:
        raise DataError(
            f"not a text list: {error}; accepted is one path per line"
        ) from None
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
            raise DataError(
                f"{path}, line {number}: no file {line[:80]!r}, neither beside the "
                "list nor in the working directory"
            )
        if root is not None and os.path.commonpath((_real(entry), root)) != root:
            raise DataError(
                f"{path}, line {number}: names a file outside {root}; accepted are "
                "files below it, or any with --allow_outside"
            )
        entries.append(entry)
    if not entries:
        raise DataError(f"{path}: the list is empty; accepted is one path per line")
    return entries


def _real(path: str) -> str:
    """The path without links; that of a folder is looked up once."""
    if os.path.islink(path):
        return os.path.realpath(path)
    folder, name = os.path.split(os.path.join(os.getcwd(), path))
    return os.path.join(_real_folder(folder), name)


_real_folder = functools.lru_cache(maxsize=1024)(os.path.realpath)


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _digest(path: str, fit: Fit) -> str:
    """Checks an image's header and size; returns what identifies its pixels."""
    data = _bytes(path)
    height, width, orientation = pictures.read_header(data, path)
    fit.check(height, width, path)
    turned = f" orientation {orientation}" if orientation > 1 else ""
    return hashlib.sha256(data).hexdigest() + turned


def _bytes(path: str) -> bytes:
    try:
        return files.read_bytes(path, _IMAGE_BYTES)
    except files.FileError as error:
        raise DataError(str(error)) from None
