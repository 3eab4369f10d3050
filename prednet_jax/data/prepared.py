"""Data sets that TensorFlow Datasets holds prepared, read by number (ArrayRecord).

TensorFlow is not needed. Frames are those of `data.builders`; MNIST is TFDS's own.
Nothing is downloaded or prepared here: where files are missing, the error says what to
run.
"""

import hashlib
import io
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from prednet_jax import files
from prednet_jax.data.digits import Stills
from prednet_jax.data.frames import Fit
from prednet_jax.data.source import (
    DataError,
    FrameSource,
    limited_boundaries,
    limited_length,
)

INFO = "dataset_info.json"
# TFDS asserts, and some of its readers raise what they like.
_BROKEN = (*files.BROKEN, AttributeError, AssertionError, NotImplementedError)


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
    return _opened(path)[1]


def name_of(path: pathlib.Path) -> str | None:
    """The name of a prepared data set; None: the path is no folder of one."""
    try:
        return json.loads(files.read_text(path / INFO))["name"]
    except (ValueError, LookupError, TypeError, OSError):
        return None


def _opened(path: pathlib.Path) -> tuple[Any, tuple[str, ...]]:
    """The builder of a prepared folder, and its splits.

    Raises:
        DataError: The folder is no data set.
    """
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder_from_directory(path)
        metadata = builder.info.metadata or {}
        return builder, tuple(metadata.get("boundaries") or builder.info.splits)
    except _BROKEN as error:
        raise _no_pictures(path, error) from error


def _no_pictures(path: pathlib.Path, error: BaseException) -> DataError:
    return DataError(
        f"data={path}: no pictures that experiments/prepare_data.py or TFDS prepared "
        f"for random access ({files.reason(error)})"
    )


def _digest(split: str, examples: Any, content: Callable[[Any], bytes]) -> str:
    """SHA-256 of up to 256 evenly distributed pictures of a set without digests.

    All of them would have to be decoded.
    """
    count = len(examples)
    digest = hashlib.sha256(f"{split} {count}".encode())
    for index in np.unique(np.linspace(0, count - 1, 256).astype(int)).tolist():
        digest.update(content(examples[index]["image"]))
    return digest.hexdigest()


def open_prepared(
    path: pathlib.Path, split: str | None, fit: Fit, length: int | None
) -> FrameSource:
    """Open a prepared data set.

    Args:
        path: The folder of one version, such as ~/tensorflow_datasets/kitti_raw/1.0.0.
            Of a set that TFDS itself prepared, such as MNIST, the pictures are the
            frames, in the order of its files.
        split: Which part; None is `train`, or the only one.
        fit: How a picture becomes a frame.
        length: Number of frames to use; None is all.

    Raises:
        DataError: The folder is no data set of pictures, or has no such split.
    """
    import tensorflow_datasets as tfds
    from PIL import Image

    builder, known = _opened(path)
    chosen = split or ("train" if "train" in known or not known else known[0])
    if chosen not in known:
        raise DataError(f"data={path}:{chosen}: expected one of {', '.join(known)}")
    metadata = builder.info.metadata or {}
    try:
        encoded = {"image": tfds.decode.SkipDecoding()}
        examples: Any = builder.as_data_source(split=chosen, decoders=encoded)
        begins: tuple[int, ...] = (0,)
        if "boundaries" in metadata:
            begins = tuple(metadata["boundaries"][chosen])
            digest = metadata["frames_sha256"][chosen]
        else:
            digest = _digest(chosen, examples, bytes)
    except _BROKEN as error:
        raise _no_pictures(path, error) from error
    name = f"{path}:{chosen}"
    total = limited_length(name, len(examples), length)

    def picture(index: int) -> np.ndarray:
        with Image.open(io.BytesIO(examples[index]["image"])) as image:
            pixels = np.asarray(image)
        return pixels.reshape(*pixels.shape[:2], -1)

    fit = fit.settled(*picture(0).shape[:2])
    frames = fit.frames(picture, lambda _: name)
    frames(0, 1)  # So that a frame size that does not fit is told at once.
    begins = limited_boundaries(begins, total)
    identity = {"frames": digest, "boundaries": begins}
    return fit.source(name, total, begins, frames, reader="prepared", **identity)


def mnist() -> Stills:
    """MNIST's training pictures, read one by one, in the order of the files.

    They lie in the folder of the environment variable TFDS_DATA_DIR, else in
    ~/tensorflow_datasets.

    Raises:
        DataError: The prepared files are missing; the message says how to prepare them.
    """
    import tensorflow_datasets as tfds

    folder = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    try:
        examples = tfds.data_source(
            "mnist", split="train", data_dir=folder, download=False
        )
        digest = _digest("train", examples, np.ndarray.tobytes)
    except _BROKEN as error:
        raise DataError(
            f"data=mnist: not prepared for random access in {folder} (TFDS_DATA_DIR "
            "names another folder); bring its four files and run python "
            "experiments/prepare_data.py --dataset=mnist --source=FOLDER; data=digits "
            f"needs none [{files.reason(error)}]"
        ) from error
    return Stills(
        "mnist",
        len(examples),
        lambda index: np.asarray(examples[index]["image"])[..., 0],
        digest,
    )
