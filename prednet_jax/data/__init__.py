"""Sources of frames: generated from embedded pictures, or read from disk.

`open_source` opens any of them; `prednet_jax.data.windows` cuts them into the windows
of truncated back-propagation. Nothing here imports JAX. A large library (PyAV, Pillow,
scikit-learn, tensorflow-datasets) is imported only by the source that needs it.
"""

import os
from pathlib import Path
from typing import Any

from prednet_jax import errors, files
from prednet_jax.data import arrays, digits, images, video, walk
from prednet_jax.data.frames import CROPS, Fit, FrameSource, joined, refuse_crop
from prednet_jax.data.splits import SPLITS, open_split
from prednet_jax.data.windows import (
    Schedule,
    chunks,
    order_fingerprint,
    random_windows,
    schedule,
)
from prednet_jax.errors import UserError, whole

__all__ = [
    "CROPS",
    "NAMES",
    "SPLITS",
    "FrameSource",
    "Schedule",
    "chunks",
    "open_source",
    "open_split",
    "order_fingerprint",
    "own_size",
    "random_windows",
    "schedule",
]

# The sources with a name, and their default height, width and channels.
NAMES = {
    "walk": (120, 160, 3),
    "varied_walk": (120, 160, 3),
    "digits": (28, 28, 1),
    "mnist": (28, 28, 1),
    "moving_mnist": (64, 64, 1),
    "moving_digits": (64, 64, 1),
}


def own_size(data: str) -> tuple[int, int, int]:
    """Default height, width and channels of a source."""
    return NAMES.get(data, (120, 160, 3))


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
) -> FrameSource:
    """Open a source of frames; a UserError: a value or file is not accepted.

    Args:
        data: A name (of `NAMES`) or a path, of all kinds that docs/data.md lists.
            `walk` is the source of that name; `./walk` is a file.
        height: Height of a frame, in pixels; None: that of `own_size`.
        width: Width of a frame, likewise.
        channels: 3 (RGB) or 1 (grey), likewise.
        seed: Determines the content and order of generated sources.
        crop: Of sources from disk, one of `CROPS`, as in `frames.Fit`.
        offset: `(right, down)` in pixels by which the crop is moved.
        allow_outside: Whether a text list may name files outside its own folder.
    """
    default = own_size(data)
    size: dict[str, Any] = {
        "height": default[0] if height is None else height,
        "width": default[1] if width is None else width,
        "channels": default[2] if channels is None else channels,
    }
    whole("seed", seed, 0)
    fit = Fit(**size, crop=crop, offset=offset)
    if data not in NAMES:
        return _open_path(data, fit, allow_outside)
    refuse_crop(data, crop, offset)
    options = {**size, "seed": seed}
    if data.endswith("walk"):
        return walk.open_walk(**options, varied=data == "varied_walk")
    pictures = digits.mnist() if data.endswith("mnist") else digits.digits()
    opened = digits.open_moving if data.startswith("moving") else digits.open_stills
    return opened(pictures, **options)


def _open_path(data: str, fit: Fit, allow_outside: bool) -> FrameSource:
    path = Path(os.path.expanduser(data))
    accepted = (
        f"accepted are {', '.join(NAMES)}, or the path of a folder of images, of such "
        f"folders or of videos, a text list ({' '.join(images.LIST_SUFFIXES)}), a "
        f"video ({' '.join(video.VIDEO_SUFFIXES)}), an .npz or an .npy"
    )
    suffix = path.suffix.lower()
    try:
        if not data or not os.path.lexists(path):
            raise UserError(f"data={data!r}: no such source or file; {accepted}")
        if path.is_dir():
            return _open_folder(path, fit)
        if files.kind(path) in ("zip", "npy") or suffix == ".npz":
            return arrays.open_arrays(path, fit)
        if suffix in images.LIST_SUFFIXES:
            return images.open_list(path, fit, allow_outside=allow_outside)
        if suffix in video.VIDEO_SUFFIXES:
            return video.open_video(path, fit)
    except files.FileError as error:
        raise UserError(f"data={error}; {accepted}") from None
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        # ValueError: a zero byte in the name.
        raise UserError(f"data={data!r}: {files.reason(error)}") from error
    raise UserError(f"data={data}: a file of an unknown kind; {accepted}")


def _open_folder(path: Path, fit: Fit) -> FrameSource:
    """A folder of images; else of folders of images, or of videos: each a sequence."""
    suffixes = images.IMAGE_SUFFIXES
    pictures = images.sequences_below(path, suffixes, deeper=False)
    if pictures:
        all_below = images.sequences_below(path, (*suffixes, *video.VIDEO_SUFFIXES))
        if sum(map(len, all_below.values())) > sum(map(len, pictures.values())):
            errors.say(f"data={path}: other folders and videos are left out")
    else:
        pictures = images.sequences_below(path, suffixes)
        videos = [
            name
            for names in images.sequences_below(path, video.VIDEO_SUFFIXES).values()
            for name in names
            if not (pictures and name.lower().endswith(".gif"))
        ]
        if pictures and videos:
            raise UserError(
                f"data={path}: holds folders of images, and videos; accepted is either"
            )
        if videos:
            paths = [Path(name) for name in videos]
            fit = video.Video(paths[0], fit).fit  # All are cut, or all are scaled.
            opened = [video.open_video(path, fit) for path in paths]
            return joined(str(path), opened)
    if not pictures:
        raise UserError(
            f"data={path}: the folder holds no images; accepted are "
            f"{' '.join(suffixes)}, folders of them, or videos"
        )
    return images.open_images(str(path), pictures.values(), fit)
