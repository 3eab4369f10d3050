"""Frames from an array: an .npz or .npy of NumPy, or an .hkl, as coxlab/prednet writes.

The layout of an array names its axes by letters: N sequences of T frames of C channels,
H rows and W columns, such as THWC, NTCHW or TNHW; without C the frames are grey. An
array without a layout is read where its shape has one meaning, and one line reports it.
Frames are uint8, or fractions of white from 0 to 1, which are rounded to uint8.

Several sequences are given by an axis N, by `boundaries`, the indices of their first
frames, in an .npz, or by a file of sources next to an .hkl (`data.hickle`). An .npz is
read into memory; other arrays are mapped.
"""

import hashlib
import mmap
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax import errors, files
from prednet_jax.data import hickle
from prednet_jax.data.frames import Fit, FrameSource
from prednet_jax.data.images import check_size
from prednet_jax.errors import UserError

ARRAY_SUFFIXES = (".hkl", ".npy", ".npz")
_ACCEPTED = (
    "accepted are frames of uint8 (convert other whole numbers up to 255 by .astype("
    "'uint8')) or of fractions from 0 to 1 (divide floats up to 255 by 255), [T, H, W, "
    "C] with C 1 or 3, or grey [T, H, W]; others by --layout= (layout=), as NTHWC, "
    "NTCHW or TNHW"
)
# Layouts that are guessed, by the number of axes, the usual ones first.
_LAYOUTS = {
    3: ("THW", "CHW", "HCW", "HWC"),
    4: ("THWC", "TCHW", "NTHW", "TNHW", "CTHW"),
    5: ("NTHWC", "TNHWC", "NTCHW", "TNCHW", "NCTHW"),
}
# The first axes of the layouts that boundaries fit.
_IN_TIME = ("TH", "TC")
# Bytes that are checked together.
_CHUNK = 2**26
# The published test set of Moving MNIST (Srivastava et al. 2015).
_MOVING_MNIST = "mnist_test_seq.npy", (20, 10000, 64, 64)


def open_array(path: Path, fit: Fit, layout: str | None = None) -> FrameSource:
    """Opens frames in an array; an .npz without `frames` may hold one other array."""
    return _Film(path, layout).source(fit)


class _Film:
    """An array whose axes are known."""

    def __init__(self, path: Path, layout: str | None = None):
        self._path = path
        self._array, boundaries = _load(path)
        shape = self._array.shape
        fractions = self._array.dtype.kind == "f"
        if 0 in shape or not (fractions or self._array.dtype == np.uint8):
            raise UserError(
                f"data={path}: {self._array.dtype} of shape {list(shape)}; {_ACCEPTED}"
            )
        self._fractions = fractions
        if layout:
            self._layout = _checked(path, shape, layout)
        else:
            self._layout = _guess(path, shape, divided=boundaries is not None)
        self._size = dict(zip(self._layout, shape, strict=True))
        self._height, self._width = self._size["H"], self._size["W"]
        check_size(self._width, self._height, path)
        self._steps = self._size.get("T", 1)
        self._total = self._steps * self._size.get("N", 1)
        if boundaries is None:
            self._boundaries = tuple(range(0, self._total, self._steps))
        elif "N" in self._size:
            raise UserError(
                f"data={path}: holds boundaries, and layout={self._layout} has an axis "
                "N of sequences; expected one of the two"
            )
        else:
            self._boundaries = boundaries

    def source(self, fit: Fit) -> FrameSource:
        """Returns the source that a fit makes of the frames; checks all of them."""
        name, array = str(self._path), self._array
        fit = fit.settled(self._height, self._width)
        fit.check(self._height, self._width, f"a frame of {name}")
        self._file = files.Unchanged(self._path, self._digest)
        identity: dict[str, Any] = {
            "frames": self._file.content,
            "shape": list(array.shape),
            "boundaries": self._boundaries,
        }
        if self._layout == "THW":
            identity["shape"].append(1)
        elif self._layout != "THWC":
            identity["layout"] = self._layout
        frames = fit.frames(self._frame, lambda _: name)
        return fit.source(
            name, self._total, self._boundaries, frames, reader="npz", **identity
        )

    def _digest(self) -> str:
        """Returns the SHA-256 of all frames, and checks them."""
        name, array = str(self._path), self._array
        digest = hashlib.sha256()
        rows = max(1, _CHUNK // max(1, array.nbytes // len(array)))
        for start in range(0, len(array), rows):
            part = self._read(slice(start, start + rows))
            if self._fractions and not np.all((part >= 0) & (part <= 1)):
                axis = "frames" if self._layout[0] == "T" else f"axis {self._layout[0]}"
                raise UserError(
                    f"data={name}: {array.dtype} from {part.min()} to {part.max()} in "
                    f"{axis} {start} to {start + len(part) - 1}; {_ACCEPTED}"
                )
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    def _read(self, index: Any) -> np.ndarray:
        """Reads a part of the array."""
        problem = f"data={self._path}: a part of its array is broken"
        mapped = getattr(self._array, "base", None)
        # The system ends a process that reads a mapped file behind its end.
        if isinstance(mapped, mmap.mmap) and mapped.size() < len(mapped):
            raise UserError(f"{problem} (the file was cut); expected a whole file")
        with files.broken_as(problem, "; expected a whole file"):
            return self._array[index]

    def _frame(self, index: int) -> np.ndarray:
        """Returns a frame uint8 `[H, W, C]`."""
        indices = dict(zip("NT", divmod(index, self._steps), strict=True))
        chosen = tuple(indices.get(axis, slice(None)) for axis in self._layout)
        if type(self._array) is np.ndarray:
            picture = self._read(chosen)
        else:  # It is read from the file here, and has to be what was checked.
            self._file.check()
            picture = np.array(self._read(chosen))
            self._file.check()
        axes = [axis for axis in self._layout if axis not in indices]
        if "C" not in axes:
            picture, axes = picture[..., None], [*axes, "C"]
        picture = picture.transpose([axes.index(axis) for axis in "HWC"])
        if self._fractions:
            return np.rint(picture * np.float64(255)).astype(np.uint8)
        return picture


def _checked(path: Path, shape: tuple[int, ...], layout: str) -> str:
    """Returns a layout in capitals, if the shape fits it."""
    letters = layout.upper()
    named = set(letters)
    if not set("HW") <= named <= set("NTCHW") or len(named) < len(letters):
        raise UserError(
            f"layout={layout!r}: expected H and W, and perhaps N, T and C, each once, "
            "such as THWC, NTHWC, NTCHW or TNHW, or HWC for one picture"
        )
    if len(letters) != len(shape):
        raise UserError(
            f"layout={layout}: names {len(letters)} axes, and the array of {path} has "
            f"{len(shape)}, {list(shape)}; expected one letter an axis"
        )
    channels = dict(zip(letters, shape, strict=True)).get("C", 1)
    if channels not in (1, 3):
        raise UserError(
            f"layout={layout}: C is {channels} in the shape {list(shape)} of {path}; "
            "expected an axis of 1 or 3 channels, or no C for grey frames; leave out a "
            "fourth channel, of transparency"
        )
    return letters


def _guess(path: Path, shape: tuple[int, ...], *, divided: bool) -> str:
    """Returns the layout of an array whose shape has only one meaning.

    If it is `divided` by the first frames of its sequences, time is its first axis.
    """
    name, published = _MOVING_MNIST
    layouts = _readings(shape, divided) or _readings(shape, divided, narrow=True)
    if shape == published or (path.name == name and "TNHW" in layouts):
        layouts = ["TNHW"]
    if not layouts:
        raise UserError(f"data={path}: an array of shape {list(shape)}; {_ACCEPTED}")
    if len(layouts) > 1:
        raise UserError(
            f"data={path}: an array of shape {list(shape)} can be read as "
            f"{' or '.join(layouts)}; choose one by --layout= (layout=)"
        )
    layout = _checked(path, shape, layouts[0])
    if layout not in ("THWC", "THW"):
        errors.log_once(f"data={path}: shape {list(shape)} is read as layout {layout}")
    return layout


def _readings(
    shape: tuple[int, ...], divided: bool, *, narrow: bool = False
) -> list[str]:
    """Returns the layouts of different meaning that an array of a shape can have.

    Frames in films have no side of 1 or 3, since that axis is channels; `narrow` ones
    have channels and may have such a side.
    """
    readings: dict[str, str] = {}
    for layout in _LAYOUTS.get(len(shape), ()):
        size = dict(zip(layout, shape, strict=True))
        thin = len(shape) > 3 and bool({1, 3} & {size["H"], size["W"]})
        sides = "C" in size if narrow else not thin
        in_order = not divided or layout[:2] in _IN_TIME
        if sides and in_order and _is_possible(layout, size):
            # One sequence or one channel is the same frames as none.
            content = "".join(x for x in layout if size[x] > 1 or x in "HW")
            readings.setdefault(content, layout)
    return list(readings.values())


def _is_possible(layout: str, size: dict[str, int]) -> bool:
    """Returns whether axes of these sizes can be C, N and T of a layout.

    An axis of 1, 3 or 4 may be channels, so that a picture or film in colour is not
    taken for grey frames. A sequence has two frames or more.
    """
    if size.get("C", 1) not in (1, 3, 4):
        return False
    if layout.startswith("CT") and size["C"] == 1:
        return False  # Named by the layout without C.
    return size.get("T", 2) > 1 or not ("N" in size or layout[0] == "C")


def _load(path: Path) -> tuple[Any, tuple[int, ...] | None]:
    """Returns the array, and the first frames of its sequences if the file has them."""
    kind = files.kind(path)
    if kind == "hdf5" or path.suffix.lower() == ".hkl":
        return hickle.load(path)
    with files.broken_as(f"data={path}: not a readable .npy"):
        if kind == "npy":
            return np.load(path, mmap_mode="r", allow_pickle=False), None
        with files.open_npz(path) as arrays:
            names = [name for name in arrays.files if name != "boundaries"]
            name = names[0] if len(names) == 1 else "frames"
            if name not in names:
                raise UserError(
                    f"data={path}: holds the arrays {names[:8]}; accepted is an array "
                    "'frames', [T, H, W, C], or one array alone"
                )
            frames = np.asarray(arrays[name])
            if "boundaries" not in arrays.files:
                return frames, None
            boundaries = np.asarray(arrays["boundaries"])
    if boundaries.ndim != 1 or boundaries.dtype.kind not in "iu":
        raise UserError(
            f"data={path}: boundaries is {boundaries.dtype} of shape "
            f"{list(boundaries.shape)}; accepted are integers of shape [sequences]"
        )
    return frames, tuple(boundaries.tolist())
