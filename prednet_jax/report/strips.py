"""Pictures of predicted frames: a strip as PNG, a film as GIF and as MP4."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

_MOST = 10  # Frames of a strip.
_STRIP_WIDTH, _LINE, _GAP = (
    160,
    16,
    4,
)  # Pixels: of a frame, of a line of text, between.
_FILM_HEIGHT = 160  # Pixels of a film's frame, about.
_MILLISECONDS = 200  # Of each.
_MARK = "#D55E00"


def strip(rows: dict[str, NDArray], extrapolate_from: int | None) -> bytes:
    """At most ten frames of each row, evenly spread, with their numbers, as PNG.

    Args:
        rows: frames `[T, H, W, C]` in [0, 1] by what they are.
        extrapolate_from: a line stands before the first frame from here on, and its
            number is coloured; None: no line.
    """
    length = len(next(iter(rows.values())))
    shown = np.linspace(0, length - 1, min(_MOST, length)).round().astype(int)
    _, height, width, _ = next(iter(rows.values())).shape
    factor = max(1, round(_STRIP_WIDTH / width))
    across, down = factor * width + _GAP, factor * height + _LINE
    canvas = Image.new("RGB", (across * len(shown), _LINE + down * len(rows)), "white")
    draw = ImageDraw.Draw(canvas)
    for column, t in enumerate(shown):
        own = extrapolate_from is not None and t >= extrapolate_from
        place = (column * across + 2, 2)
        draw.text(place, f"frame {t}", fill=_MARK if own else "black")
        for row, (name, images) in enumerate(rows.items()):
            top = _LINE + row * down
            if column == 0:
                draw.text((2, top + 2), name, fill="black")
            picture = _picture(images[t], factor)
            canvas.paste(picture, (column * across, top + _LINE))
    if extrapolate_from is not None and (shown >= extrapolate_from).any():
        x = int(np.argmax(shown >= extrapolate_from)) * across - _GAP // 2
        draw.line([(x, 0), (x, canvas.height)], fill=_MARK, width=_GAP)
    buffer = io.BytesIO()
    canvas.save(buffer, format="png")
    return buffer.getvalue()


def _picture(frame: NDArray, factor: int) -> Image.Image:
    """A frame `[H, W, C]` in [0, 1], each pixel as a square of pixels."""
    pixels = (255 * np.clip(frame, 0, 1)).round().astype(np.uint8)
    pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    size = (factor * pixels.shape[1], factor * pixels.shape[0])
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return image.resize(size, Image.Resampling.NEAREST)


def film(rows: dict[str, NDArray], extrapolate_from: int | None) -> list[Image.Image]:
    """All frames, the rows side by side, with their numbers.

    Args:
        rows: frames `[T, H, W, C]` in [0, 1] by what they are.
        extrapolate_from: from here on the number is coloured; None: nowhere.

    Returns:
        Pictures of one size, whose sides are even, as video encoders want them.
    """
    stacked = np.concatenate(list(rows.values()), axis=2)
    height = stacked.shape[1]
    factor = max(1, round(_FILM_HEIGHT / height))
    pictures = []
    for t, frame in enumerate(stacked):
        image = _picture(frame, factor)
        size = (image.width + image.width % 2, image.height + image.height % 2 + 16)
        canvas = Image.new("RGB", size, "white")
        canvas.paste(image, (0, 16))
        own = extrapolate_from is not None and t >= extrapolate_from
        text = f"{t}: {', '.join(rows)}"
        ImageDraw.Draw(canvas).text((2, 2), text, fill=_MARK if own else "black")
        pictures.append(canvas)
    return pictures


def gif(pictures: list[Image.Image]) -> bytes:
    """The pictures of a film as a GIF."""
    buffer = io.BytesIO()
    pictures[0].save(
        buffer,
        format="GIF",
        save_all=True,
        append_images=pictures[1:],
        duration=_MILLISECONDS,
        loop=0,
    )
    return buffer.getvalue()


def mp4(pictures: list[Image.Image]) -> bytes:
    """The pictures of a film as an MP4, in H.264, or MPEG-4 where that is missing."""
    import av

    buffer = io.BytesIO()
    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    with av.open(buffer, "w", format="mp4") as container:
        stream: Any = container.add_stream(codec, rate=1000 // _MILLISECONDS)
        stream.width, stream.height = pictures[0].size
        stream.pix_fmt = "yuv420p"
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode())
    return buffer.getvalue()
