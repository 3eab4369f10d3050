"""Files that somebody else made: the one place that opens them.

What is no regular file (a pipe, a device, a socket) is refused before it is opened, a
size is read from headers and refused before memory is taken, nothing is unpickled, and
no link leads to another file. Messages name files and sizes, and quote nothing of what
a file holds but the names of its arrays.
"""

from prednet_jax.files.hdf5 import read_hdf5
from prednet_jax.files.npz import map_npy, npz_names, read_npz
from prednet_jax.files.opening import (
    LIMIT,
    FileError,
    kind,
    open_binary,
    read_bytes,
    read_head,
    read_text,
    reason,
)

__all__ = [
    "LIMIT",
    "FileError",
    "kind",
    "map_npy",
    "npz_names",
    "open_binary",
    "read_bytes",
    "read_hdf5",
    "read_head",
    "read_npz",
    "read_text",
    "reason",
]
