"""Predicted frames, one at a time: what the page's slider moves through."""

import base64
import html
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from prednet_jax.report.chart import csv_text, download
from prednet_jax.report.figures import same_frames
from prednet_jax.report.numbers import significant
from prednet_jax.report.results import Results


def rows(results: Results, model: str) -> list[tuple[str, NDArray, NDArray | None]]:
    """What there is to show: a name, images [N, H, W, C], and their true frames.

    The true frames come first and have none to be compared with.
    """
    examples = results.examples.get(model, {})
    if not examples:
        return []
    first = same_frames(results, model)
    found: list[tuple[str, NDArray, NDArray | None]] = [
        ("true frame", first.frames, None)
    ]
    found += [(arm, one.predictions, one.frames) for arm, one in examples.items()]
    if first.before is not None:
        found.append(("copy of the frame before", first.before, first.frames))
    return found


def errors(images: NDArray, frames: NDArray) -> NDArray[np.float64]:
    """Mean squared error of each image, [N]."""
    return np.mean((images - frames) ** 2, axis=(1, 2, 3))


def viewer(results: Results, model: str) -> str:
    """The slider and its images as HTML, which the script brings to life."""
    shown = rows(results, model)
    if not shown:
        return ""
    count = len(shown[0][1])
    slides = "".join(_slide(*row) for row in shown)
    return (
        f'<div class="slides" data-frames="{count}" hidden><div class="film">{slides}'
        "</div></div>"
    )


def _slide(name: str, images: NDArray, frames: NDArray | None) -> str:
    count, height, width, _ = images.shape
    said = ""
    if frames is not None:
        listed = "|".join(significant(float(e)) for e in errors(images, frames))
        said = f' <span class="error" data-errors="{listed}"></span>'
    return (
        f'<div class="slide"><div class="window" style="aspect-ratio:{width}/{height}">'
        f'<img alt="{html.escape(name)}" style="width:{100 * count}%" '
        f'src="data:image/png;base64,{base64.b64encode(sheet(images)).decode()}"></div>'
        f"<p>{html.escape(name)}{said}</p></div>"
    )


def sheet(images: NDArray) -> bytes:
    """All images side by side in one PNG, pixel by pixel."""
    pixels = np.round(255 * np.clip(images, 0, 1)).astype(np.uint8)
    strip = np.concatenate(list(pixels), axis=1)
    picture = Image.fromarray(strip if strip.shape[-1] == 3 else strip[..., 0])
    buffer = io.BytesIO()
    picture.save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def table(results: Results, model: str) -> str:
    """A link to the error of every frame as CSV, or nothing."""
    shown = [(n, errors(a, b)) for n, a, b in rows(results, model) if b is not None]
    if not shown:
        return ""
    text = csv_text(
        ["frame", *(name for name, _ in shown)],
        zip(range(1, len(shown[0][1]) + 1), *(e for _, e in shown), strict=True),
    )
    return download(f"frames_{model}", text, "mean squared error of each frame (CSV)")
