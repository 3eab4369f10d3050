"""Import and export of published weight files."""

import os

from prednet_jax import files
from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.weights.chainer import load_chainer, save_chainer
from prednet_jax.weights.formats import is_orbax, is_safetensors, writer, written
from prednet_jax.weights.keras import load_keras, save_keras
from prednet_jax.weights.tensors import (
    load_orbax,
    load_safetensors,
    save_orbax,
    save_safetensors,
)

__all__ = [
    "is_orbax",
    "is_safetensors",
    "load",
    "load_chainer",
    "load_keras",
    "load_orbax",
    "load_safetensors",
    "save_chainer",
    "save_keras",
    "save_orbax",
    "save_safetensors",
    "writer",
    "written",
]

_ACCEPTED = (
    "a weight file of Chainer (npz) or Keras (HDF5), a safetensors file, or a "
    "directory of orbax"
)


def load(
    path: str | os.PathLike, *, height: int, width: int, pixel_max: float = 1.0
) -> tuple[PredNetConfig, dict]:
    """Reads weights in any of the formats, whatever the name.

    Args:
        path: an HDF5 file (Keras), an npz (Chainer), a safetensors file, or a directory
            that `save_orbax` wrote.
        height: rows of the frames, which a Keras file does not say.
        width: columns of the frames, likewise.
        pixel_max: upper clip of the bottom prediction, likewise.

    Raises:
        UserError: the file is missing, or is neither.
    """
    if is_orbax(path):
        return load_orbax(path)
    try:
        found = files.kind(files.read_head(path))
    except files.FileError as error:
        raise UserError(f"{error}; expected {_ACCEPTED}") from None
    if found == "hdf5":
        return load_keras(path, height=height, width=width, pixel_max=pixel_max)
    if is_safetensors(path):
        return load_safetensors(path)
    if found == "zip":
        return load_chainer(path)
    raise UserError(f"{path}: of another kind; expected {_ACCEPTED}")
