"""MNIST through the random-access `data_source` of tensorflow-datasets.

The files are those of TFDS's own builder or of `data.digit_builders`, which needs no
TensorFlow. Nothing is downloaded or prepared here: where files are missing, the error
says what to run.
"""

import hashlib
import os

import numpy as np

from prednet_jax.data.source import DataError
from prednet_jax.data.stills import Stills

# How many of the 60000 pictures are fingerprinted, evenly distributed; all of them
# would have to be decoded.
_PROBES = 256

_PREPARE = "python experiments/prepare_data.py --dataset=mnist --source=FOLDER"


def mnist(split: str = "train", data_dir: str | None = None) -> Stills:
    """MNIST's pictures of one split, read one by one.

    Args:
        split: A split of the data set, such as `train` or `test`.
        data_dir: Folder of prepared data sets; None: that of the environment variable
            TFDS_DATA_DIR, else ~/tensorflow_datasets.

    Returns:
        The pictures, 28x28, in the order of the files.

    Raises:
        DataError: If tensorflow-datasets or the prepared files are missing; the
            message says how to prepare them.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise DataError(
            f"data=mnist: needs {error.name}; pip install '.[data]'"
        ) from error
    folder = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    try:
        source = tfds.data_source("mnist", split=split, data_dir=folder, download=False)
        count = len(source)
        first = picture_of(source[0])
    except (
        ImportError,  # The library that reads the file format is missing.
        LookupError,
        NotImplementedError,  # Nothing is prepared, or only as TFRecord.
        AssertionError,
        OSError,
        ValueError,  # There is no such split or data set.
    ) as error:
        raise DataError(_missing(folder, split, error)) from error
    if first.shape != (28, 28):
        raise DataError(
            f"data=mnist: pictures of {folder} have shape {first.shape}; "
            "MNIST has (28, 28)"
        )
    digest = hashlib.sha256(f"{split} {count}".encode())
    for index in np.unique(np.linspace(0, count - 1, _PROBES).astype(int)):
        digest.update(picture_of(source[int(index)]).tobytes())
    return Stills(
        name="mnist",
        total=count,
        picture=lambda index: picture_of(source[index]),
        fingerprint=digest.hexdigest(),
    )


def picture_of(example: dict) -> np.ndarray:
    """The picture of one example, uint8 `[h, w]`."""
    return np.asarray(example["image"])[..., 0]


def _missing(folder: str, split: str, error: Exception) -> str:
    """One line that says what is missing, and what to run."""
    reason = " ".join(str(error).split())[:160] or type(error).__name__
    return (
        f"data=mnist: no split {split!r} prepared for random access in {folder} "
        f"(set TFDS_DATA_DIR to use another folder); bring its four files and run "
        f"{_PREPARE}; data=digits needs none [{reason}]"
    )
