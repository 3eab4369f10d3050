"""Frames from an .npz archive with an array `frames`, uint8 `[T, H, W, C]`.

It may also have an array `boundaries` with the index of the first frame of every
sequence. The whole archive is read into memory; data that is larger than memory has to
be image files or a video.
"""

import hashlib
import pathlib

import numpy as np

from prednet_jax import files
from prednet_jax.data.frames import Fit, to_channels
from prednet_jax.data.source import (
    DataError,
    FrameSource,
    check_boundaries,
    check_range,
    limited_boundaries,
    limited_length,
)


def open_npz(path: pathlib.Path, fit: Fit, length: int | None) -> FrameSource:
    """Open an .npz.

    Args:
        path: The archive.
        fit: How a picture becomes a frame.
        length: Number of frames to use; None: all.

    Returns:
        The source.

    Raises:
        DataError: If the archive is unreadable, an array is missing or has a wrong type
            or shape, or the frames are too small.
    """
    frames, boundaries = _load(path)
    name = str(path)
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[-1] not in (1, 3):
        raise DataError(
            f"data={name}: frames is {frames.dtype} of shape {list(frames.shape)}; "
            "accepted is uint8 [T, H, W, C] with C 1 or 3"
        )
    if boundaries.ndim != 1 or not np.issubdtype(boundaries.dtype, np.integer):
        raise DataError(
            f"data={name}: boundaries is {boundaries.dtype} of shape "
            f"{list(boundaries.shape)}; accepted are integers of shape [sequences]"
        )
    sequences = tuple(boundaries.tolist())
    check_boundaries(name, sequences, len(frames))
    total = limited_length(name, len(frames), length)
    fit.check(frames.shape[1], frames.shape[2], f"a frame of {name}")
    frames = frames[:total]

    def read(start: int, stop: int) -> np.ndarray:
        check_range(name, total, start, stop)
        out = np.empty((stop - start, fit.height, fit.width, fit.channels), np.uint8)
        for frame, picture in zip(out, frames[start:stop], strict=True):
            frame[:] = to_channels(fit(picture, name), fit.channels)
        return out

    inside = limited_boundaries(sequences, total)
    identity = {
        "frames": hashlib.sha256(np.ascontiguousarray(frames).data).hexdigest(),
        "shape": list(frames.shape),
        "boundaries": inside,
    }
    return fit.source(name, total, inside, read, reader="npz", **identity)


def _load(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """The arrays `frames` and `boundaries`; without boundaries, one sequence."""
    try:
        arrays = files.read_npz(path, names=("frames", "boundaries"))
        if "frames" not in arrays:
            names = files.npz_names(path)
            shown = str(names[:8])[:200] + (" ..." if names[8:] else "")
            raise DataError(
                f"data={path}: holds the arrays {shown}; accepted is an array "
                "'frames', uint8 [T, H, W, C]"
            )
    except files.FileError as error:
        raise DataError(
            f"data={error}; accepted is an .npz with frames uint8 [T, H, W, C], or for "
            "data larger than memory image files or a video"
        ) from None
    return arrays["frames"], np.asarray(arrays.get("boundaries", [0]))
