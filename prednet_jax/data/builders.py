"""Data sets for TensorFlow Datasets, prepared and read without TensorFlow.

Pictures are handed over as Pillow images, which the Image feature encodes by itself
(arrays it would have encoded by TensorFlow). The files are ArrayRecord, in the order of
the frames, so that `data.prepared` reads any frame by its number. Beside them, in
`metadata.json`: where each sequence begins, SHA-256 of the frames of each split, and
SHA-256 of the files that they were made from.

Nothing is downloaded. `MANUAL_DOWNLOAD_INSTRUCTIONS` of a builder say which files to
bring.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from prednet_jax import files
from prednet_jax.data.frames import Fit
from prednet_jax.data.source import DataError, FrameSource
from prednet_jax.data.video import VIDEO_SUFFIXES, open_video

Pictures = Iterator[tuple[int, Image.Image]]  # Number of the sequence, and the frame.


class Frames(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Frames in order, in sequences; subclasses say which files each split has."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First."}  # noqa: RUF012 (the API of TFDS)
    COLOURS = 3

    def _info(self) -> tfds.core.DatasetInfo:
        image = tfds.features.Image(
            shape=(None, None, self.COLOURS), encoding_format="png"
        )
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__doc__,
            features=tfds.features.FeaturesDict({"image": image, "sequence": np.int64}),
            metadata=tfds.core.MetadataDict(boundaries={}, frames_sha256={}, sha256={}),
            disable_shuffling=True,
        )

    def originals(self, folder: Path) -> dict[str, str]:
        """SHA-256 of the files that were brought, by name.

        Args:
            folder: of these files.

        Raises:
            DataError: they are not there.
        """
        del folder
        return {}

    def splits(self, folder: Path) -> dict[str, Callable[[], Pictures]]:
        """By split, what gives its frames.

        Args:
            folder: of the files that were brought.

        Raises:
            DataError: they are not there, or not what they should be.
        """
        raise NotImplementedError

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        brought = self.MANUAL_DOWNLOAD_INSTRUCTIONS is not None
        folder = Path(dl_manager.manual_dir) if brought else Path()
        found = self.splits(folder)
        self.info.metadata["sha256"].update(self.originals(folder))
        return {
            name: self._generate_examples(name, pictures)
            for name, pictures in found.items()
        }

    def _generate_examples(self, split: str, pictures: Callable[[], Pictures]) -> Any:
        """Numbers the frames, and notes what is needed to read them."""
        begins: list[int] = []
        digest, last = hashlib.sha256(), None
        for number, (sequence, picture) in enumerate(pictures()):
            if sequence != last:
                begins.append(number)
                last = sequence
            digest.update(f"{sequence} {picture.size}".encode())
            digest.update(picture.tobytes())
            yield number, {"image": picture, "sequence": sequence}
        self.info.metadata["boundaries"][split] = begins
        self.info.metadata["frames_sha256"][split] = digest.hexdigest()


class FromSource(Frames, skip_registration=True):
    """Frames of a `data.FrameSource`, at its size.

    Args:
        source: the frames.
        **options: of the builder.
    """

    def __init__(self, source: FrameSource, **options: Any):
        self.source = source
        self.COLOURS = source.channels
        super().__init__(**options)

    def splits(self, folder: Path) -> dict[str, Callable[[], Pictures]]:
        """All of it as `train`."""
        del folder
        return {"train": functools.partial(read, self.source)}


class Walk(FromSource, skip_registration=True):
    """The embedded walk through the photographs that scikit-image ships."""

    name = "walk"


class ImageSequence(FromSource, skip_registration=True):
    """A folder of images, a list of images, a video, an .npz, as `--data` reads it."""

    name = "image_sequence"


class Fpsi(Frames, skip_registration=True):
    """First-Person Social Interactions (Fathi, Hodgins & Rehg 2012), 160x120.

    Each video is a sequence. Frames are scaled without keeping their aspect, as
    generate_image.py of the published code does. Which of the recordings
    arXiv 2109.01451 used, and how they were divided, is not published: all are `train`.
    """

    name = "fpsi"
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "Ask for the videos at http://ai.stanford.edu/~alireza/Disney/ and put them "
        "into one folder."
    )
    FIT = Fit(height=120, width=160, crop="resize")

    def originals(self, folder: Path) -> dict[str, str]:
        """Of each video."""
        videos = self._videos(folder)
        return {str(path.relative_to(folder)): sha256(path) for path in videos}

    def _videos(self, folder: Path) -> list[Path]:
        found = sorted(folder.glob("**/*"))
        videos = [path for path in found if path.suffix.lower() in VIDEO_SUFFIXES]
        if not videos:
            raise missing(self, folder, f"video ({' '.join(VIDEO_SUFFIXES)})")
        return videos

    def splits(self, folder: Path) -> dict[str, Callable[[], Pictures]]:
        """Every video of the folder."""
        videos = self._videos(folder)

        def pictures() -> Pictures:
            for sequence, path in enumerate(videos):
                source = open_video(path, self.FIT, None)
                for _, picture in read(source):
                    yield sequence, picture

        return {"train": pictures}


class KittiRaw(Frames, skip_registration=True):
    """KITTI's raw recordings, 160x128, as Lotter et al. 2017 prepared them.

    process_kitti.py of coxlab/prednet: camera image_03 of the synchronised recordings
    of the categories city, residential and road; scaled to 128 rows, the middle 160
    columns cut out; one recording for validation and three for the test. Licence
    CC BY-NC-SA 3.0.
    """

    name = "kitti_raw"
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "Download the synced+rectified data of the categories city, residential and "
        "road from https://www.cvlibs.net/datasets/kitti/raw_data.php and unpack it: "
        "<date>/<date>_drive_<number>_sync/image_03/data/*.png"
    )
    SIZE = (128, 160)
    HELD_OUT = {  # noqa: RUF012
        "2011_09_26_drive_0005_sync": "validation",
        "2011_09_26_drive_0104_sync": "test",
        "2011_09_26_drive_0079_sync": "test",
        "2011_09_26_drive_0070_sync": "test",
    }

    def originals(self, folder: Path) -> dict[str, str]:
        """Of the pictures of each recording, one after the other."""
        found = {}
        for drive in self._drives(folder):
            digest = hashlib.sha256()
            for path in sorted(drive.glob("*.png")):
                digest.update(files.read_bytes(path))
            found[drive.parts[-3]] = digest.hexdigest()
        return found

    def _drives(self, folder: Path) -> list[Path]:
        drives = sorted(folder.glob("**/*_sync/image_03/data"))
        if not drives:
            raise missing(self, folder, "*_sync/image_03/data/*.png")
        return drives

    def splits(self, folder: Path) -> dict[str, Callable[[], Pictures]]:
        """By recording."""
        drives = self._drives(folder)
        found: dict[str, list[Path]] = {}
        for drive in drives:
            split = self.HELD_OUT.get(drive.parts[-3], "train")
            found.setdefault(split, []).append(drive)
        return {
            name: functools.partial(self._pictures, drives)
            for name, drives in found.items()
        }

    def _pictures(self, drives: list[Path]) -> Pictures:
        for sequence, drive in enumerate(drives):
            for path in sorted(drive.glob("*.png")):
                with Image.open(path) as image:
                    picture = kitti_frame(image.convert("RGB"), *self.SIZE)
                yield sequence, picture


def sha256(path: Path) -> str:
    """Of a file that was brought."""
    with files.open_binary(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def missing(builder: Any, folder: Path, name: str) -> DataError:
    """What to say where files were not brought."""
    return DataError(
        f"{folder}: no {name}. {builder.MANUAL_DOWNLOAD_INSTRUCTIONS} Nothing is "
        "downloaded here."
    )


def read(source: FrameSource) -> Pictures:
    """The frames of a source, some at a time."""
    ends = [*source.boundaries[1:], source.length]
    for sequence, (begin, end) in enumerate(zip(source.boundaries, ends, strict=True)):
        for start in range(begin, end, 64):
            for frame in source.read(start, min(start + 64, end)):
                yield sequence, Image.fromarray(frame.squeeze())


def kitti_frame(image: Image.Image, height: int, width: int) -> Image.Image:
    """Scaled to `height` rows, and the middle `width` columns (process_im)."""
    across = round(height / image.height * image.width)
    scaled = image.resize((across, height), Image.Resampling.BILINEAR)
    left = (across - width) // 2
    return scaled.crop((left, 0, left + width, height))
