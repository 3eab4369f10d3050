"""Opens sources of frames by name or path, whole or a split of them.

A source with a name is one line of `NAMES`. A path is a folder, a list, a video or an
array; each folder of pictures, each video and each array in it is a sequence.
"""

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prednet_jax import errors, files
from prednet_jax.data import arrays, digits, images, splits, video, walk
from prednet_jax.data.frames import (
    Fit,
    FrameSource,
    joined,
    refuse_crop,
    refuse_layout,
    thinned,
)
from prednet_jax.data.splits import SPLITS
from prednet_jax.errors import UserError, check_int, one_of


@dataclasses.dataclass(frozen=True)
class NamedSource:
    """A source that is opened by a name.

    Attributes:
        size: default height, width and channels.
        open: `open(height=, width=, channels=, seed=)` returns the `FrameSource`. The
            seed determines its content.
        split: `split(name, sequences, size)` returns a split of it, `sequences` or None
            for a default number. Defaults to `splits.by_seed`.
        pictures: whether frames are single pictures, which do not follow one another.
    """

    size: tuple[int, int, int]
    open: Callable[..., FrameSource]
    split: Callable[[str, int | None, dict], FrameSource] | None = None
    pictures: bool = False


NAMES: dict[str, NamedSource] = {
    "walk": NamedSource((120, 160, 3), walk.open_walk, splits.walks),
    "varied_walk": NamedSource(
        (120, 160, 3),
        functools.partial(walk.open_walk, varied=True),
        functools.partial(splits.walks, varied=True),
    ),
    "digits": NamedSource(
        (28, 28, 1), lambda **o: digits.open_stills(digits.digits(), **o), pictures=True
    ),
    "mnist": NamedSource(
        (28, 28, 1), lambda **o: digits.open_stills(digits.mnist(), **o), pictures=True
    ),
    "moving_mnist": NamedSource(
        (64, 64, 1),
        lambda **o: digits.open_moving(digits.mnist(), **o),
        lambda *split: splits.moving(digits.mnist(), *split),
    ),
    "moving_digits": NamedSource(
        (64, 64, 1),
        lambda **o: digits.open_moving(digits.digits(), **o),
        lambda *split: splits.moving(digits.digits(), *split),
    ),
}

# Names of folders and files that hold a split, perhaps as X_val or val_images.
_SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
_ADDED = re.compile(r"^x_|[_-]?(set|split|data|images?|frames?|videos?)$")
#: Opens a file of frames by its suffix: `open(path, fit)`, by `Fit.source`. The content
#: decides whether a file is an array.
FILES: dict[str, Callable[[Path, Fit], FrameSource]] = dict.fromkeys(
    video.VIDEO_SUFFIXES, video.open_video
)


def own_size(data: str) -> tuple[int, int, int]:
    """Returns the default height, width and channels of a source."""
    return NAMES[data].size if data in NAMES else (120, 160, 3)


def open_source(
    data: str,
    *,
    height: int | None = None,
    width: int | None = None,
    channels: int | None = None,
    seed: int = 0,
    crop: str = "auto",
    offset: tuple[int, int] = (0, 0),
    allow_outside: bool = False,
    layout: str | None = None,
    every: int = 1,
) -> FrameSource:
    """Opens a source of frames; a value or file that is not accepted is a UserError.

    If a folder has parts `train` and `val` or `test`, the part `train` is opened, and
    one line reports this.

    Args:
        data: A name (of `NAMES`) or a path, of all kinds that docs/data.md lists.
            `walk` is the source of that name; `./walk` is a file.
        height: Height of a frame, in pixels. Defaults to `own_size`.
        width: Width of a frame, in pixels. Defaults to `own_size`.
        channels: 3 (RGB) or 1 (grey). Defaults to `own_size`.
        seed: Determines the content and order of generated sources.
        crop: Crop of sources from disk, one of `CROPS`, as in `frames.Fit`.
        offset: `(right, down)` in pixels by which the crop is moved.
        allow_outside: Whether a text list may name files outside its own folder.
        layout: Axes of an array, such as NTHWC (`arrays`). Defaults to the only layout
            that its shape can have.
        every: Step between the frames that are read of each sequence, from its first
            one.

    Example:
        >>> from prednet_jax import data
        >>> source = data.open_source("walk", height=24, width=32, seed=7)
        >>> source.read(0, 5).shape
        (5, 24, 32, 3)
    """
    asked = {"height": height, "width": width, "channels": channels}
    own = dict(zip(asked, own_size(data), strict=True))
    size: dict[str, Any] = own | {k: v for k, v in asked.items() if v is not None}
    check_int("seed", seed, 0)
    fit = Fit(**size, crop=crop, offset=offset)
    if data in NAMES:
        refuse_crop(data, crop, offset, layout)
        source = NAMES[data].open(**size, seed=seed)
    else:
        reader = _Reader(data, fit, allow_outside, layout)
        parts = split_parts(data)
        if parts and "train" not in parts:
            raise UserError(
                f"data={data}: has the parts {', '.join(parts)} and no train; expected "
                "the path of one of them"
            )
        source = reader.open(Path(parts["train"]) if parts else None)
        _say_parts(data, parts)
    return thinned(source, every)


@functools.lru_cache(maxsize=8)
def open_split(
    data: str,
    split: str,
    *,
    height: int,
    width: int,
    channels: int,
    sequences: int | None = None,
    crop: str = "auto",
    offset: tuple[int, int] = (0, 0),
    allow_outside: bool = False,
    layout: str | None = None,
    every: int = 1,
) -> FrameSource:
    """Opens the sequences of a split, which stay in memory once they are read.

    The data and the making of frames are as in `open_source`. `sequences` is the number
    of sequences to open and defaults to `splits.WALKS`, `splits.MOVING`, or all that
    exist. A folder with parts `train` and `val` or `test` is split into these parts.
    Data without sequences, without such a split or with too few sequences is a
    UserError.
    """
    one_of("split", split, SPLITS)
    if sequences is not None:
        check_int("sequences", sequences, 1)
    size: dict[str, Any] = {"height": height, "width": width, "channels": channels}
    options: dict[str, Any] = {"crop": crop, "offset": offset, "layout": layout}
    options |= size | {"allow_outside": allow_outside}
    named = NAMES.get(data)
    if named is None:
        if split == "unseen":
            raise UserError(f"data={data}: expected split train, validation or test")
        if parts := split_parts(data):
            if split not in parts:
                word, advice = _SPLIT_NAMES[split][0], "another split"
                if split == "validation":
                    advice = "--validation_data=PATH or --validate_every=0 of train.py"
                raise UserError(
                    f"data={data}: has the parts {', '.join(parts)} and no {split}; "
                    f"expected a folder {word} next to them, or {advice}"
                )
            source = open_source(parts[split], **options)
            source = splits.first(source, source.sequences, split, sequences)
            _say_parts(data, parts)
        else:
            source = splits.in_time(open_source(data, **options), split, sequences)
    else:
        refuse_crop(data, crop, offset, layout)
        if named.pictures:
            raise UserError(
                f"data={data}: single pictures; expected frames that follow one "
                "another, such as walk or moving_digits"
            )
        divide = named.split or functools.partial(splits.by_seed, named.open)
        source = divide(split, sequences, size)
    return splits.in_memory(thinned(source, every))


def split_parts(data: str) -> dict[str, str]:
    """Returns the paths of train, validation and test of a folder that has such parts.

    Parts are folders, videos, lists or arrays with these names, or the usual short ones
    (val), perhaps after `X_`, as coxlab/prednet names its .hkl files, or before a word
    such as `_images`. They may lie in the only folder of the folder. The result is
    empty unless there are parts of two splits; two parts of one split are a UserError.
    """
    path = os.path.expanduser(data)
    if data in NAMES or not os.path.isdir(path):
        return {}
    entries = _visible(path)
    while len(entries) == 1 and entries[0].is_dir():
        entries = _visible(entries[0])
    parts: dict[str, list[Path]] = {}
    for entry in entries:
        if entry.is_dir() or entry.suffix.lower() in (*_films(), *images.LIST_SUFFIXES):
            name = entry.name if entry.is_dir() else entry.stem
            word = _ADDED.sub("", name.lower())
            for split, words in _SPLIT_NAMES.items():
                if word in words:
                    parts.setdefault(split, []).append(entry)
    if len(parts) < 2:
        return {}
    for split, same in parts.items():
        if len(same) > 1:
            raise UserError(
                f"data={data}: has {len(same)} parts {split}, "
                f"{' and '.join(entry.name for entry in same)}; expected one"
            )
    return {split: str(parts[split][0]) for split in _SPLIT_NAMES if split in parts}


def _visible(folder: str | Path) -> list[Path]:
    return [p for p in sorted(Path(folder).iterdir()) if not p.name.startswith(".")]


def _say_parts(data: str, parts: Mapping[str, str]) -> None:
    """Reports how a folder is split, or that a part `train` is read with others."""
    named = ", ".join(f"{split}: {Path(path).name}" for split, path in parts.items())
    if parts:
        trained = "; train is trained on" * ("train" in parts)
        errors.log_once(f"data={data}: split by the names in it, {named}{trained}")
    elif os.path.isdir(os.path.join(os.path.expanduser(data), "train")):
        errors.log_once(
            f"data={data}: train and all else in it are read together, since nothing "
            "in it is named val, validation or test"
        )


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Opens the file or folder at a path; `data` is its name in messages."""

    data: str
    fit: Fit
    allow_outside: bool
    layout: str | None

    def open(self, part: Path | None = None) -> FrameSource:
        data = self.data
        path = part or Path(os.path.expanduser(data))
        accepted = (
            f"accepted are {', '.join(NAMES)}, or the path of a folder of images, or of"
            " such folders, of videos or of arrays, a text list "
            f"({' '.join(images.LIST_SUFFIXES)}), a video "
            f"({' '.join(FILES)}), or an array ({' '.join(arrays.ARRAY_SUFFIXES)})"
        )
        try:
            if not data or not os.path.lexists(path):
                raise UserError(f"data={data!r}: no such source or file; {accepted}")
            if path.is_dir():
                return self._folder(path)
            if _is_array(path) or path.suffix.lower() in FILES:
                return self._films(str(path), [str(path)])
            if path.suffix.lower() in images.LIST_SUFFIXES:
                return self._list(path)
        except files.FileError as error:
            raise UserError(f"data={error}; {accepted}") from None
        except (OSError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            # ValueError: a zero byte in the name.
            raise UserError(f"data={data!r}: {files.reason(error)}") from error
        raise UserError(f"data={data}: a file of an unknown kind; {accepted}")

    def _folder(self, path: Path) -> FrameSource:
        """Opens a folder of images; else of such folders, of videos, or of arrays."""
        suffixes = images.IMAGE_SUFFIXES
        pictures = images.sequences_below(path, suffixes, deeper=False)
        if pictures:
            ignored = _count(images.sequences_below(path)) - _count(pictures)
            if ignored:
                errors.log_once(
                    f"data={path}: other folders and files of other kinds are left out,"
                    f" {ignored} files"
                )
            return self._images(path, pictures)
        pictures = images.sequences_below(path, suffixes)
        films = [
            name
            for names in images.sequences_below(path, _films()).values()
            for name in names
            if not (pictures and name.lower().endswith(".gif"))
            and not Path(name).name.startswith("sources_")
        ]
        if pictures and films:
            raise UserError(
                f"data={path}: holds folders of images, and videos or arrays; accepted "
                "is either"
            )
        if films:
            return self._films(str(path), films)
        if not pictures:
            raise UserError(
                f"data={path}: the folder holds no images; accepted are "
                f"{' '.join(suffixes)}, folders of them, videos, or arrays"
            )
        return self._images(path, pictures)

    def _images(self, path: Path, pictures: Mapping[str, list[str]]) -> FrameSource:
        refuse_layout(self.layout, path)
        return images.open_images(str(path), pictures.values(), self.fit)

    def _list(self, path: Path) -> FrameSource:
        """Opens a list of images, of lists of images, or of videos and arrays."""
        folder = os.path.realpath(path.absolute().parent)
        root = None if self.allow_outside else folder
        entries = images.listed(path, root)
        films = [Path(name).suffix.lower() in _films() for name in entries]
        gifs = all(name.lower().endswith(".gif") for name in entries)
        if all(films) and not gifs:
            return self._films(str(path), entries)
        refuse_layout(self.layout, path)
        return images.open_list(path, entries, self.fit, root)

    def _films(self, name: str, paths: Sequence[str]) -> FrameSource:
        """Opens videos and arrays in order; all are cut, or all are scaled."""
        fit, opened = self.fit, []
        for path in map(Path, paths):
            if _is_array(path):
                source = arrays.open_array(path, fit, self.layout)
            else:
                refuse_layout(self.layout, path)
                source = FILES[path.suffix.lower()](path, fit)
            fit = source.fit or fit
            opened.append(source)
        return opened[0] if list(paths) == [name] else joined(name, opened)


def _films() -> tuple[str, ...]:
    return (*FILES, *arrays.ARRAY_SUFFIXES)


def _is_array(path: Path) -> bool:
    return path.suffix.lower() in (".npz", ".hkl") or files.kind(path) in (
        *("zip", "npy", "hdf5"),
    )


def _count(sequences: Mapping[str, Sequence[str]]) -> int:
    return sum(map(len, sequences.values()))
