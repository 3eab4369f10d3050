"""Sets of single pictures, one per frame, in an order that a seed determines.

The autoencoder of the article's control experiment sees one picture per update. So each
frame is a separate picture, unrelated to its neighbours.

The digits are those that scikit-learn ships, so that no download is needed: 1797
pictures of 8x8 pixels with 17 grey levels, the test set of the UCI "Optical Recognition
of Handwritten Digits" (Alpaydin and Kaynak 1998). They are scaled to 28x28 and replace
MNIST where that is not available.
"""

import functools
import gzip
import hashlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from prednet_jax.data.frames import to_channels
from prednet_jax.data.shipped import shipped_bytes
from prednet_jax.data.source import (
    ENDLESS,
    FrameSource,
    check_frame_size,
    check_range,
    check_seed,
    fingerprint,
    generator,
)

VERSION = 1
# The side of a digit, in pixels.
SIDE = 28


class Stills(NamedTuple):
    """A finite set of grey pictures of one size.

    Attributes:
        name: Name of the set.
        total: Number of pictures.
        picture: Maps an index to uint8 [h, w].
        fingerprint: SHA-256 of the pictures.
    """

    name: str
    total: int
    picture: Callable[[int], np.ndarray]
    fingerprint: str


def open_stills(
    stills: Stills,
    *,
    height: int = 28,
    width: int = 28,
    channels: int = 1,
    seed: int = 0,
    length: int = ENDLESS,
) -> FrameSource:
    """Shows the pictures in laps; each lap has every picture once, in a new order.

    Args:
        stills: The pictures.
        height: Height of a frame, in pixels; the pictures are scaled to it.
        width: Width of a frame, in pixels; the pictures are scaled to it.
        channels: 1 (grey) or 3 (three equal channels).
        seed: Determines the order; 0 or more.
        length: Number of frames, over as many laps as needed.

    Returns:
        The source; frame i depends on seed and i only.

    Raises:
        DataError: If a value is not usable.
    """
    check_frame_size(height, width, channels)
    check_seed(seed)

    @functools.lru_cache(maxsize=4)
    def order(lap: int) -> np.ndarray:
        return np.argsort(generator(seed, lap).random(stills.total), kind="stable")

    def read(start: int, stop: int) -> np.ndarray:
        check_range(stills.name, length, start, stop)
        out = np.empty((stop - start, height, width, channels), np.uint8)
        for i, frame in zip(range(start, stop), out, strict=True):
            lap, place = divmod(i, stills.total)
            picture = scaled(stills.picture(int(order(lap)[place])), height, width)
            frame[:] = to_channels(picture[..., None], channels)
        return out

    return FrameSource(
        name=stills.name,
        height=height,
        width=width,
        channels=channels,
        length=length,
        boundaries=(0,),
        read=read,
        fingerprint=fingerprint(
            generator="stills",
            version=VERSION,
            pictures=stills.fingerprint,
            seed=seed,
            size=[height, width, channels],
        ),
    )


def scaled(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """Scale a grey picture bilinearly, with smoothing where it becomes smaller.

    Args:
        picture: uint8 `[h, w]`.
        height: New height, in pixels.
        width: New width, in pixels.

    Returns:
        uint8 `[height, width]`.
    """
    from PIL import Image

    if picture.shape == (height, width):
        return picture
    image = Image.fromarray(picture)
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))


@functools.cache
def digits() -> Stills:
    """The digits as 28x28 pictures, white on black, in scikit-learn's order.

    Raises:
        DataError: If scikit-learn or its file is missing.
    """
    # Not with `sklearn.datasets`: its import takes as long as training a small network.
    packed = shipped_bytes(
        "digits",
        "sklearn",
        "datasets/data/digits.csv.gz",
        requirement="scikit-learn>=1.5",
    )
    # 64 pixels row by row, then the label.
    table = np.loadtxt(gzip.decompress(packed).decode().splitlines(), delimiter=",")
    small = table[:, :-1].reshape(-1, 8, 8)
    grey = np.rint(small * (255 / 16)).astype(np.uint8)
    pictures = np.stack([scaled(picture, SIDE, SIDE) for picture in grey])
    return Stills(
        name="digits",
        total=len(pictures),
        picture=lambda index: pictures[index],
        fingerprint=hashlib.sha256(pictures.tobytes()).hexdigest(),
    )
