"""Pictures of predicted frames: a strip as PNG, a film as GIF and as MP4."""

import io
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from prednet_jax.report.theme import plain_png

_MOST = 10  # Frames of a strip.
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
    count = min(_MOST, length)
    shown = np.linspace(0, length - 1, count).round().astype(int)
    _, height, width, _ = next(iter(rows.values())).shape
    size = (1.4 * count, 1.4 * len(rows) * height / width + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(rows), count, squeeze=False)
    for row, (name, images) in enumerate(rows.items()):
        for t, ax in zip(shown, axes[row], strict=True):
            own = extrapolate_from is not None and t >= extrapolate_from
            ax.imshow(np.clip(images[t].squeeze(), 0, 1), cmap="gray", vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[])
            if row == 0:
                colour = _MARK if own else "black"
                ax.set_title(f"frame {t}", fontsize=8, color=colour)
        axes[row, 0].set_ylabel(name, fontsize=8)
    if extrapolate_from is not None and (shown >= extrapolate_from).any():
        first = int(np.argmax(shown >= extrapolate_from))
        for line in axes:
            line[first].spines["left"].set(color=_MARK, linewidth=4)
        said = f"from frame {extrapolate_from} on the network sees its own predictions"
        figure.supxlabel(said, color=_MARK, fontsize=8)
    return plain_png(figure, dpi=120, bbox_inches="tight")


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
        pixels = (255 * np.clip(frame, 0, 1)).round().astype(np.uint8)
        pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
        image = Image.fromarray(np.ascontiguousarray(pixels)).resize(
            (factor * pixels.shape[1], factor * height), Image.Resampling.NEAREST
        )
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
