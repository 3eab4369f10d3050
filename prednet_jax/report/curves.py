"""Loss curves as PNG: every arm over the control, in small panels."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from prednet_jax.report import theme as look
from prednet_jax.report.answers import gap
from prednet_jax.report.results import (
    CONTROL,
    Results,
    smooth,
    smoothing_width,
)
from prednet_jax.report.theme import Theme

MOST_ARMS = 12


@dataclass(frozen=True)
class Band:
    """Smoothed loss of an arm: [points] each.

    Attributes:
      update: last update that each point averages over.
      middle: median of the seeds.
      low: a quarter of the seeds lies below.
      high: a quarter of the seeds lies above.
    """

    update: NDArray
    middle: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def band(results: Results, model: str, arm: str) -> Band | None:
    """The loss curve of an arm over its seeds, or None where it was not run."""
    return _band(list(results.losses.get(model, {}).get(arm, {}).values()))


def copy_band(results: Results, model: str) -> Band | None:
    """The loss of copying the last frame, or None where frames have no order."""
    return _band(list(results.copied.get(model, {}).values()))


def _band(curves: list[NDArray[np.float64]]) -> Band | None:
    if not curves:
        return None
    length = min(map(len, curves))
    width = smoothing_width(length)
    stack = np.stack([smooth(curve[:length], width) for curve in curves])
    update = np.arange(width, length + 1)
    return quartiles(update, stack)


def quartiles(update: NDArray, seeds: NDArray[np.float64]) -> Band:
    """The middle half of the seeds' curves, [seeds, points], diverged ones left out."""
    finite = np.isfinite(seeds).all(axis=1)
    seeds = seeds[finite] if finite.any() else seeds
    low, middle, high = np.percentile(seeds, [25, 50, 75], axis=0)
    return Band(update, middle, low, high)


def loss_curves(results: Results, theme: Theme, model: str) -> bytes | None:
    """The loss of each arm over the control's, one small panel an arm.

    Small panels, because curves that coincide hide one another in one. At most
    `MOST_ARMS` arms, in the order of the contrasts.
    """
    control, copied = band(results, model, CONTROL), copy_band(results, model)
    arms = shown_arms(results, model)[:MOST_ARMS]
    if control is None or not arms:
        return None
    rows = (len(arms) + 1) // 2
    height = 0.3 + 1.25 * rows
    with look.canvas(theme, 4.9, height) as figure:
        grid = figure.add_gridspec(
            rows,
            2,
            left=0.095,
            right=0.97,
            top=1 - 0.32 / height,
            bottom=0.28 / height,
            wspace=0.16,
            hspace=0.45,
        )
        first: Axes | None = None
        for number, arm in enumerate(arms):
            axes = figure.add_subplot(
                grid[number // 2, number % 2], sharex=first, sharey=first
            )
            first = first or axes
            if copied is not None:
                axes.plot(copied.update, copied.middle, color=theme.ink, lw=1, ls=":")
            for name in (CONTROL, arm):
                _small_line(axes, results, theme, model, name)
            look.log_axis(axes)
            axes.set_xlim(0, control.update[-1])
            axes.tick_params(labelsize=8, labelleft=number % 2 == 0)
            axes.tick_params(labelbottom=number >= len(arms) - 2)
            shade = look.colour(results.roles(model).get(arm), theme)
            axes.set_title(arm, loc="left", size=9, weight="bold", color=shade, pad=5)
            change = gap(results.contrast(model, arm))
            corner: Any = {"transform": axes.transAxes, "ha": "right", "va": "top"}
            axes.text(1, 0.97, change, size=8.5, color=theme.muted, **corner)
        return look.png(figure)


def shown_arms(results: Results, model: str) -> list[str]:
    """Arms with curves beside the control, in the order of the contrasts."""
    have = results.losses.get(model, {})
    named = [
        name
        for one in results.contrasts(model)
        for name in (one["treatment"], one["control"])
    ]
    order = dict.fromkeys([*named, *have])
    return [arm for arm in order if arm in have and arm != CONTROL]


def _small_line(
    axes: Axes, results: Results, theme: Theme, model: str, arm: str
) -> None:
    curve = band(results, model, arm)
    if curve is None:
        return
    shade = look.colour(results.roles(model).get(arm), theme)
    shade = theme.muted if arm == CONTROL else shade
    axes.fill_between(
        curve.update, curve.low, curve.high, color=shade, alpha=0.15, lw=0
    )
    width = 3.2 if arm == CONTROL else 1.4
    alpha = 0.45 if arm == CONTROL else 1.0
    axes.plot(curve.update, curve.middle, color=shade, lw=width, alpha=alpha)
