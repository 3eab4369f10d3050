"""Handwritten digits: single pictures in an order given by a seed, and moving digits.

`digits` are scikit-learn's (docs/data.md gives their source): 1797 pictures of 8x8
pixels, scaled to 28x28.

`open_moving` follows Srivastava, Mansimov & Salakhutdinov 2015 (arXiv 1502.04681): two
digits bounce inside a canvas. Start positions and directions are uniform. Per frame a
digit moves by a tenth of its free range. Where digits overlap, the brighter pixel is
shown. Sequences have 20 frames. In the paper a digit that would leave the canvas is put
on its edge; here it is reflected exactly, so that any frame can be generated
independently:

    x(t) = free * tri(x0 + 0.1 t cos a),   tri(u) = distance of u to the nearest
                                                    even number, in [0, 1]
"""

import functools
import gzip
import hashlib
import importlib.util
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prednet_jax import files
from prednet_jax.data.frames import (
    ENDLESS,
    FrameSource,
    fingerprint,
    generator,
    resize_antialiased,
    to_channels,
)
from prednet_jax.errors import UserError

VERSION = 1
# The side of a digit, in pixels.
SIDE = 28

# Of moving digits: frames of a sequence, digits in it, and the way of a frame.
SEQUENCE = 20
DIGITS = 2
STEP = 0.1


class Stills(NamedTuple):
    """A finite set of grey pictures of one size: an index to uint8 [h, w]."""

    name: str
    total: int
    picture: Callable[[int], np.ndarray]
    fingerprint: str


def open_stills(
    stills: Stills, *, height: int, width: int, channels: int, seed: int
) -> FrameSource:
    """Opens the pictures in laps; each lap has every picture once, in a new order.

    They are scaled to the frame. Frame i depends on the seed and i only.
    """

    @functools.lru_cache(maxsize=4)
    def order(lap: int) -> np.ndarray:
        return np.argsort(generator(seed, lap).random(stills.total), kind="stable")

    def frames(start: int, stop: int) -> np.ndarray:
        out = np.empty((stop - start, height, width, channels), np.uint8)
        for i, frame in zip(range(start, stop), out, strict=True):
            lap, rank = divmod(i, stills.total)
            picture = scaled(stills.picture(int(order(lap)[rank])), height, width)
            frame[:] = to_channels(picture[..., None], channels)
        return out

    size = height, width, channels
    digest = _fingerprint(stills, generator="stills", seed=seed, size=size)
    return FrameSource(stills.name, *size, ENDLESS, (0,), frames, digest)


def _fingerprint(stills: Stills, **identity: Any) -> str:
    return fingerprint(version=VERSION, pictures=stills.fingerprint, **identity)


def open_moving(
    stills: Stills,
    *,
    height: int,
    width: int,
    channels: int,
    seed: int,
    length: int = 10_000 * SEQUENCE,
) -> FrameSource:
    """Opens moving digits; every `SEQUENCE` frames, a boundary, two others start.

    The seed determines digits, starts and directions.
    """
    name = f"moving_{stills.name}"
    rows, cols = stills.picture(0).shape
    if height < rows or width < cols:
        raise UserError(
            f"height={height}, width={width} of {name}: a digit has {rows}x{cols} "
            f"pixels; expected height {rows} and width {cols}, or more"
        )

    def frames(start: int, stop: int) -> np.ndarray:
        canvas = np.zeros((stop - start, height, width), np.uint8)
        for sequence in range(start // SEQUENCE, -(-stop // SEQUENCE)):
            first = sequence * SEQUENCE
            for which, x, y, turn in generator(seed, sequence).random((DIGITS, 4)):
                digit = stills.picture(int(which * stills.total))
                for i in range(max(first, start), min(first + SEQUENCE, stop)):
                    way = STEP * (i - first)
                    angle = 2 * math.pi * turn
                    left = round(triangle(x + way * math.cos(angle)) * (width - cols))
                    top = round(triangle(y + way * math.sin(angle)) * (height - rows))
                    patch = canvas[i - start, top : top + rows, left : left + cols]
                    np.maximum(patch, digit, out=patch)
        return to_channels(canvas[..., None], channels)

    size = height, width, channels
    digest = _fingerprint(stills, generator="moving", seed=seed, size=size)
    boundaries = tuple(range(0, length, SEQUENCE))
    return FrameSource(name, *size, length, boundaries, frames, digest)


def triangle(u: float) -> float:
    """Reflects the number line into [0, 1]."""
    return abs(u - 2 * round(u / 2))


def scaled(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """Scales a grey picture `[h, w]` bilinearly, smoothed if it becomes smaller."""
    if picture.shape == (height, width):
        return picture
    return resize_antialiased(picture[..., None], height, width)[..., 0]


@functools.cache
def digits() -> Stills:
    """Returns the digits as 28x28 pictures, white on black, in scikit-learn's order."""
    # Not with `sklearn.datasets`: its import takes as long as training a small network.
    packed = shipped_bytes(
        "digits", "sklearn", "datasets/data/digits.csv.gz", "scikit-learn>=1.5"
    )
    # 64 pixels row by row, then the label.
    table = np.loadtxt(gzip.decompress(packed).decode().splitlines(), delimiter=",")
    small = table[:, :-1].reshape(-1, 8, 8)
    grey = np.rint(small * (255 / 16)).astype(np.uint8)
    pictures = np.stack([scaled(picture, SIDE, SIDE) for picture in grey])
    digest = hashlib.sha256(pictures.tobytes()).hexdigest()
    return Stills("digits", len(pictures), lambda index: pictures[index], digest)


def mnist() -> Stills:
    """Opens MNIST's training pictures, one by one, in the order of TFDS's files."""
    import tensorflow_datasets as tfds

    folder = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    try:
        examples = tfds.data_source(
            "mnist", split="train", data_dir=folder, download=False
        )
        count = len(examples)
        # To decode all of them would take minutes.
        digest = hashlib.sha256(f"train {count}".encode())
        for index in np.unique(np.linspace(0, count - 1, 256).astype(int)).tolist():
            digest.update(examples[index]["image"].tobytes())
    # TFDS raises AssertionError, and some of its readers raise other exceptions.
    except (*files.BROKEN, AttributeError, AssertionError, NotImplementedError) as e:
        raise UserError(
            f"data=mnist: not prepared for random access in {folder} (TFDS_DATA_DIR "
            "names another folder); bring its four files and run python "
            "experiments/prepare_data.py --dataset=mnist --source=FOLDER; data=digits "
            f"needs none [{files.reason(e)}]"
        ) from e
    return Stills(
        "mnist",
        count,
        lambda index: np.asarray(examples[index]["image"])[..., 0],
        digest.hexdigest(),
    )


def shipped_bytes(data: str, package: str, file: str, requirement: str) -> bytes:
    """Returns a file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"data={data}: needs {requirement}; pip install '.[data]'")
    path = Path(spec.submodule_search_locations[0]) / file
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"data={data}: {path} of the installed {package} cannot be read "
            f"({error.strerror}); pip install '{requirement}'"
        ) from error
