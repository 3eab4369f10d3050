"""Which format a path has, to read and to write."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.weights.chainer import save_chainer
from prednet_jax.weights.keras import save_keras
from prednet_jax.weights.tensors import NETWORK, save_orbax, save_safetensors

Writer = Callable[[str | os.PathLike, PredNetConfig, Mapping], None]
#: What writes a file, by its suffix; a path without suffix is an orbax directory.
WRITERS: dict[str, Writer] = {
    ".npz": save_chainer,
    ".model": save_chainer,
    ".hdf5": save_keras,
    ".h5": save_keras,
    ".safetensors": save_safetensors,
    "": save_orbax,
}


def writer(path: str | os.PathLike) -> Writer:
    """What writes weights to a path: `save(path, config, params)`.

    Raises:
        UserError: its suffix is none of `WRITERS`.
    """
    suffix = Path(path).suffix
    if suffix not in WRITERS:
        raise UserError(
            f"{path}: suffix {suffix!r}; expected one of "
            f"{', '.join(filter(None, WRITERS))}, or none for an orbax directory"
        )
    return WRITERS[suffix]


def written(path: str | os.PathLike) -> list[Path]:
    """Every file or directory that the writer of a path makes."""
    path = Path(path)
    keras = WRITERS.get(path.suffix) is save_keras
    return [path, path.with_suffix(".json")] if keras else [path]


def is_orbax(path: str | os.PathLike) -> bool:
    """Whether a directory holds a network that `save_orbax` wrote."""
    return (Path(path) / NETWORK).is_file()


def is_safetensors(path: str | os.PathLike) -> bool:
    """Whether a file begins as a safetensors file does: eight bytes, then JSON."""
    with open(path, "rb") as file:
        start = file.read(9)
    size = int.from_bytes(start[:8], "little")
    return start[8:] == b"{" and size < Path(path).stat().st_size
