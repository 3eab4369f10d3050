"""Frames that TensorFlow Datasets holds prepared, read by number through ArrayRecord.

The folder of one version, such as ~/tensorflow_datasets/kitti_raw/1.0.0, as
`data.builders` made it. TensorFlow is not needed.
"""

import io
import os
import pathlib
from typing import Any

import numpy as np

from prednet_jax.data.frames import Fit, to_channels
from prednet_jax.data.source import (
    DataError,
    FrameSource,
    check_range,
    limited_boundaries,
    limited_length,
)

INFO = "dataset_info.json"


def split_of(path: pathlib.Path) -> tuple[pathlib.Path, str | None]:
    """A folder and the split behind a colon, as in `kitti_raw/1.0.0:test`."""
    if os.path.lexists(path) or ":" not in path.name:
        return path, None
    name, _, split = path.name.rpartition(":")
    return path.with_name(name), split


def splits(data: str) -> tuple[str, ...]:
    """The splits that a prepared folder holds; none where a split is named already."""
    path, split = split_of(pathlib.Path(os.path.expanduser(data)))
    if split or not (path / INFO).is_file():
        return ()
    return tuple(_opened(path).info.metadata["boundaries"])


def _opened(path: pathlib.Path) -> Any:
    """The builder of a prepared folder.

    Raises:
        DataError: If the folder was not made by `data.builders`.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise DataError(
            f"data={path}: needs {error.name}; pip install '.[data]'"
        ) from error
    try:
        builder = tfds.builder_from_directory(path)
        list(builder.info.metadata["boundaries"])
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        raise DataError(
            f"data={path}: not prepared by experiments/prepare_data.py "
            f"({' '.join(str(error).split())[:120]})"
        ) from error
    return builder


def open_prepared(
    path: pathlib.Path, split: str | None, fit: Fit, length: int | None
) -> FrameSource:
    """Open a prepared data set.

    Args:
        path: The folder of one version.
        split: Which part; None is `train`, or the only one.
        fit: How a picture becomes a frame.
        length: Number of frames to use; None is all.

    Returns:
        The source.

    Raises:
        DataError: If the folder was not made by `data.builders`, or has no such split.
    """
    builder = _opened(path)
    import tensorflow_datasets as tfds
    from PIL import Image

    held = builder.info.metadata
    splits = list(held["boundaries"])
    chosen = split or ("train" if "train" in splits else splits[0])
    if chosen not in splits:
        raise DataError(f"data={path}:{chosen}: expected one of {', '.join(splits)}")
    encoded = {"image": tfds.decode.SkipDecoding()}
    examples: Any = builder.as_data_source(split=chosen, decoders=encoded)
    name = f"{path}:{chosen}"
    total = limited_length(name, len(examples), length)

    def read(start: int, stop: int) -> np.ndarray:
        check_range(name, total, start, stop)
        out = np.empty((stop - start, fit.height, fit.width, fit.channels), np.uint8)
        for place, frame in zip(range(start, stop), out, strict=True):
            with Image.open(io.BytesIO(examples[place]["image"])) as image:
                picture = np.asarray(image)
            picture = picture.reshape(*picture.shape[:2], -1)
            frame[:] = to_channels(fit(picture, name), fit.channels)
        return out

    read(0, 1)  # So that a frame size that does not fit is told at once.
    boundaries = limited_boundaries(tuple(held["boundaries"][chosen]), total)
    identity = {"frames": held["frames_sha256"][chosen], "boundaries": boundaries}
    return fit.source(name, total, boundaries, read, reader="prepared", **identity)
