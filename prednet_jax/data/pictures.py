"""Reads an image file with Pillow: its size from the header, and its pixels.

The format is that of the content, not that of the name. Only `FORMATS` are accepted:
for a PostScript file, for example, Pillow would start another program. A frame has 8
bits a channel, no transparency and no time of its own. So a picture of more bits, one
that shows what is behind it, and one that moves are refused: what they mean as a frame
would be a guess.
"""

import contextlib
import io
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from prednet_jax.data.source import DataError
from prednet_jax.files import reason

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# The most pixels of a picture, for instance 8192x8192: 192 MiB in RGB.
PIXELS = 2**26

# Modes of Pillow with more than 8 bits; a conversion would clip them silently.
_DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
_BITS_PER_SAMPLE = 258  # TIFF 6.0, section 8.
_ORIENTATION = 0x0112  # Exif 2.32, 4.6.4.


def read_header(data: bytes, name: object) -> tuple[int, int, int]:
    """Height and width as shown, after rotation, and the EXIF orientation, 1 to 8.

    Pixels are decoded only if the picture has a channel of transparency.

    Args:
        data: The bytes of the file.
        name: What a message calls the file.

    Raises:
        DataError: It is not an image, too large, has more than 8 bits per channel or
            several pictures, or a pixel is not opaque.
    """
    with _opened(data, name) as image:
        pictures = getattr(image, "n_frames", 1)
        if pictures > 1 and image.format != "MPO":
            video = " (or the path of the GIF alone, which is read as a video)"
            raise DataError(
                f"{name}: holds {pictures} pictures; accepted are files of one"
                f"{video if image.format == 'GIF' else ''}"
            )
        if (
            image.has_transparency_data
            and np.asarray(image.convert("RGBA"))[..., 3].min() < 255
        ):
            raise DataError(
                f"{name}: has transparent pixels; accepted are opaque pictures, so "
                "put it onto a background first"
            )
        turn = _orientation(image, data)
        width, height = image.size
    return (width, height, turn) if turn > 4 else (height, width, turn)


def decode(data: bytes, name: object) -> np.ndarray:
    """The pixels uint8 `[h, w, 3]` as shown of a file that `read_header` accepts.

    Raises:
        DataError: The pixels cannot be decoded.
    """
    from PIL import Image

    turns = Image.Transpose
    transposed = (
        *(turns.FLIP_LEFT_RIGHT, turns.ROTATE_180, turns.FLIP_TOP_BOTTOM),
        *(turns.TRANSPOSE, turns.ROTATE_270, turns.TRANSVERSE, turns.ROTATE_90),
    )
    with _opened(data, name) as image:
        picture, turn = image.convert("RGB"), _orientation(image, data)
        return np.asarray(
            picture.transpose(transposed[turn - 2]) if turn > 1 else picture
        )


def check_size(width: int, height: int, name: object) -> None:
    """Refuses a picture, or a frame of a video, without pixels or with too many."""
    if not 0 < width * height <= PIXELS:
        raise DataError(
            f"{name}: {width}x{height} pixels (width x height); accepted are 1 to "
            f"{PIXELS} pixels"
        )


@contextlib.contextmanager
def _opened(data: bytes, name: object) -> "Iterator[Image.Image]":
    """A picture of an accepted size and depth; what is broken is named."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            # Pillow only warns about large pictures; `check_size` refuses them.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                check_size(*image.size, name)
                if bits := _more_than_8_bits(image, data):
                    raise DataError(
                        f"{name}: has {bits}, more than 8 bits a channel; accepted are "
                        "images of 8 bits"
                    )
                yield image
    except (DataError, MemoryError):
        raise
    # On broken files Pillow also raises SyntaxError, struct.error and others.
    except Exception as error:
        unknown = "identify" in str(error)
        why = f"none of {', '.join(FORMATS)}" if unknown else reason(error)
        raise DataError(f"{name}: not a readable image ({why})") from error


def _more_than_8_bits(image: "Image.Image", data: bytes) -> str | None:
    """The depth of a picture of more than 8 bits, in words."""
    if image.mode in _DEEP_MODES:
        return f"mode {image.mode} of Pillow"
    # Pillow reduces 16-bit colours to 8 bits and reports the mode RGB.
    depth = 8
    if image.format == "PNG":
        depth = data[24]
    elif image.format == "TIFF":
        depth = max(image.tag_v2.get(_BITS_PER_SAMPLE, (1,)))  # type: ignore[attr-defined]
    elif image.format == "PPM":
        _, _, _, arguments = image.tile[0]  # type: ignore[attr-defined]
        depth = arguments[1].bit_length() if isinstance(arguments, tuple) else 8
    return f"{depth} bits a channel" if depth > 8 else None


def _orientation(image: "Image.Image", data: bytes) -> int:
    """The EXIF orientation, 1 to 8, unless Pillow applies it itself; then 1."""
    from PIL import Image

    if image.format == "TIFF":
        return 1  # Pillow applies it.
    if image.format == "PNG" and b"eXIf" in data:
        image.load()  # The chunk may come after the pixels.
    exif = Image.Exif()
    exif.load(image.info.get("exif", b""))
    orientation = exif.get(_ORIENTATION, 1)
    return orientation if orientation in range(2, 9) else 1
