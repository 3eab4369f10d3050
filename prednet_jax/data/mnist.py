"""MNIST through the random-access `data_source` of tensorflow-datasets.

Prepared files can be read without TensorFlow, but preparing them needs it. So nothing
is downloaded or prepared here; if the files are missing, the error says what to run.
"""

import hashlib
import importlib.util
import os

import numpy as np

from prednet_jax.data.source import DataError
from prednet_jax.data.stills import Stills

# How many of the 60000 pictures are fingerprinted, evenly distributed; all of them
# would have to be decoded.
_PROBES = 256

_PREPARE = (
    'python -c "import tensorflow_datasets as tfds; '
    "tfds.data_source('mnist', split='train')\""
)


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
            message says how to prepare them and whether TensorFlow is there to do it.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise DataError(
            "data=mnist: needs tensorflow-datasets; pip install tensorflow-datasets "
            "(data=digits needs nothing)"
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
    """One line that says what is missing, what to run, and where."""
    reason = " ".join(str(error).split())[:160] or type(error).__name__
    if importlib.util.find_spec("tensorflow") is None:
        where = (
            "TensorFlow, which preparing needs (reading does not), is not installed "
            f"here: where it is, with a network, run {_PREPARE} and copy the folder "
            "mnist that it makes under ~/tensorflow_datasets to here"
        )
    else:
        where = f"with a network, run {_PREPARE}"
    return (
        f"data=mnist: no split {split!r} prepared for random access in {folder} "
        f"(set TFDS_DATA_DIR to use another folder); {where}; data=digits needs "
        f"nothing [{reason}]"
    )
