"""Two handwritten digits that bounce inside a canvas, generated frame by frame.

They follow Srivastava, Mansimov & Salakhutdinov 2015 (arXiv 1502.04681). Start
positions and directions are uniform. Per frame a digit moves by a tenth of the free
way. Where digits overlap, the brighter pixel is shown. Sequences have 20 frames. In the
paper a digit that would leave the canvas is put on its edge; here it is reflected
exactly. Its position is then a triangle wave of the frame number, so that any frame can
be made alone:

    x(t) = free * tri(x0 + 0.1 t cos a),   tri(u) = distance of u to the nearest
                                                    even number, in [0, 1]
"""

import math

import numpy as np

from prednet_jax.data.frames import to_channels
from prednet_jax.data.source import (
    DataError,
    FrameSource,
    check_frame_size,
    check_range,
    check_seed,
    fingerprint,
    generator,
)
from prednet_jax.data.stills import Stills

VERSION = 1
SEQUENCE = 20
DIGITS = 2
STEP = 0.1
LENGTH = 10_000 * SEQUENCE


def open_moving(
    stills: Stills,
    *,
    height: int = 64,
    width: int = 64,
    channels: int = 1,
    seed: int = 0,
    length: int = LENGTH,
) -> FrameSource:
    """Moving digits; every `SEQUENCE` frames two new digits start.

    Args:
        stills: The digits.
        height: Height of the canvas, in pixels; at least that of a digit.
        width: Width of the canvas, in pixels; at least that of a digit.
        channels: 1 (grey) or 3 (three equal channels).
        seed: Determines digits, starts and directions; 0 or more.
        length: Number of frames.

    Returns:
        The source, with a boundary every `SEQUENCE` frames.

    Raises:
        DataError: If a value is not usable.
    """
    check_frame_size(height, width, channels)
    check_seed(seed)
    name = f"moving_{stills.name}"
    rows, cols = stills.picture(0).shape
    if height < rows or width < cols:
        raise DataError(
            f"height={height}, width={width} of {name}: a digit has {rows}x{cols} "
            "pixels and has to fit"
        )

    def read(start: int, stop: int) -> np.ndarray:
        check_range(name, length, start, stop)
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
                    place = canvas[i - start, top : top + rows, left : left + cols]
                    np.maximum(place, digit, out=place)
        return to_channels(canvas[..., None], channels)

    return FrameSource(
        name=name,
        height=height,
        width=width,
        channels=channels,
        length=length,
        boundaries=tuple(range(0, length, SEQUENCE)),
        read=read,
        fingerprint=fingerprint(
            generator="moving",
            version=VERSION,
            pictures=stills.fingerprint,
            seed=seed,
            size=[height, width, channels],
        ),
    )


def triangle(u: float) -> float:
    """Reflection of the number line into [0, 1]."""
    return abs(u - 2 * round(u / 2))
