"""Predicted frames as PNG. Reads results, runs nothing."""

import numpy as np
from numpy.typing import NDArray

from prednet_jax.records import RecordError
from prednet_jax.report import theme as look
from prednet_jax.report.numbers import significant
from prednet_jax.report.results import (
    Examples,
    Results,
)
from prednet_jax.report.theme import Theme


def frames(results: Results, theme: Theme, model: str) -> bytes | None:
    """True frames, the predictions of two arms and the frame before, a row each.

    The copy of the frame before is what a prediction has to beat; the autoencoder
    predicts nothing and goes without it.

    Raises:
      RecordError: two arms were shown different frames.
    """
    examples = results.examples.get(model, {})
    rows = frame_rows(results, model)
    if not rows:
        return None
    true = next(iter(examples.values())).frames
    count, height, width, _ = true.shape
    columns = min(count, 8 if width <= 1.1 * height else 5)
    cell = 4.9 / columns
    row_height = cell * height / width + 0.27
    with look.canvas(theme, 4.9, row_height * len(rows)) as figure:
        total = row_height * len(rows)
        for row, (title, images) in enumerate(rows):
            top = total - row * row_height
            figure.text(0.002, (top - 0.19) / total, title, size=9)
            for column in range(columns):
                axes = figure.add_axes(
                    (
                        column / columns,
                        (top - row_height + 0.03) / total,
                        0.985 / columns,
                        (row_height - 0.27) / total,
                    )
                )
                axes.axis("off")
                image = np.clip(images[column], 0, 1)
                axes.imshow(
                    image if image.shape[-1] == 3 else image[..., 0],
                    cmap="gray",
                    vmin=0,
                    vmax=1,
                    interpolation="nearest",
                    aspect="auto",
                )
        return look.png(figure, photographs=True)


def frame_rows(results: Results, model: str) -> list[tuple[str, NDArray[np.float64]]]:
    """Titles, each with its mean squared error, and the images [N, H, W, C] beneath."""
    examples = results.examples.get(model, {})
    roles = results.roles(model)
    arms = [arm for arm in examples if roles.get(arm) in ("control", "stale")]
    arms = arms or list(examples)[:2]
    if not arms:
        return []
    first = same_frames(results, model)
    rows = [("true frames", first.frames)]
    for arm in arms:
        one = examples[arm]
        rows.append(
            (
                _title(look.plain_name(arm, roles.get(arm)), one.predictions, one),
                one.predictions,
            )
        )
    if first.before is not None:
        rows.append(
            (_title("copy of the frame before", first.before, first), first.before)
        )
    return rows


def same_frames(results: Results, model: str) -> Examples:
    """The first arm's examples, whose frames all arms share.

    Raises:
      RecordError: two arms were shown different frames.
    """
    (name, first), *others = results.examples[model].items()
    for arm, one in others:
        if not np.array_equal(one.frames, first.frames):
            raise RecordError(
                f"{results.directory / 'runs' / model}: examples.npz of {name} and "
                f"{arm} hold different frames; expected the same ones"
            )
    return first


def _title(name: str, images: NDArray[np.float64], examples: Examples) -> str:
    error = float(np.mean((images - examples.frames) ** 2))
    return f"{name} · MSE {significant(error)}"
