"""Import and export of published weight files."""

import os

from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.weights.chainer import load_chainer, save_chainer
from prednet_jax.weights.keras import load_keras

__all__ = ["load", "load_chainer", "load_keras", "save_chainer"]

_HDF5 = b"\x89HDF\r\n\x1a\n"


def load(
    path: str | os.PathLike, *, height: int, width: int, pixel_max: float = 1.0
) -> tuple[PredNetConfig, dict]:
    """Reads a weight file of Keras or Chainer, whatever its name.

    Args:
        path: an HDF5 file (Keras) or an npz (Chainer).
        height: rows of the frames, which a Keras file does not say.
        width: columns of the frames, likewise.
        pixel_max: upper clip of the bottom prediction, likewise.

    Raises:
        UserError: the file is missing, or is neither.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(len(_HDF5))
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror}; expected a weight file of Chainer (npz) or "
            "Keras (HDF5)"
        ) from None
    if start == _HDF5:
        return load_keras(path, height=height, width=width, pixel_max=pixel_max)
    return load_chainer(path)
