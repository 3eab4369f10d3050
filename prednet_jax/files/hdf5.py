"""Arrays of an HDF5 file that lie in the file itself.

HDF5 can keep a data set's bytes in any other file (external storage), build it from
other files (virtual data sets), and link to names there. All three are refused. Sizes
are added up before anything is read: a data set of many terabytes costs a file nothing.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from prednet_jax.files.opening import LIMIT, FileError, open_binary, reason

# What h5py raises on broken bytes.
_BROKEN = (OSError, RuntimeError, ValueError, TypeError, LookupError, OverflowError)
# Groups and data sets in one file, which bounds groups that hold themselves, too.
_MEMBERS = 10_000


def read_hdf5(
    path: str | os.PathLike, wanted: Callable[[str], bool], *, limit: int = LIMIT
) -> dict[str, np.ndarray]:
    """Reads data sets of numbers.

    Args:
        path: the file.
        wanted: whether to read the data set of this name, such as `model/a/kernel:0`.
        limit: bytes that the arrays may take in memory, together.

    Returns:
        The arrays by name.

    Raises:
        FileError: the file is missing, no HDF5, leads to other files, or holds more
            than `limit`.
    """
    import h5py

    # HDF5 opens by name: what is no regular file is refused before.
    open_binary(path).close()
    try:
        with h5py.File(path, "r") as file:
            return {
                name: np.asarray(dataset[()])
                for name, dataset in _datasets(path, file, wanted, limit).items()
            }
    except FileError:
        raise
    except _BROKEN as error:
        raise FileError(f"{path}: not a readable HDF5 file ({reason(error)})") from None


def _datasets(
    path: str | os.PathLike, file: Any, wanted: Callable[[str], bool], limit: int
) -> dict[str, Any]:
    """The data sets asked for, checked, in the order of their names."""
    import h5py

    found: dict[str, Any] = {}
    left, seen, open_groups = limit, 0, [("", file)]
    while open_groups:
        above, group = open_groups.pop()
        for key in group:
            seen += 1
            if seen > _MEMBERS:
                raise FileError(
                    f"{path}: expected at most {_MEMBERS} groups and arrays"
                )
            name = f"{above}{key}"
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                raise FileError(f"{path}: {name!r} is a link, maybe to another file")
            node = group[key]
            if isinstance(node, h5py.Group):
                open_groups.append((f"{name}/", node))
            elif isinstance(node, h5py.Dataset) and wanted(name):
                left -= _size(path, name, node)
                if left < 0:
                    raise FileError(f"{path}: its arrays take more than {limit} bytes")
                found[name] = node
    return found


def _size(path: str | os.PathLike, name: str, dataset: Any) -> int:
    """Bytes of a data set in memory; refuses what lies in other files."""
    if dataset.external or dataset.is_virtual:
        raise FileError(f"{path}: {name!r} lies in another file")
    if dataset.dtype.hasobject or dataset.shape is None:
        raise FileError(f"{path}: {name!r} holds no numbers")
    return dataset.size * dataset.dtype.itemsize
