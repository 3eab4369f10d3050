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
from typing import Any

import numpy as np

from prednet_jax import files
from prednet_jax.data.frames import Fit, to_channels
from prednet_jax.data.source import (
    DataError,
    FrameSource,
    check_range,
    limited_boundaries,
    limited_length,
)
from prednet_jax.data.stills import Stills

INFO = "dataset_info.json"
# How many pictures of a set without digests are fingerprinted, evenly distributed; all
# of them would have to be decoded.
_PROBES = 256


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
    # TFDS asserts, and some of its readers raise what they like.
    except (*files.BROKEN, AttributeError, AssertionError) as error:
        raise _no_pictures(path, error) from error


def _no_pictures(path: pathlib.Path, error: BaseException) -> DataError:
    return DataError(
        f"data={path}: no pictures that experiments/prepare_data.py or TFDS prepared "
        f"for random access ({files.reason(error)})"
    )


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

    Returns:
        The source.

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
        count = len(examples)
        probes = np.unique(np.linspace(0, count - 1, _PROBES).astype(int)).tolist()
        if "boundaries" in metadata:
            begins = tuple(metadata["boundaries"][chosen])
            digest = metadata["frames_sha256"][chosen]
        else:
            begins, hashed = (0,), hashlib.sha256(f"{chosen} {count}".encode())
            for index in probes:
                hashed.update(examples[index]["image"])
            digest = hashed.hexdigest()
    except (*files.BROKEN, AttributeError, AssertionError) as error:
        raise _no_pictures(path, error) from error
    name = f"{path}:{chosen}"
    total = limited_length(name, count, length)

    def picture_of(index: int) -> np.ndarray:
        with Image.open(io.BytesIO(examples[index]["image"])) as image:
            picture = np.asarray(image)
        return picture.reshape(*picture.shape[:2], -1)

    fit = fit.settled(*picture_of(0).shape[:2])

    def read(start: int, stop: int) -> np.ndarray:
        check_range(name, total, start, stop)
        out = np.empty((stop - start, fit.height, fit.width, fit.channels), np.uint8)
        for index, frame in zip(range(start, stop), out, strict=True):
            frame[:] = to_channels(fit(picture_of(index), name), fit.channels)
        return out

    read(0, 1)  # So that a frame size that does not fit is told at once.
    boundaries = limited_boundaries(begins, total)
    identity = {"frames": digest, "boundaries": boundaries}
    return fit.source(name, total, boundaries, read, reader="prepared", **identity)


def mnist() -> Stills:
    """MNIST's training pictures, read one by one, in the order of the files.

    They lie in the folder of the environment variable TFDS_DATA_DIR, else in
    ~/tensorflow_datasets.

    Raises:
        DataError: The prepared files are missing; the message says how to prepare them.
    """
    import tensorflow_datasets as tfds

    folder = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"

    def picture_of(index: int) -> np.ndarray:
        return np.asarray(examples[index]["image"])[..., 0]

    try:
        examples = tfds.data_source(
            "mnist", split="train", data_dir=folder, download=False
        )
        count = len(examples)
        digest = hashlib.sha256(f"train {count}".encode())
        for index in np.unique(np.linspace(0, count - 1, _PROBES).astype(int)).tolist():
            digest.update(picture_of(index).tobytes())
    # NotImplementedError: nothing is prepared, or only as TFRecord.
    except (*files.BROKEN, NotImplementedError, AssertionError) as error:
        raise DataError(
            f"data=mnist: not prepared for random access in {folder} (TFDS_DATA_DIR "
            "names another folder); bring its four files and run python "
            "experiments/prepare_data.py --dataset=mnist --source=FOLDER; data=digits "
            f"needs none [{files.reason(error)}]"
        ) from error
    return Stills("mnist", count, picture_of, digest.hexdigest())
