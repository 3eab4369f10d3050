"""Frames from an array: an .npz with `frames` and perhaps `boundaries`, or an .npy.

Frames are `[T, H, W, C]` with 1 or 3 channels, or grey `[T, H, W]`. Numbers other than
uint8 are taken where it is plain what they mean: whole numbers from 0 to 255 are
levels, and floating-point numbers from 0 to 1 are fractions of white, rounded to 255
levels. `boundaries` holds the index of the first frame of every sequence.

An .npz is read into memory. An .npy is mapped, so it may be larger than memory.
"""

import hashlib
import pathlib

import numpy as np

from prednet_jax import files, messages
from prednet_jax.data.frames import Fit
from prednet_jax.data.source import (
    DataError,
    FrameSource,
    check_boundaries,
    limited_boundaries,
    limited_length,
)

_ACCEPTED = (
    "accepted are uint8 [T, H, W, C] with C 1 or 3, grey [T, H, W], whole numbers from "
    "0 to 255, or fractions from 0 to 1"
)
# Frames that are looked at together.
_CHUNK = 64


def open_arrays(path: pathlib.Path, fit: Fit, length: int | None) -> FrameSource:
    """Open an .npz or an .npy; an .npz without `frames` may hold one other array.

    Raises:
        DataError: The file is unreadable, the array is missing or no frames, or they
            are too small.
    """
    name = str(path)
    array, boundaries = _load(path)
    if array.ndim == 3 and array.shape[-1] > 4:
        array = array[..., None]
    if array.ndim != 4 or array.shape[-1] not in (1, 3) or not array.size:
        raise DataError(
            f"data={name}: {array.dtype} of shape {list(array.shape)}; {_ACCEPTED}"
        )
    if boundaries.ndim != 1 or boundaries.dtype.kind not in "iu":
        raise DataError(
            f"data={name}: boundaries is {boundaries.dtype} of shape "
            f"{list(boundaries.shape)}; accepted are integers of shape [sequences]"
        )
    sequences = tuple(boundaries.tolist())
    check_boundaries(name, sequences, len(array))
    total = limited_length(name, len(array), length)
    height, width = array.shape[1:3]
    fit = fit.settled(height, width)
    fit.check(height, width, f"a frame of {name}")
    white = _white(name, array)

    def levels(part: np.ndarray) -> np.ndarray:
        return np.rint(part * (255 / white)).astype(np.uint8) if white else part

    digest = hashlib.sha256()
    for start in range(0, total, _CHUNK):
        part = levels(array[start : min(start + _CHUNK, total)])
        digest.update(np.ascontiguousarray(part).data)
    begins = limited_boundaries(sequences, total)
    identity = {
        "frames": digest.hexdigest(),
        "shape": [total, *array.shape[1:]],
        "boundaries": begins,
    }
    frames = fit.frames(lambda index: levels(array[index]), lambda _: name)
    return fit.source(name, total, begins, frames, reader="npz", **identity)


def _load(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """The frames and the boundaries; without boundaries, one sequence."""
    one_sequence = np.zeros(1, int)
    try:
        if files.kind(path) == "npy":
            return np.load(path, mmap_mode="r", allow_pickle=False), one_sequence
        with files.open_npz(path) as arrays:
            names = [name for name in arrays.files if name != "boundaries"]
            name = "frames" if "frames" in names else names[0] if names else ""
            if name != "frames" and len(names) != 1:
                shown = str(names[:8])[:200] + (" ..." if names[8:] else "")
                raise DataError(
                    f"data={path}: holds the arrays {shown}; accepted is an array "
                    "'frames', uint8 [T, H, W, C], or one array alone"
                )
            boundaries = arrays.get("boundaries", one_sequence)
            return np.asarray(arrays[name]), np.asarray(boundaries)
    except files.FileError as error:
        raise DataError(
            f"data={error}; accepted is an .npz with frames uint8 [T, H, W, C], or for "
            "data larger than memory an .npy, image files or a video"
        ) from None
    except DataError:
        raise
    except files.BROKEN as error:
        reason = files.reason(error)
        raise DataError(f"data={path}: not a readable .npy ({reason})") from None


def _white(name: str, array: np.ndarray) -> int:
    """The value of white where frames have to be scaled; 0: they are levels already.

    Raises:
        DataError: The numbers are neither levels nor fractions of white.
    """
    if array.dtype == np.uint8:
        return 0
    if array.dtype.kind not in "iufb":
        raise DataError(f"data={name}: {array.dtype}; {_ACCEPTED}")
    low, high, whole = np.inf, -np.inf, True
    for start in range(0, len(array), _CHUNK):
        part = np.asarray(array[start : start + _CHUNK], np.float64)
        # NumPy's, which keep a NaN.
        low, high = np.minimum(low, part.min()), np.maximum(high, part.max())
        whole = whole and bool((part == np.rint(part)).all())
    if array.dtype.kind in "fb" and low >= 0 and high <= 1:
        if not whole:
            messages.say(
                f"data={name}: {array.dtype} from {low:.3g} to {high:.3g}, read as "
                "fractions of white and rounded to 255 levels"
            )
        return 1
    if low >= 0 and high <= 255 and whole:
        return 255
    raise DataError(
        f"data={name}: {array.dtype} from {low:.6g} to {high:.6g}"
        f"{'' if whole else ', not whole numbers'}; {_ACCEPTED}"
    )
