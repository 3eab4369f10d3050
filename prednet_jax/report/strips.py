"""Pictures of predicted frames: a strip as PNG and a film as GIF.

Both take frames `[T, H, W, C]` in [0, 1] by what they are, and the first frame that was
extrapolated (None: none was). From it on the numbers of the frames are coloured.
"""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

# Pixels: width of a strip's frame, of a line of text, between frames, height of a film;
# and the most frames of a film.
_STRIP_WIDTH, _LINE, _GAP, _FILM_HEIGHT, _FILM = 160, 16, 4, 160, 200
_MARK = "#D55E00"


def strip(rows: dict[str, NDArray], extrapolate_from: int | None) -> bytes:
    """At most ten frames of each row, evenly spread, with their numbers.

    A line stands before the first frame that was extrapolated.
    """
    length = len(next(iter(rows.values())))
    first = length if extrapolate_from is None else extrapolate_from
    shown = np.linspace(0, length - 1, min(10, length)).round().astype(int)
    pictures = [
        [_picture(images[t], _STRIP_WIDTH / images.shape[2]) for t in shown]
        for images in rows.values()
    ]
    across = max(of[0].width for of in pictures) + _GAP
    down = max(of[0].height for of in pictures) + _LINE
    canvas = Image.new("RGB", (across * len(shown), _LINE + down * len(rows)), "white")
    draw = ImageDraw.Draw(canvas)
    for column, t in enumerate(shown):
        colour = _MARK if t >= first else "black"
        draw.text((column * across + 2, 2), f"frame {t}", fill=colour)
    for row, (name, images) in enumerate(zip(rows, pictures, strict=True)):
        top = _LINE + row * down
        draw.text((2, top + 2), name, fill="black")
        for column, picture in enumerate(images):
            canvas.paste(picture, (column * across, top + _LINE))
    if (shown >= first).any():
        x = int(np.argmax(shown >= first)) * across - _GAP // 2
        draw.line([(x, 0), (x, canvas.height)], fill=_MARK, width=_GAP)
    buffer = io.BytesIO()
    canvas.save(buffer, format="png")
    return buffer.getvalue()


def film(rows: dict[str, NDArray], extrapolate_from: int | None) -> bytes:
    """The first 200 frames, the rows side by side, with their numbers, 200 ms each."""
    stacked = np.concatenate([images[:_FILM] for images in rows.values()], axis=2)
    first = len(stacked) if extrapolate_from is None else extrapolate_from
    pictures = []
    for t, frame in enumerate(stacked):
        image = _picture(frame, _FILM_HEIGHT / len(frame))
        canvas = Image.new("RGB", (image.width, image.height + _LINE), "white")
        canvas.paste(image, (0, _LINE))
        colour = _MARK if t >= first else "black"
        text = f"{t}: {', '.join(rows)}"
        ImageDraw.Draw(canvas).text((2, 2), text, fill=colour)
        pictures.append(canvas)
    buffer = io.BytesIO()
    times = {"duration": 200, "loop": 0, "append_images": pictures[1:]}
    pictures[0].save(buffer, format="GIF", save_all=True, **times)
    return buffer.getvalue()


def _picture(frame: NDArray, enlarged: float) -> Image.Image:
    """A frame `[H, W, C]` in [0, 1], each pixel as a square, about so many times."""
    factor = max(1, round(enlarged))
    pixels = (255 * np.clip(frame, 0, 1)).round().astype(np.uint8)
    pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    size = (factor * pixels.shape[1], factor * pixels.shape[0])
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return image.resize(size, Image.Resampling.NEAREST)
