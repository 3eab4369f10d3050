"""Sources of frames: generated from embedded pictures, or read from disk.

`open_source` opens any of them; `prednet_jax.data.windows` cuts them into the windows
of truncated back-propagation. Nothing here imports JAX. A large library (PyAV, Pillow,
scikit-learn, tensorflow-datasets) is imported only by the source that needs it.
"""

import os
import pathlib
from typing import Any

from prednet_jax import files
from prednet_jax.data.frames import CROPS, Fit
from prednet_jax.data.preparation import prepare
from prednet_jax.data.source import DataError, FrameSource, check_seed
from prednet_jax.data.splits import SPLITS, open_split
from prednet_jax.data.windows import (
    Schedule,
    chunks,
    order_fingerprint,
    random_windows,
    schedule,
    single_schedule,
)

__all__ = [
    "CROPS",
    "NAMES",
    "SPLITS",
    "DataError",
    "FrameSource",
    "Schedule",
    "chunks",
    "open_source",
    "open_split",
    "order_fingerprint",
    "own_size",
    "prepare",
    "random_windows",
    "schedule",
    "single_schedule",
]

# The sources with a name, and their default height, width and channels.
NAMES = {
    "walk": (120, 160, 3),
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
    length: int | None = None,
    crop: str = "center",
    offset: tuple[int, int] = (0, 0),
    allow_outside: bool = False,
) -> FrameSource:
    """Open a source of frames.

    Args:
        data: A name (`walk`, `digits`, `mnist`, `moving_mnist`, `moving_digits`) or a
            path: a folder of images, a text list of images or of such lists, a video
            file, an .npz with `frames` uint8 `[T, H, W, C]`, a folder that `prepare`
            made (`FOLDER:test` for a split other than `train`). `walk` is the source of
            that name even where a file has that name; `./walk` is the file.
        height: Height of a frame, in pixels; None: the default of the source (28 for
            digits, 64 for moving digits, else 120).
        width: Width of a frame, in pixels; None: the default (28, 64, else 160).
        channels: 3 (RGB) or 1 (grey); None: the default (1 for digits, else 3).
        seed: Determines the content and order of generated sources. Sources from disk
            do not use it.
        length: Number of frames; None: all (1e9 for generated sources, 200000 for
            moving digits).
        crop: `center` cuts the middle out of larger pictures, `resize` scales without
            keeping the aspect ratio. Sources from disk only.
        offset: `(right, down)` in pixels by which the crop is moved. Sources from disk
            only.
        allow_outside: Whether a text list may name files outside its own folder.

    Returns:
        The source.

    Raises:
        DataError: A value or file is not accepted.
    """
    default = own_size(data)
    size = {
        "height": default[0] if height is None else height,
        "width": default[1] if width is None else width,
        "channels": default[2] if channels is None else channels,
    }
    check_seed(seed)
    fit = Fit(**size, crop=crop, offset=offset)
    if length is not None and length < 1:
        raise DataError(f"length={length}: need at least 1 frame")
    if data not in NAMES:
        return _open_path(data, fit, length, allow_outside)
    if crop != "center" or tuple(offset) != (0, 0):
        raise DataError(
            f"crop={crop!r}, offset={tuple(offset)} with data={data}: it is made at "
            "the asked size; accepted are 'center' and (0, 0)"
        )
    options: dict[str, Any] = {**size, "seed": seed}
    if length is not None:
        options["length"] = length
    return _open_name(data, options)


def _open_name(data: str, options: dict[str, Any]) -> FrameSource:
    if data == "walk":
        from prednet_jax.data.walk import open_walk

        return open_walk(**options)
    from prednet_jax.data.digits import digits
    from prednet_jax.data.mnist import mnist
    from prednet_jax.data.moving import open_moving
    from prednet_jax.data.stills import open_stills

    stills = mnist() if data.endswith("mnist") else digits()
    if data.startswith("moving"):
        return open_moving(stills, **options)
    return open_stills(stills, **options)


def _open_path(
    data: str, fit: Fit, length: int | None, allow_outside: bool
) -> FrameSource:
    from prednet_jax.data import arrays, images, prepared, video

    path, split = prepared.split_of(pathlib.Path(os.path.expanduser(data)))
    accepted = (
        f"accepted are {', '.join(NAMES)}, or the path of a folder of images, a text "
        f"list ({' '.join(images.LIST_SUFFIXES)}), a video "
        f"({' '.join(video.VIDEO_SUFFIXES)}) or an .npz"
    )
    suffix = path.suffix.lower()
    try:
        if not data or not os.path.lexists(path):
            raise DataError(f"data={data!r}: no such source or file; {accepted}")
        if path.is_dir() and (split or (path / prepared.INFO).is_file()):
            return prepared.open_prepared(path, split, fit, length)
        if path.is_dir():
            return images.open_folder(path, fit, length)
        head = files.read_head(path)
        found = files.kind(head)
        if found == "zip" or (found is None and suffix == ".npz"):
            return arrays.open_npz(path, fit, length)
        if found is None and suffix in images.LIST_SUFFIXES:
            return images.open_list(path, fit, length, allow_outside=allow_outside)
        if found == "video" or (found is None and suffix in video.VIDEO_SUFFIXES):
            return video.open_video(path, fit, length)
    except files.FileError as error:
        raise DataError(f"data={error}; {accepted}") from None
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        # ValueError: a zero byte in the name.
        raise DataError(f"data={data!r}: {files.reason(error)}") from error
    raise DataError(f"data={data}: a file of an unknown kind; {accepted}")
