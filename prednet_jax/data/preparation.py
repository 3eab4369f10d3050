"""Prepares data sets with the builders of `data.builders`."""

import contextlib
import io
import os
import pathlib
from typing import Any

from prednet_jax.data.source import DataError, FrameSource


def prepare(
    name: str,
    source: str | None,
    data_dir: str,
    *,
    height: int = 120,
    width: int = 160,
    crop: str = "center",
    frames: int = 5000,
    seed: int = 0,
) -> str:
    """Prepares a data set; does nothing where that is done from the same files.

    Args:
        name: `walk`, `image_sequence`, `fpsi`, `kitti_raw`, `mnist` or
            `moving_mnist_test`.
        source: Folder of the files that were brought; for `image_sequence` what
            `open_source` takes. The walk needs none.
        data_dir: Where prepared data sets are kept.
        height: Of `walk` and `image_sequence`, in pixels.
        width: Of `walk` and `image_sequence`, in pixels.
        crop: Of `image_sequence`.
        frames: Of the walk.
        seed: Of the walk.

    Returns:
        The folder of the data set's version.

    Raises:
        DataError: If a file or a package is missing, or is not what it should be, or
            the data set is there already, made from other files (not told of `mnist`,
            which keeps no SHA-256, as in TFDS).
    """
    try:
        import tensorflow_datasets as tfds

        # Imported here to see whether the packages that it needs are there.
        import prednet_jax.data.digit_builders  # noqa: F401
    except ImportError as error:
        raise DataError(
            f"dataset={name}: needs {error.name}; pip install '.[data]'"
        ) from error
    options: dict[str, Any] = {"data_dir": data_dir, "file_format": "array_record"}
    if name in ("walk", "image_sequence"):
        found = _open(name, source, height, width, crop, frames, seed)
        builder = _of_frames(name, found, options)
    else:
        builder = _of_originals(name, options)
    folder = pathlib.Path(source or ".").absolute()
    _check_originals(builder, folder)
    settings = tfds.download.DownloadConfig(manual_dir=folder)
    tfds.disable_progress_bar()
    try:
        # TFDS prints lines of its own.
        with contextlib.redirect_stdout(io.StringIO()):
            builder.download_and_prepare(
                download_dir=os.path.join(data_dir, "downloads"),
                download_config=settings,
            )
    except DataError:
        raise
    except (AssertionError, OSError) as error:
        raise DataError(
            f"dataset={name}: {' '.join(str(error).split())[:300]}"
        ) from error
    return str(builder.data_dir)


def _of_frames(name: str, found: FrameSource, options: dict[str, Any]) -> Any:
    """The builder of a source of this package; the configuration names its frames."""
    import tensorflow_datasets as tfds

    from prednet_jax.data import builders

    cls = builders.Walk if name == "walk" else builders.ImageSequence
    config = tfds.core.BuilderConfig(
        name=f"{found.height}x{found.width}_{found.fingerprint[:12]}",
        description=found.name,
    )
    return cls(found, config=config, **options)


def _of_originals(name: str, options: dict[str, Any]) -> Any:
    """The builder of a data set whose files are brought."""
    from prednet_jax.data import builders, digit_builders

    known = (
        builders.Fpsi,
        builders.KittiRaw,
        digit_builders.Mnist,
        digit_builders.MovingMnist,
    )
    return {builder.name: builder for builder in known}[name](**options)


def _check_originals(builder: Any, folder: pathlib.Path) -> None:
    """Refuses a folder without files, or other files than were prepared before."""
    from prednet_jax.data import builders

    brought = builder.MANUAL_DOWNLOAD_INSTRUCTIONS is not None
    if brought and not (folder.is_dir() and any(folder.iterdir())):
        raise builders.missing(builder, folder, "files")
    if (
        isinstance(builder, builders.Frames)
        and builder.is_prepared()
        and builder.info.metadata["sha256"] != builder.originals(folder)
    ):
        raise DataError(
            f"{builder.data_dir}: is there already, made from other files than those "
            f"of {folder}; expected another data_dir, or no such folder"
        )


def _open(
    name: str,
    source: str | None,
    height: int,
    width: int,
    crop: str,
    frames: int,
    seed: int,
) -> FrameSource:
    from prednet_jax.data import open_source

    if name == "walk":
        return open_source("walk", height=height, width=width, seed=seed, length=frames)
    return open_source(str(source), height=height, width=width, crop=crop)
