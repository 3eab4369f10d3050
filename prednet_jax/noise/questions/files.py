"""Arguments and results of a function in files that `numpy.savez` writes.

Arrays named arr_0, arr_1, ... stand by position, all others by name. A name with `/`
is a place in nested dictionaries: `params/Dense_0/kernel` is
`params["Dense_0"]["kernel"]`, so that a model's parameters fit in a file.
"""

from __future__ import annotations

import itertools
import zipfile
import zlib
from typing import Any

import jax
import numpy as np

from prednet_jax.noise.errors import NoiseError

# What numpy.load raises for files that it cannot read.
UNREADABLE = (
    EOFError,
    OSError,
    ValueError,
    AttributeError,
    TypeError,
    zipfile.BadZipFile,
    zlib.error,
)


def read(flag: str, file: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arrays by position and those by name, nested.

    Args:
        flag: that names the file, for errors.
        file: its path.

    Raises:
        NoiseError: when it is no such file, holds something else than numbers, or uses
            one name for an array and for a dictionary.
    """
    try:
        with np.load(file, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
    except UNREADABLE:
        raise NoiseError(
            f"--{flag}={file}: expected a file of arrays as numpy.savez writes it"
        ) from None
    for name, array in arrays.items():
        if array.dtype.kind not in "biufc":
            raise NoiseError(
                f"--{flag}={file}: {name} is of type {array.dtype}: expected numbers; "
                "save bfloat16 as float32 and convert it in the function"
            )
    count = next(i for i in itertools.count() if f"arr_{i}" not in arrays)
    positional = tuple(arrays.pop(f"arr_{i}") for i in range(count))
    nested: dict[str, Any] = {}
    for name, array in arrays.items():
        *around, last = name.split("/")
        place: Any = nested
        for part in around:
            place = place.setdefault(part, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last in place:
            raise NoiseError(
                f"--{flag}={file}: {name} is inside of another array or around one: "
                "expected names of which none is a folder of another"
            )
        place[last] = array
    return positional, nested


def result(flag: str, file: str, shapes: Any) -> Any:
    """A result of a function: its leaves by position, or nested dictionaries by name.

    `shapes` is the result as a pytree. Errors as for `read`.
    """
    positional, named = read(flag, file)
    leaves, structure = jax.tree.flatten(shapes)
    found: Any = jax.tree.structure(named)
    if not positional and found == structure:
        return named
    if named or len(positional) != len(leaves):
        raise NoiseError(
            f"--{flag}={file}: {len(positional)} arrays arr_0, arr_1, ... and "
            f"{len(named)} with names: expected the {len(leaves)} leaves of the result "
            "in order, or of a dict by name"
        )
    return jax.tree.unflatten(structure, positional)
