"""Sets of single pictures, shown one a frame in an order that a seed decides.

The autoencoder of the article's control experiment sees one picture an update, so a
"frame" here is a picture of its own and neighbours have nothing in common.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from prednet_jax.data.frames import to_channels
from prednet_jax.data.source import (
    ENDLESS,
    FrameSource,
    check_frame_size,
    check_range,
    check_seed,
    fingerprint,
)

VERSION = 1


class Stills(NamedTuple):
    """A finite set of grey pictures of one size."""

    name: str
    total: int
    picture: Callable[[int], np.ndarray]  # index -> uint8 [h, w]
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
    """Show the pictures in laps: each once a lap, every lap in an order of its own.

    Args:
        stills: The pictures.
        height: Height of a frame, in pixels; the pictures are scaled to it.
        width: Width of a frame, in pixels; the pictures are scaled to it.
        channels: 1 (grey) or 3 (the grey three times).
        seed: Decides the order; 0 or more.
        length: Number of frames, over as many laps as that takes.

    Returns:
        The source; frame i is a closed form of (seed, i).

    Raises:
        DataError: If a value is not usable.
    """
    check_frame_size(height, width, channels)
    check_seed(seed)

    @functools.lru_cache(maxsize=4)
    def order(lap: int) -> np.ndarray:
        entropy = np.random.SeedSequence([seed, lap])
        draws = np.random.Generator(np.random.PCG64(entropy)).random(stills.total)
        return np.argsort(draws, kind="stable")

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
    """Scale a grey picture bilinearly; smoothed first where it shrinks.

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
