"""Prepares data sets in the format of TensorFlow Datasets, without TensorFlow.

Every set is the frames of `data.FrameSource`s, one for each split, in order and in
sequences. They are stored as PNG in ArrayRecord, so that `data.prepared` reads any
frame by its number. `metadata.json` beside them holds where each sequence begins,
SHA-256 of the frames of each split, and the fingerprint of what they were made from.
MNIST is prepared by TFDS's own builder.

Nothing is downloaded: `ORIGINALS` says which files to bring, and from where.
"""

import contextlib
import gzip
import hashlib
import io
import os
import pathlib
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.image_classification.mnist import MNIST

from prednet_jax import files
from prednet_jax.data import images, open_source
from prednet_jax.data.frames import Fit
from prednet_jax.data.source import DataError, FrameSource, joined
from prednet_jax.data.video import VIDEO_SUFFIXES, open_video

Splits = dict[str, FrameSource]


class Frames(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Frames of sources, in order.

    Pictures are handed over as Pillow's, which the Image feature encodes by itself;
    arrays it would encode by TensorFlow.

    Args:
        name: of the data set.
        about: its description.
        splits: the frames of each split.
        **options: of TFDS's builder.
    """

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, name: str, about: str, splits: Splits, **options: Any):
        self.name, self._about, self._splits = name, about, splits
        super().__init__(**options)

    def _info(self) -> tfds.core.DatasetInfo:
        channels = next(iter(self._splits.values())).channels
        image = tfds.features.Image(shape=(None, None, channels), encoding_format="png")
        return tfds.core.DatasetInfo(
            builder=self,
            description=self._about,
            features=tfds.features.FeaturesDict({"image": image, "sequence": np.int64}),
            metadata=tfds.core.MetadataDict(
                boundaries={}, frames_sha256={}, made_from=self.made_from
            ),
            disable_shuffling=True,
        )

    @property
    def made_from(self) -> dict[str, str]:
        """The fingerprint of each split's source."""
        return {split: source.fingerprint for split, source in self._splits.items()}

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager
        return {split: self._generate_examples(split) for split in self._splits}

    def _generate_examples(self, split: str) -> Any:
        """Numbers the frames, and notes what is needed to read them."""
        source, digest = self._splits[split], hashlib.sha256()
        for number in range(source.length):
            frame = source.read(number, number + 1)[0]
            sequence = int(np.searchsorted(source.boundaries, number, "right")) - 1
            digest.update(f"{sequence} {frame.shape[1::-1]}".encode())
            digest.update(frame.tobytes())
            picture = Image.fromarray(frame if source.channels == 3 else frame[..., 0])
            yield number, {"image": picture, "sequence": sequence}
        self.info.metadata["boundaries"][split] = list(source.boundaries)
        self.info.metadata["frames_sha256"][split] = digest.hexdigest()


class Mnist(MNIST, skip_registration=True):
    """TFDS's own builder, from files that were brought and read without TensorFlow."""

    name = "mnist"

    def __init__(self, folder: pathlib.Path, **options: Any):
        self._arrays = {
            split: (
                idx(folder, f"{stem}-images-idx3-ubyte", 3),
                idx(folder, f"{stem}-labels-idx1-ubyte", 1),
            )
            for split, stem in {"train": "train", "test": "t10k"}.items()
        }
        super().__init__(**options)

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager
        return {s: self._generate_examples(*a) for s, a in self._arrays.items()}

    def _generate_examples(self, images: np.ndarray, labels: np.ndarray) -> Any:
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            yield number, {"image": Image.fromarray(image), "label": int(label)}


class KittiFit(Fit):
    """As Lotter et al. 2017 prepared KITTI (process_im of process_kitti.py).

    Scaled to the height with Pillow's bilinear filter, and the middle columns.
    """

    def check(self, height: int, width: int, name: str) -> None:
        """Refuses pictures that are too narrow."""
        if round(self.height / height * width) < self.width:
            raise DataError(f"{name} is {width}x{height} (width x height): too narrow")

    def __call__(self, picture: np.ndarray, name: str) -> np.ndarray:
        """Scales and cuts one picture, uint8 `[h, w, 3]`."""
        self.check(*picture.shape[:2], name)
        across = round(self.height / picture.shape[0] * picture.shape[1])
        image = Image.fromarray(picture)
        scaled = image.resize((across, self.height), Image.Resampling.BILINEAR)
        left = (across - self.width) // 2
        return np.asarray(scaled)[:, left : left + self.width]


# Lotter et al. 2017: one recording for validation, three for the test.
KITTI_HELD_OUT = {
    "2011_09_26_drive_0005_sync": "validation",
    "2011_09_26_drive_0104_sync": "test",
    "2011_09_26_drive_0079_sync": "test",
    "2011_09_26_drive_0070_sync": "test",
}


def kitti(folder: pathlib.Path) -> Splits:
    """Camera image_03 of each recording; every recording is a sequence."""
    sequences: dict[str, list] = {}
    for path, names in images.sequences_below(folder, (".png",)).items():
        parts = pathlib.Path(path).parts
        if len(parts) > 2 and parts[-2:] == ("image_03", "data"):
            split = KITTI_HELD_OUT.get(parts[-3], "train")
            sequences.setdefault(split, []).append(names)
    fit = KittiFit(height=128, width=160, crop="center")
    return {
        split: images.open_images(f"{folder}, {split}", found, fit)
        for split, found in sequences.items()
    }


def fpsi(folder: pathlib.Path) -> Splits:
    """Every video is a sequence of `train`."""
    fit = Fit(height=120, width=160, crop="resize")
    videos = [
        open_video(pathlib.Path(name), fit)
        for names in images.sequences_below(folder, VIDEO_SUFFIXES).values()
        for name in names
    ]
    return {"train": joined(str(folder), videos)} if videos else {}


def moving_mnist(folder: pathlib.Path) -> Splits:
    """The published file, uint8 `[time, sequence, height, width]`, as `test`."""
    path = folder / "mnist_test_seq.npy"
    if not path.is_file():
        return {}
    try:
        frames = np.load(path, mmap_mode="r", allow_pickle=False)
    except files.BROKEN as error:
        raise DataError(
            f"{path}: not a whole .npy ({files.reason(error)}); expected a whole file"
        ) from None
    if frames.ndim != 4 or frames.dtype != np.uint8:
        raise DataError(
            f"{path}: {frames.dtype} of shape {list(frames.shape)}; expected uint8 "
            "[time, sequence, height, width]"
        )
    steps, count, height, width = frames.shape

    def read(start: int, stop: int) -> np.ndarray:
        numbers = np.arange(start, stop)
        return frames[numbers % steps, numbers // steps][..., None]

    with files.open_binary(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    fit = Fit(height=height, width=width, channels=1, crop="center")
    begins = tuple(range(0, steps * count, steps))
    source = fit.source(str(path), steps * count, begins, read, file=digest)
    return {"test": source}


class Originals(NamedTuple):
    """A data set whose files are brought.

    Attributes:
        about: its description.
        wanted: the files.
        bring: where they are from.
        splits: from the folder of the files to its frames; empty: they are not there.
    """

    about: str
    wanted: str
    bring: str
    splits: Callable[[pathlib.Path], Splits]


ORIGINALS = {
    "kitti_raw": Originals(
        "KITTI's raw recordings, 160x128, as Lotter et al. 2017 prepared them: camera "
        "image_03 of the categories city, residential and road. CC BY-NC-SA 3.0.",
        "<date>_drive_<number>_sync/image_03/data/*.png",
        "Download the synced+rectified data of the categories city, residential and "
        "road from https://www.cvlibs.net/datasets/kitti/raw_data.php and unpack it",
        kitti,
    ),
    "fpsi": Originals(
        "First-Person Social Interactions (Fathi, Hodgins & Rehg 2012), scaled to "
        "160x120 without keeping the aspect, as generate_image.py of the article does. "
        "Which recordings arXiv 2109.01451 used is not published: all are `train`.",
        "videos",
        "Ask for the videos at http://ai.stanford.edu/~alireza/Disney/ and put them "
        "into one folder",
        fpsi,
    ),
    "moving_mnist_test": Originals(
        "Moving MNIST's published test set (Srivastava et al. 2015, arXiv 1502.04681): "
        "10000 sequences of 20 frames of 64x64.",
        "mnist_test_seq.npy",
        "Download http://www.cs.toronto.edu/~nitish/unsupervised_video/"
        "mnist_test_seq.npy (SHA-256 c2a3e8d3939c001ab77bf543f130157424efa486bb4d0974d2"
        "cebb773b13f8b3)",
        moving_mnist,
    ),
}
BRING_MNIST = (
    "Download train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, "
    "t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz from "
    "https://storage.googleapis.com/cvdf-datasets/mnist/"
)


def prepare(name: str, source: str | None, data_dir: str, **frames: Any) -> str:
    """Prepares a data set; does nothing where that is done from the same files.

    Args:
        name: one of `ORIGINALS`, `mnist`, `walk` or `image_sequence`.
        source: Folder of the files that were brought; for `image_sequence` what
            `open_source` takes. The walk needs none.
        data_dir: Where prepared data sets are kept.
        **frames: Of `walk` and `image_sequence`: arguments of `open_source`.

    Returns:
        The folder of the data set's version.

    Raises:
        DataError: A file is missing or is not what it should be, or the data set is
            there already, made from other files (not told of `mnist`, of which TFDS
            keeps no digest).
    """
    folder = pathlib.Path(source or ".").absolute()
    options: dict[str, Any] = {"data_dir": data_dir, "file_format": "array_record"}
    builder: Any
    if name == "mnist":
        builder = Mnist(folder, **options)
    elif name in ORIGINALS:
        originals = ORIGINALS[name]
        splits = originals.splits(folder)
        if not splits:
            raise missing(folder, originals.wanted, originals.bring)
        builder = Frames(name, originals.about, splits, **options)
    else:
        train = open_source("walk" if name == "walk" else str(source), **frames)
        config = tfds.core.BuilderConfig(
            name=f"{train.height}x{train.width}_{train.fingerprint[:12]}",
            description=train.name,
        )
        about = f"Frames of {train.name}"
        builder = Frames(name, about, {"train": train}, config=config, **options)
    if isinstance(builder, Frames) and builder.is_prepared():
        # Sets that were prepared before it was kept do not have it.
        before = builder.info.metadata.get("made_from")
        if before not in (None, {}, builder.made_from):
            raise DataError(
                f"{builder.data_dir}: is there already, made from other files than "
                f"those of {folder}; expected another data_dir, or no such folder"
            )
    tfds.disable_progress_bar()
    try:
        # TFDS prints lines of its own.
        with contextlib.redirect_stdout(io.StringIO()):
            builder.download_and_prepare(
                download_dir=os.path.join(data_dir, "downloads")
            )
    except (AssertionError, OSError) as error:
        raise DataError(f"dataset={name}: {files.reason(error)}") from error
    return str(builder.data_dir)


def idx(folder: pathlib.Path, name: str, axes: int) -> np.ndarray:
    """An IDX file of unsigned bytes, compressed by gzip or not.

    The format: two zero bytes, the type (8: unsigned byte), the number of axes, the
    length of each as a big-endian 32-bit number, the values.

    Raises:
        DataError: it is missing, or of another kind.
    """
    path = next(
        (p for p in (folder / f"{name}.gz", folder / name) if p.is_file()), None
    )
    if path is None:
        raise missing(folder, f"{name}.gz", BRING_MNIST)
    try:
        content = files.read_bytes(path)
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: {files.reason(error)}; expected a whole file"
        ) from None
    head = 4 + 4 * axes
    shape = np.frombuffer(content[4:head].ljust(head - 4, b"\0"), ">u4").astype(int)
    if content[:4] != bytes([0, 0, 8, axes]) or len(content) != head + shape.prod():
        raise DataError(
            f"{path}: no IDX file of {axes} axes of unsigned bytes, or not a whole one"
        )
    return np.frombuffer(content[head:], np.uint8).reshape(shape)


def missing(folder: pathlib.Path, wanted: str, bring: str) -> DataError:
    """What to say where files were not brought."""
    return DataError(f"{folder}: no {wanted}. {bring}. Nothing is downloaded here.")
