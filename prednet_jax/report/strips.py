"""Pictures of predicted frames: a strip as PNG and a film as GIF.

Both take rows of frames `[T, H, W, C]` in [0, 1] by their names; NaN is a frame that
does not exist. `start` is the number of the first frame. From frame `first` of the rows
on, the numbers of the frames are coloured; by default none are. With `words`, such as
`("seen", "own")`, each frame also has the first word before `first`, and from there on
the second one and its horizon: t+1 is the first frame after the last that was seen.
"""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

# Pixels: width of a strip's frame, of a line of text, between frames, height of a film;
# and the most frames of a film.
_STRIP_WIDTH, _LINE, _GAP, _FILM_HEIGHT, _FILM = 160, 16, 4, 160, 200
# The most frames of a strip that is spread evenly, and of another one, in which at
# least so many before `first` are shown.
_SPREAD, _SHOWN, _BEFORE = 10, 12, 2
_MARK, _ABSENT = "#D55E00", 0.88

Words = tuple[str, str] | None


def strip(
    rows: dict[str, NDArray], first: int | None, *, start: int = 0, words: Words = None
) -> bytes:
    """Creates a PNG of at most ten or twelve frames of each row.

    Ten frames are spread evenly. With `words` and `first` the last frames before
    `first` are shown, and as many later frames as fit, including the nearest and the
    farthest one. A line stands before frame `first`.
    """
    length = len(next(iter(rows.values())))
    shown = _shown(length, first if words else None)
    pictures = [
        [_picture(images[t], _STRIP_WIDTH / images.shape[2]) for t in shown]
        for images in rows.values()
    ]
    head = _LINE * (2 if words else 1)
    across = max(images[0].width for images in pictures) + _GAP
    down = max(images[0].height for images in pictures) + _LINE
    canvas = Image.new("RGB", (across * len(shown), head + down * len(rows)), "white")
    draw = ImageDraw.Draw(canvas)
    for column, t in enumerate(shown):
        lines, colour = _caption(t, first, start, words)
        text = "\n".join([f"frame {lines[0]}", *lines[1:]])
        draw.text((column * across + 2, 2), text, fill=colour)
    for row, (name, images) in enumerate(zip(rows, pictures, strict=True)):
        top = head + row * down
        draw.text((2, top + 2), name, fill="black")
        for column, picture in enumerate(images):
            canvas.paste(picture, (column * across, top + _LINE))
    after = [
        column for column, t in enumerate(shown) if first is not None and t >= first
    ]
    if after:
        x = after[0] * across - _GAP // 2
        draw.line([(x, 0), (x, canvas.height)], fill=_MARK, width=_GAP)
    buffer = io.BytesIO()
    canvas.save(buffer, format="png")
    return buffer.getvalue()


def film(
    rows: dict[str, NDArray], first: int | None, *, start: int = 0, words: Words = None
) -> bytes:
    """Returns the last 200 frames as GIF, the rows side by side, 200 ms each."""
    stacked = np.concatenate(list(rows.values()), axis=2)
    pictures = []
    for t in range(max(0, len(stacked) - _FILM), len(stacked)):
        image = _picture(stacked[t], _FILM_HEIGHT / stacked.shape[1])
        canvas = Image.new("RGB", (image.width, image.height + _LINE), "white")
        canvas.paste(image, (0, _LINE))
        lines, colour = _caption(t, first, start, words)
        text = f"{' '.join(lines)}: {', '.join(rows)}"
        ImageDraw.Draw(canvas).text((2, 2), text, fill=colour)
        pictures.append(canvas)
    buffer = io.BytesIO()
    times = {"duration": 200, "loop": 0, "append_images": pictures[1:]}
    pictures[0].save(buffer, format="GIF", save_all=True, **times)
    return buffer.getvalue()


def _shown(length: int, first: int | None) -> NDArray:
    """Returns the numbers of the frames of a strip."""
    if first is None or first >= length:
        return _spread(0, length, _SPREAD)
    horizons = min(length - first, _SHOWN - min(first, _BEFORE))
    before = min(first, _SHOWN - horizons)
    return np.concatenate(
        [np.arange(first - before, first), _spread(first, length, horizons)]
    )


def _spread(begin: int, end: int, most: int) -> NDArray:
    return np.linspace(begin, end - 1, min(most, end - begin)).round().astype(int)


def _caption(
    t: int, first: int | None, start: int, words: Words
) -> tuple[list[str], str]:
    """Returns the lines over a frame, and their colour."""
    after = first is not None and t >= first
    lines = [str(start + t)]
    if words and first is not None and after:
        lines.append(f"{words[1]}, t+{t - first + 1}")
    elif words:
        lines.append(words[0])
    return lines, _MARK if after else "black"


def _picture(frame: NDArray, enlarged: float) -> Image.Image:
    """Returns a frame `[H, W, C]` in [0, 1] enlarged, each pixel as a square."""
    factor = max(1, round(enlarged))
    frame = np.nan_to_num(frame, nan=_ABSENT)
    pixels = (255 * np.clip(frame, 0, 1)).round().astype(np.uint8)
    pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    size = (factor * pixels.shape[1], factor * pixels.shape[0])
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return image.resize(size, Image.Resampling.NEAREST)
