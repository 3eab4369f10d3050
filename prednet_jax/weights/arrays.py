"""What the arrays of any weight file have to be, before a network is made of them."""

import os
from collections.abc import Mapping

import numpy as np

from prednet_jax.errors import UserError

# Axes of an array by the last part of its name, in Chainer's and in Keras's names.
_AXES = {"W": 4, "kernel": 4, "b": 1, "bias": 1}


def check_arrays(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Refuses what is no weight: other types, other numbers of axes, not finite.

    Args:
        path: of the file, for the message.
        arrays: by name, which ends with /W, /kernel, /b or /bias.

    Raises:
        UserError: naming the first such array.
    """
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            raise UserError(
                f"{path}: {name} is {array.dtype}; expected floating-point numbers"
            )
        axes = _AXES.get(name.rpartition("/")[2], array.ndim)
        if array.ndim != axes or not array.size:
            raise UserError(
                f"{path}: {name} of shape {array.shape}; expected {axes} axes, none "
                "of them empty"
            )
        if broken := array.size - int(np.isfinite(array).sum()):
            raise UserError(
                f"{path}: {name} holds {broken} values that are not finite, of "
                f"{array.size}; expected trained weights"
            )


def one_place(path: str | os.PathLike, places: set[str]) -> None:
    """Refuses a file with arrays of several networks.

    Args:
        path: of the file, for the message.
        places: what stands in front of the names of a network's arrays.

    Raises:
        UserError: there are several.
    """
    if len(places) > 1:
        first, second = sorted(places)[:2]
        raise UserError(
            f"{path}: holds {len(places)} networks, below {first!r} and {second!r}; "
            "expected one"
        )
