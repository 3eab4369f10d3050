"""MNIST and Moving MNIST for TensorFlow Datasets, prepared without TensorFlow.

See `data.builders`.
"""

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from prednet_jax import files
from prednet_jax.data.builders import Frames, Pictures, missing, sha256
from prednet_jax.data.source import DataError


class MovingMnist(Frames, skip_registration=True):
    """Moving MNIST's published test set (Srivastava et al. 2015, arXiv 1502.04681).

    10000 sequences of 20 frames of 64x64, all of them `test`. For training,
    `--data=moving_mnist` makes as many as are needed.
    """

    name = "moving_mnist_test"
    COLOURS = 1
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "Download http://www.cs.toronto.edu/~nitish/unsupervised_video/"
        "mnist_test_seq.npy (SHA-256 c2a3e8d3939c001ab77bf543f130157424efa486bb4d0974d2"
        "cebb773b13f8b3)."
    )

    def originals(self, folder: Path) -> dict[str, str]:
        """The one file."""
        return {"mnist_test_seq.npy": sha256(self._file(folder))}

    def _file(self, folder: Path) -> Path:
        path = folder / "mnist_test_seq.npy"
        if not path.is_file():
            raise missing(self, folder, path.name)
        return path

    def splits(self, folder: Path) -> dict[str, Callable[[], Pictures]]:
        """The one file."""
        path = self._file(folder)
        try:
            frames = files.map_npy(path)
        except files.FileError as error:
            raise DataError(f"{error}; expected a whole file") from None
        if frames.ndim != 4 or frames.dtype != np.uint8:
            raise DataError(
                f"{path}: {frames.dtype} of shape {list(frames.shape)}; expected uint8 "
                "[time, sequence, height, width]"
            )

        def pictures() -> Pictures:
            for sequence in range(frames.shape[1]):
                for frame in frames[:, sequence]:
                    yield sequence, Image.fromarray(np.ascontiguousarray(frame))

        return {"test": pictures}


class Mnist(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """MNIST (LeCun, Cortes & Burges), what TFDS's own builder makes with TensorFlow.

    Name, version and features are those of TFDS, whose `data_source("mnist")` reads it.
    Licence CC BY-SA 3.0.
    """

    name = "mnist"
    VERSION = tfds.core.Version("3.0.1")
    RELEASE_NOTES = {"3.0.1": "As in TFDS."}  # noqa: RUF012
    FILES = {"train": "train", "test": "t10k"}  # noqa: RUF012
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "Download train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, "
        "t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz from "
        "https://storage.googleapis.com/cvdf-datasets/mnist/"
    )

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "image": tfds.features.Image(shape=(28, 28, 1)),
            "label": tfds.features.ClassLabel(num_classes=10),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__doc__,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        folder = Path(dl_manager.manual_dir)
        return {
            split: self._generate_examples(
                idx(self, folder, f"{stem}-images-idx3-ubyte", 3),
                idx(self, folder, f"{stem}-labels-idx1-ubyte", 1),
            )
            for split, stem in self.FILES.items()
        }

    def _generate_examples(self, images: np.ndarray, labels: np.ndarray) -> Any:
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            yield number, {"image": Image.fromarray(image), "label": int(label)}


def idx(builder: Any, folder: Path, name: str, axes: int) -> np.ndarray:
    """An IDX file of unsigned bytes, compressed by gzip or not.

    The format: two zero bytes, the type (8: unsigned byte), the number of axes, the
    length of each as a big-endian 32-bit number, the values.

    Raises:
        DataError: it is not there, or no such file.
    """
    path = folder / f"{name}.gz"
    if not path.is_file():
        path = path.with_suffix("")
    if not path.is_file():
        raise missing(builder, folder, f"{name}.gz")
    try:
        held = path.read_bytes()
        if path.suffix == ".gz":
            held = gzip.decompress(held)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: {files.reason(error)}; expected a whole file"
        ) from None
    head = 4 + 4 * axes
    shape = np.frombuffer(held[4:head], ">u4") if len(held) >= head else np.zeros(1)
    if held[:4] != bytes([0, 0, 8, axes]) or len(held) != head + shape.prod():
        raise DataError(
            f"{path}: no IDX file of {axes} axes of unsigned bytes, or not a whole one"
        )
    return np.frombuffer(held[head:], np.uint8).reshape(shape.astype(int))
