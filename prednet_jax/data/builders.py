"""Prepares data sets of published results from their files, without TensorFlow.

MNIST is prepared by TFDS's own builder. KITTI becomes folders of pictures: one a split,
in each one a recording.
"""

import contextlib
import gzip
import io
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.image_classification.mnist import MNIST

from prednet_jax import files
from prednet_jax.data import images
from prednet_jax.errors import UserError

#: Is given what there is to make, and yields it.
Progress = Callable[[Any], Iterable[Any]]

BRING = {
    "mnist": "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-"
    "idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz from "
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "kitti_raw": "<date>_drive_<number>_sync/image_03/data/*.png, the synced+rectified "
    "data of city, residential and road, from "
    "https://www.cvlibs.net/datasets/kitti/raw_data.php, unpacked",
}
# Lotter et al. 2017: one recording for validation, three for the test.
KITTI_HELD_OUT = {
    "2011_09_26_drive_0005_sync": "validation",
    "2011_09_26_drive_0104_sync": "test",
    "2011_09_26_drive_0079_sync": "test",
    "2011_09_26_drive_0070_sync": "test",
}
_HEIGHT, _WIDTH = 128, 160


def prepare(name: str, source: Path, folder: Path, progress: Progress = iter) -> Path:
    """Prepares a data set of `BRING` from the files in `source`; returns its path.

    `progress` is given the sequences or pictures to make, and yields them. A UserError
    is raised if files are missing or damaged, or `folder` cannot be written.
    """
    files.check_writable(folder)
    try:
        if name == "mnist":
            return _mnist(source, folder, progress)
        prepared = folder / name
        if prepared.exists():
            raise UserError(f"{prepared}: is there already; expected another data_dir")
        temporary = files.aside(prepared)
        try:
            kitti(source, temporary, progress)
            temporary.rename(prepared)
        finally:  # Nothing half-made is left.
            shutil.rmtree(temporary, ignore_errors=True)
        return prepared
    except FileNotFoundError as error:
        raise UserError(
            f"{source}: no {error}. Bring {BRING[name]}. Nothing is downloaded here."
        ) from None
    except (AssertionError, *files.BROKEN) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{source}: {files.reason(error)}") from error


def kitti(source: Path, folder: Path, progress: Progress = iter) -> None:
    """Cuts camera image_03 of each recording, as process_im in process_kitti.py does.

    Pictures are scaled to the height with Pillow's bilinear filter, and the middle
    columns are kept.
    """
    recordings = {
        Path(path).parts[-3]: names
        for path, names in images.sequences_below(source, (".png",)).items()
        if Path(path).parts[-2:] == ("image_03", "data")
    }
    if not recordings:
        raise FileNotFoundError("image_03/data/*.png")
    pictures = [(drive, name) for drive, names in recordings.items() for name in names]
    for drive, name in progress(pictures):
        target = folder / KITTI_HELD_OUT.get(drive, "train") / drive
        target.mkdir(parents=True, exist_ok=True)
        with Image.open(name) as image:
            across = round(_HEIGHT / image.height * image.width)
            if across < _WIDTH:
                raise UserError(
                    f"{name}: {image.width}x{image.height}: too narrow; expected "
                    "frames of KITTI, about 1242x375"
                )
            scaled = image.resize((across, _HEIGHT), Image.Resampling.BILINEAR)
        left = (across - _WIDTH) // 2
        cut = scaled.crop((left, 0, left + _WIDTH, _HEIGHT))
        cut.save(target / Path(name).name)


class Mnist(MNIST, skip_registration=True):  # type: ignore[call-arg]
    """TFDS's own builder, with files that are copied and read without TensorFlow."""

    name = "mnist"

    def __init__(self, folder: Path, progress: Progress = iter, **options: Any):
        self._progress = progress
        self._arrays: dict[str, tuple[Any, Any]] = {}
        for split, stem in (("train", "train"), ("test", "t10k")):
            pictures = idx(folder, f"{stem}-images-idx3-ubyte", 3)
            labels = idx(folder, f"{stem}-labels-idx1-ubyte", 1)
            self._arrays[split] = pictures, labels
        super().__init__(**options)

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager
        return {s: self._generate_examples(*a) for s, a in self._arrays.items()}

    def _generate_examples(self, images: np.ndarray, labels: np.ndarray) -> Any:
        # Pillow's pictures are encoded without TensorFlow.
        pairs = zip(self._progress(images), labels, strict=True)
        for number, (image, label) in enumerate(pairs):
            yield number, {"image": Image.fromarray(image), "label": int(label)}


def _mnist(source: Path, folder: Path, progress: Progress) -> Path:
    builder = Mnist(source, progress, data_dir=str(folder), file_format="array_record")
    tfds.disable_progress_bar()
    # TFDS prints lines of its own.
    with contextlib.redirect_stdout(io.StringIO()):
        builder.download_and_prepare(download_dir=str(folder / "downloads"))
    return Path(builder.data_dir)


def idx(folder: Path, name: str, axes: int) -> np.ndarray:
    """Returns an IDX file of unsigned bytes, compressed by gzip or not.

    The format: two zero bytes, the type (8: unsigned byte), the number of axes, the
    length of each as a big-endian 32-bit number, the values.
    """
    paths = [p for p in (folder / f"{name}.gz", folder / name) if p.is_file()]
    if not paths:
        raise FileNotFoundError(f"{name}.gz")
    content = files.read_bytes(paths[0])
    with files.broken_as(f"{paths[0]}: not a whole file"):
        if paths[0].suffix == ".gz":
            content = gzip.decompress(content)
    head = 4 + 4 * axes
    shape = np.frombuffer(content[4:head].ljust(head - 4, b"\0"), ">u4").astype(int)
    if content[:4] != bytes([0, 0, 8, axes]) or len(content) != head + shape.prod():
        raise UserError(
            f"{paths[0]}: no IDX file of {axes} axes of unsigned bytes, or not a whole "
            "one"
        )
    return np.frombuffer(content[head:], np.uint8).reshape(shape)
