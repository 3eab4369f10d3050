"""Reads an image file: its size from the header, and its pixels.

The format is that of the content, not that of the name. Only `FORMATS` are accepted:
for a PostScript file, for example, Pillow would start another program.
"""

import io
import struct
import warnings
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from prednet_jax.data.source import DataError
from prednet_jax.files import reason

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# Most pixels of a picture, for instance 8192x8192: 192 MiB in RGB.
PIXELS = 2**26

# Modes of Pillow with more than 8 bits; a conversion would clip them silently.
_DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
_BITS_PER_SAMPLE = 258  # TIFF 6.0, section 8.
_ORIENTATION = 0x0112  # Exif 2.32, 4.6.4.
_PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"


class Header(NamedTuple):
    """Facts about an image that are known before its pixels are decoded.

    Attributes:
        height: rows of the picture as shown, after rotation.
        width: columns of the picture as shown.
        orientation: EXIF orientation, 1 to 8; 1: not rotated.
    """

    height: int
    width: int
    orientation: int = 1


def read_header(data: bytes, name: object) -> Header:
    """Size and orientation of a picture, without decoding it.

    Args:
        data: The bytes of the file.
        name: What a message calls the file.

    Raises:
        DataError: If it is not an image, has more than 8 bits per channel, or is too
            large.
    """
    from PIL import Image

    if data.startswith(_PNG) and b"eXIf" not in data:
        # Without Pillow, which would take most of the time for a list of small files.
        return _png_header(data, name)
    with warnings.catch_warnings():
        # Pillow only warns about large pictures; `check_size` refuses them.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            with _open(data) as image:
                _check(image, data, name)
                orientation = _orientation(image)
                width, height = image.size
        except (DataError, MemoryError):
            raise
        # On broken files Pillow also raises SyntaxError, struct.error and others.
        except Exception as error:
            raise _unreadable(name, error) from error
    return _header(height, width, orientation)


def decode(data: bytes, name: object) -> np.ndarray:
    """The pixels of a picture as shown, after rotation.

    Args:
        data: The bytes of the file.
        name: What a message calls the file.

    Returns:
        uint8 `[h, w, 3]`.

    Raises:
        DataError: As `read_header`, or the pixels cannot be decoded.
    """
    from PIL import Image

    try:
        with _open(data) as image:
            _check(image, data, name)
            picture = image.convert("RGB")
            turn = _turns().get(_orientation(image))
    except (DataError, MemoryError):
        raise
    except (Exception, Image.DecompressionBombWarning) as error:
        raise _unreadable(name, error) from error
    return np.asarray(picture if turn is None else picture.transpose(turn))


def check_size(width: int, height: int, name: object) -> None:
    """Refuses a picture, or a frame of a video, that would take too much memory.

    Raises:
        DataError: If it has no pixels, or more than `PIXELS`.
    """
    if not 0 < width * height <= PIXELS:
        raise DataError(
            f"{name}: {width}x{height} pixels (width x height); accepted are 1 to "
            f"{PIXELS} pixels"
        )


def _open(data: bytes) -> "Image.Image":
    from PIL import Image

    return Image.open(io.BytesIO(data), formats=FORMATS)


def _png_header(data: bytes, name: object) -> Header:
    """Reads the first chunk (PNG specification, 11.2.2)."""
    if len(data) < 33 or zlib.crc32(data[12:29]) != struct.unpack(">I", data[29:33])[0]:
        raise DataError(f"{name}: not a readable image (its header is broken)")
    width, height, depth = struct.unpack(">IIB", data[16:25])
    if depth > 8:
        raise _deep(name, f"{depth} bits a channel")
    check_size(width, height, name)
    return Header(height, width)


def _check(image: Any, data: bytes, name: object) -> None:
    """Refuses a picture that is too large or too deep, by its header."""
    width, height = image.size
    check_size(width, height, name)
    if image.mode in _DEEP_MODES:
        raise _deep(name, f"mode {image.mode} of Pillow")
    # Pillow reduces 16-bit colours to 8 bits and reports the mode RGB.
    if image.format == "PNG":
        depth = data[24]
    elif image.format == "TIFF":
        depth = max(image.tag_v2.get(_BITS_PER_SAMPLE, (1,)))
    elif image.format == "PPM" and isinstance(image.tile[0].args, tuple):
        depth = image.tile[0].args[1].bit_length()
    else:
        return
    if depth > 8:
        raise _deep(name, f"{depth} bits a channel")


def _orientation(image: "Image.Image") -> int:
    """The EXIF orientation, unless Pillow applies it itself; then 1."""
    from PIL import Image

    if image.format == "TIFF":
        return 1  # Pillow applies it.
    if image.format == "PNG":
        image.load()  # The chunk may come after the pixels.
    stored = image.info.get("exif")
    if not stored:
        return 1
    exif = Image.Exif()
    exif.load(stored)
    found = exif.get(_ORIENTATION, 1)
    return found if found in _turns() else 1


def _turns() -> dict:
    """The transposition that undoes each orientation."""
    from PIL import Image

    turn = Image.Transpose
    return {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_270,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_90,
    }


def _header(height: int, width: int, orientation: int) -> Header:
    if orientation > 4:  # Rows and columns are exchanged.
        height, width = width, height
    return Header(height, width, orientation)


def _deep(name: object, found: str) -> DataError:
    return DataError(
        f"{name}: has {found}, more than 8 bits a channel; accepted are images of 8 "
        "bits"
    )


def _unreadable(name: object, error: BaseException) -> DataError:
    told = "identify" in str(error)
    why = f"none of {', '.join(FORMATS)}" if told else reason(error)
    return DataError(f"{name}: not a readable image ({why})")
