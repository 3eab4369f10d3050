"""Paired differences and predicted frames as PNG. Reads results, runs nothing."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator
from numpy.typing import NDArray

from prednet_jax.records import RecordError
from prednet_jax.report import theme as look
from prednet_jax.report.numbers import significant
from prednet_jax.report.results import (
    Examples,
    Results,
    identical,
    label,
)
from prednet_jax.report.theme import Theme

# Width of the linear part of the differences' axis, each side, in decades.
LINEAR_DECADES = 0.5


def differences(results: Results, theme: Theme, model: str) -> bytes | None:
    """Paired differences with their intervals, in margins, on a symlog axis."""
    chosen = [
        one
        for one in results.contrasts(model)
        if one.get("margin") and one.get("mean_difference") is not None
    ]
    if not chosen:
        return None
    values = []
    for one in chosen:
        mean = one["mean_difference"]
        ends = [mean if one[k] is None else one[k] for k in ("ci_low", "ci_high")]
        values.append(np.array([ends[0], mean, ends[1]]) / one["margin"])
    extents = [np.abs(v).max() for v in values]
    # Inside the threshold the axis is linear: the narrowest interval just fits there.
    smallest = min((e for e in extents if e > 0), default=0.1)
    threshold = 10.0 ** np.clip(np.floor(np.log10(smallest)), -14, -1)
    limit = 2.5 * max(1.5, *extents)
    height = 0.85 + 0.36 * len(chosen)
    width = 5.0
    names = [label(one) for one in chosen]
    # Inches: a letter of the names on the left, and the words on the right.
    left, right = 0.2 + 0.076 * max(map(len, names)), 1.08
    left = min(left, 2.0)
    inner = width - left - right
    with look.canvas(theme, width, height) as figure:
        axes = figure.add_axes(
            (left / width, 0.5 / height, inner / width, 1 - 0.72 / height)
        )
        axes.axvspan(-1, 1, color=theme.faint, lw=0, zorder=0)
        axes.axvline(0, color=theme.muted, lw=0.7)
        axes.grid(visible=False)
        for row, (one, v) in enumerate(zip(chosen, values, strict=True)):
            shade = look.colour(one.get("role"), theme)
            same = identical(one)
            axes.plot(v[[0, 2]], [row, row], color=shade, lw=2.4, alpha=0.65)
            axes.plot(
                v[1],
                row,
                marker="D" if same else "o",
                ms=5,
                mfc=theme.ground if same else shade,
                mec=shade,
                mew=1.4,
            )
            word = "identical bits" if same else one["verdict"]
            place = axes.get_yaxis_transform()
            axes.text(1.03, row, word, transform=place, va="center", size=9)
        axes.set_ylim(len(chosen) - 0.4, -0.6)
        axes.set_yticks(range(len(chosen)), names)
        axes.tick_params(axis="y", labelcolor=theme.ink)
        _symlog_axis(axes, theme, threshold, limit, inner)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("difference from the control, in margins", fontsize=9)
        axes.set_title("counts as none", size=8.5, color=theme.muted, pad=4)
        return look.png(figure)


def _symlog_axis(
    axes: Axes, theme: Theme, threshold: float, limit: float, inches: float
) -> None:
    axes.set_xscale("symlog", linthresh=threshold, linscale=LINEAR_DECADES)
    axes.set_xlim(-limit, limit)
    ticks = symlog_ticks(threshold, limit, inches)
    axes.xaxis.set_major_locator(FixedLocator([t for t, _ in ticks]))
    axes.xaxis.set_major_formatter(FixedFormatter([name for _, name in ticks]))
    # Unnamed marks at every decade say that the scale is logarithmic.
    decades = 10.0 ** np.arange(np.log10(threshold), np.log10(limit))
    axes.xaxis.set_minor_locator(FixedLocator([*-decades, *decades]))
    axes.tick_params(axis="x", which="both", length=3, width=0.7, color=theme.muted)


def symlog_ticks(
    threshold: float, limit: float, inches: float
) -> list[tuple[float, str]]:
    """Zero, the margin and what else of the decades has room for its label."""
    low, high = np.log10(threshold), np.log10(limit)
    # Matplotlib's symlog stretches its linear part by base / (base - 1).
    linear = LINEAR_DECADES / 0.9
    reach = linear + high - low
    ticks, taken = [(0.0, "0")], [(0.0, 0.1 / inches)]
    for power in (0, np.round(low / 2), low, np.floor(high)):
        place = (linear + power - low) / reach
        # Half the label's width, as a part of half the axis.
        half = (0.12 if power in (0, 1) else 0.2) / (inches / 2)
        if any(abs(place - other) < half + room for other, room in taken):
            continue
        taken.append((place, half))
        name = {0: "1", 1: "10"}.get(int(power), f"$10^{{{int(power)}}}$")
        ticks += [(10.0**power, name), (-(10.0**power), f"−{name}")]
    return sorted(ticks)


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
    first = examples[arms[0]]
    rows = [("true frames", first.frames)]
    for arm in arms:
        one = examples[arm]
        if not np.array_equal(one.frames, first.frames):
            raise RecordError(
                f"{results.directory / 'runs' / model}: examples.npz of {arms[0]} and "
                f"{arm} hold different frames; expected the same ones"
            )
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


def _title(name: str, images: NDArray[np.float64], examples: Examples) -> str:
    error = float(np.mean((images - examples.frames) ** 2))
    return f"{name} · MSE {significant(error)}"
