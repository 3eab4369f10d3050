"""Frames from an array: an .npz with `frames` and perhaps `boundaries`, or an .npy.

Frames `[T, H, W, C]` have 1 or 3 channels, or are grey, `[T, H, W]`. They are uint8, or
fractions of white from 0 to 1, which are rounded to uint8. `boundaries` are the indices
of the sequences' first frames. An .npz is read, an .npy is mapped.
"""

import hashlib
from pathlib import Path

import numpy as np

from prednet_jax import files
from prednet_jax.data.frames import Fit, FrameSource
from prednet_jax.errors import UserError

_ACCEPTED = (
    "accepted are [T, H, W, C] with C 1 or 3, or grey [T, H, W], of uint8 or of "
    "fractions from 0 to 1; several sequences: an .npz with `boundaries`"
)
# Frames that are looked at together.
_CHUNK = 64


def open_arrays(path: Path, fit: Fit) -> FrameSource:
    """Open an .npz or an .npy; an .npz without `frames` may hold one other array."""
    name = str(path)
    array, boundaries = _load(path)
    if array.ndim == 3 and array.shape[-1] > 4:
        array = array[..., None]
    shaped = array.ndim == 4 and array.shape[-1] in (1, 3) and array.size
    fractions = array.dtype.kind == "f"
    if not shaped or not (fractions or array.dtype == np.uint8):
        raise UserError(
            f"data={name}: {array.dtype} of shape {list(array.shape)}; {_ACCEPTED}"
        )
    if boundaries.ndim != 1 or boundaries.dtype.kind not in "iu":
        raise UserError(
            f"data={name}: boundaries is {boundaries.dtype} of shape "
            f"{list(boundaries.shape)}; accepted are integers of shape [sequences]"
        )
    begins, total = tuple(boundaries.tolist()), len(array)
    height, width = array.shape[1:3]
    fit = fit.settled(height, width)
    fit.check(height, width, f"a frame of {name}")
    digest = hashlib.sha256()
    for start in range(0, total, _CHUNK):
        part = array[start : start + _CHUNK]
        if fractions and not np.all((part >= 0) & (part <= 1)):
            raise UserError(
                f"data={name}: {array.dtype} from {part.min()} to {part.max()} in "
                f"frames {start} to {start + len(part) - 1}; {_ACCEPTED}"
            )
        digest.update(np.ascontiguousarray(part).data)
    identity = {
        "frames": digest.hexdigest(),
        "shape": list(array.shape),
        "boundaries": begins,
    }

    def frame(index: int) -> np.ndarray:
        one = array[index]
        return np.rint(one * np.float64(255)).astype(np.uint8) if fractions else one

    frames = fit.frames(frame, lambda _: name)
    return fit.source(name, total, begins, frames, reader="npz", **identity)


def _load(path: Path) -> tuple[np.ndarray, np.ndarray]:
    one_sequence = np.zeros(1, int)
    try:
        if files.kind(path) == "npy":
            return np.load(path, mmap_mode="r", allow_pickle=False), one_sequence
        with files.open_npz(path) as arrays:
            names = [name for name in arrays.files if name != "boundaries"]
            name = names[0] if len(names) == 1 else "frames"
            if name not in names:
                raise UserError(
                    f"data={path}: holds the arrays {names[:8]}; accepted is an array "
                    "'frames', [T, H, W, C], or one array alone"
                )
            boundaries = arrays.get("boundaries", one_sequence)
            return np.asarray(arrays[name]), np.asarray(boundaries)
    except UserError:
        raise
    except files.BROKEN as error:
        reason = files.reason(error)
        raise UserError(f"data={path}: not a readable .npy ({reason})") from None
