"""Arrays as hickle 2 to 5 writes them, HDF5, and the sources next to them.

The root holds one value, `data_0` (hickle 2 and 3) or `data` (4 and 5). An array is one
data set. A list of names is one data set of strings, or, of hickle 5, a group of data
sets: the characters of each name, or a reference to a name that was written before.

process_kitti.py of coxlab/prednet writes `X_train.hkl`, uint8 `[T, H, W, C]`, and
`sources_train.hkl`, one name a frame. Each run of one name is a sequence
(`SequenceGenerator` of data_utils.py).
"""

import contextlib
import math
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax import errors, files
from prednet_jax.data.images import natural_key
from prednet_jax.errors import UserError

# The largest part that HDF5 decompresses at once, the most bytes of a list of names,
# and how many times its own size a file may decompress to, the limit of deflate.
_PART, _NAMES, _RATIO = 2**30, 2**26, 1040


def load(path: Path) -> tuple[Any, tuple[int, ...] | None]:
    """Opens an array, whose parts are read when they are indexed.

    Returns it, and the first frames of its sequences if there is a file of sources next
    to it, which one line reports. Another file is a UserError.
    """
    expected = "; expected HDF5 of hickle with one array, data_0 or data"
    with files.broken_as(f"data={path}: not a readable .hkl", expected):
        return _load(path)


def _load(path: Path) -> tuple[Any, tuple[int, ...] | None]:
    import h5py

    with contextlib.ExitStack() as opened:
        array = _root(opened.enter_context(h5py.File(path, "r")))
        if (
            not hasattr(array, "dtype")
            or array.ndim < 3
            or array.dtype.kind not in "uif"
        ):
            raise UserError(
                f"data={path}: an .hkl that holds no frames; expected one array, such "
                "as the X_train.hkl of process_kitti.py"
            )
        part = math.prod(array.chunks or (1,)) * array.dtype.itemsize
        more = array.nbytes > _RATIO * max(1, array.id.get_storage_size())
        if array.is_virtual or array.external or part > _PART or more:
            raise UserError(
                f"data={path}: its array lies in another file, or is not stored as a "
                "whole; expected an array as hickle writes it"
            )
        starts = _starts(path, array)
        # The array is read later. Only a refused file is closed here.
        opened.pop_all()
    return array, starts


def _starts(path: Path, array: Any) -> tuple[int, ...] | None:
    """Returns the first frames of the sequences that a file next to an array names."""
    import h5py

    sources = path.with_name(f"sources_{path.stem.removeprefix('X_')}{path.suffix}")
    if not sources.is_file():
        return None
    try:
        with h5py.File(sources, "r") as file:
            names = np.array(_strings(_root(file)))
    except (UserError, *files.BROKEN) as error:
        raise UserError(
            f"data={path}: {sources.name} next to it is no list of sources "
            f"({files.reason(error)}); expected one name a frame"
        ) from None
    if array.ndim != 4 or len(names) != len(array):
        raise UserError(
            f"data={path}: an array of shape {list(array.shape)}, and {sources.name} "
            f"next to it names {len(names)} sources; expected one source a frame"
        )
    changes = np.flatnonzero(names[1:] != names[:-1]) + 1
    errors.log_once(
        f"data={path}: {len(changes) + 1} sequences, as {sources.name} next to it tells"
    )
    return (0, *changes.tolist())


def _root(file: Any) -> Any:
    """Returns the value that an open .hkl holds."""
    return _value(file, "data_0" if "data_0" in file else "data")


def _value(group: Any, name: str) -> Any:
    """Returns a member of a group; a link could lead to another file."""
    import h5py

    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise KeyError(f"no value {name}")
    return group[name]


def _strings(node: Any) -> list[str]:
    """Reads a list of names."""
    import h5py

    if hasattr(node, "keys"):
        values = (_value(node, name) for name in sorted(node, key=natural_key))
        return ["".join(_strings(value)) for value in values]
    if h5py.check_ref_dtype(node.dtype) is h5py.Reference:
        return _strings(node.file[node[()]])
    if node.nbytes > _NAMES:
        raise UserError(f"names of {node.nbytes} bytes; expected at most {_NAMES}")
    return [
        value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        for value in np.ravel(node[()]).tolist()
    ]
