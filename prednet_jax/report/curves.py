"""Loss curves as PNG: the finding, and every arm over the control."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from prednet_jax.report import theme as look
from prednet_jax.report.answers import display_name
from prednet_jax.report.numbers import percent
from prednet_jax.report.results import (
    CONTROL,
    Results,
    identical,
    relative,
    smooth,
    smoothing_width,
)
from prednet_jax.report.theme import Theme

# In the order of drawing. Lines that coincide must all stay visible: the control is a
# broad pale line, stale targets a solid one on it, and the others are dashes that take
# turns on top.
FINDING_ARMS = (
    CONTROL,
    "stale_targets",
    "float64",
    "reduction_order",
    "gpu",
    "gpu_deterministic",
)
MOST_ARMS = 12
# Four kinds of dashes take turns and leave a fifth of the line beneath in sight.
_DASH = (2.5, 10)
# A line's sample in the legend is too short for its own dashes.
_SAMPLE = (0, (2.5, 1.7))
_STYLES: dict[str, dict[str, Any]] = {
    CONTROL: {"lw": 5.5, "alpha": 0.3},
    "stale_targets": {"lw": 2.6},
    "float64": {"lw": 2.0, "ls": (0, _DASH), "dash_capstyle": "butt"},
    "reduction_order": {"lw": 2.0, "ls": (5, _DASH), "dash_capstyle": "butt"},
    "gpu": {"lw": 2.0, "ls": (2.5, _DASH), "dash_capstyle": "butt"},
    "gpu_deterministic": {"lw": 2.0, "ls": (7.5, _DASH), "dash_capstyle": "butt"},
}


@dataclass(frozen=True)
class Band:
    """Smoothed loss of an arm: [points] each.

    Attributes:
      update: last update that each point averages over.
      mean: over the seeds.
      low: lowest seed.
      high: highest seed.
    """

    update: NDArray
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def band(results: Results, model: str, arm: str) -> Band | None:
    """The loss curve of an arm over its seeds, or None where it was not run."""
    curves = list(results.losses.get(model, {}).get(arm, {}).values())
    if not curves:
        return None
    length = min(map(len, curves))
    width = smoothing_width(length)
    stack = np.stack([smooth(curve[:length], width) for curve in curves])
    update = np.arange(width, length + 1)
    return Band(update, stack.mean(0), stack.min(0), stack.max(0))


def finding(results: Results, theme: Theme, models: Sequence[str]) -> bytes | None:
    """Loss curves of the arms that carry the finding, one panel a model.

    Returns:
      PNG, 4.4 inches a panel; None where no model has a curve.
    """
    drawn = [model for model in models if results.losses.get(model)]
    if not drawn:
        return None
    with look.canvas(theme, 4.4 * len(drawn), 3.5) as figure:
        for number, model in enumerate(drawn):
            left = (number + 0.105) / len(drawn)
            axes = figure.add_axes((left, 0.135, 0.55 / len(drawn), 0.665))
            _finding_panel(axes, results, theme, model)
            x = (number + 0.02) / len(drawn)
            figure.text(x, 0.94, display_name(model), weight="bold", size=13)
            words = subtitle(results, model)
            figure.text(x, 0.875, words, size=9 if len(words) < 56 else 7.5)
            figure.text(x, 0.82, "loss, log scale", size=8.5, color=theme.muted)
        return look.png(figure)


def _finding_panel(axes: Axes, results: Results, theme: Theme, model: str) -> None:
    ends: list[tuple[str, float]] = []
    last = 1.0
    for arm in FINDING_ARMS:
        curve = band(results, model, arm)
        if curve is None:
            continue
        shade = look.colour(arm, theme)
        if arm in (CONTROL, "stale_targets"):
            axes.fill_between(
                curve.update, curve.low, curve.high, color=shade, alpha=0.13, lw=0
            )
        axes.plot(curve.update, curve.mean, color=shade, **_STYLES[arm])
        ends.append((arm, curve.mean[-1]))
        last = max(last, float(curve.update[-1]))
    look.log_axis(axes)
    axes.set_xlim(0, last)
    axes.margins(y=0.06)
    axes.set_xlabel("update", fontsize=9)
    _end_labels(axes, ends, theme)


def _end_labels(axes: Axes, ends: list[tuple[str, float]], theme: Theme) -> None:
    """Names at the end of the lines, spread so that none covers another."""
    low, high = np.log(axes.get_ylim())
    step = 0.075
    places = sorted(
        ((np.log(value) - low) / (high - low), -rank, arm)
        for rank, (arm, value) in enumerate(ends)
    )
    heights = np.array([place for place, _, _ in places])
    for _ in range(200):
        gaps = np.diff(heights)
        close = gaps < step - 1e-6
        if not close.any():
            break
        push = np.where(close, (step - gaps) / 2, 0)
        heights[:-1] -= push
        heights[1:] += push
    heights += max(0, 0.01 - heights[0])
    for height, (_, _, arm) in zip(heights, places, strict=True):
        shade = look.colour(arm, theme)
        axes.plot(
            [1.025, 1.115],
            [height, height],
            transform=axes.transAxes,
            clip_on=False,
            color=shade,
            solid_capstyle="butt",
            **_STYLES[arm] | ({"ls": _SAMPLE} if "ls" in _STYLES[arm] else {}),
        )
        axes.text(
            1.135,
            height,
            look.plain_name(arm),
            transform=axes.transAxes,
            va="center",
            size=9.5,
            color=theme.ink,
        )


def subtitle(results: Results, model: str) -> str:
    """What the finding's panel shows, in words that the contrasts justify."""
    stale = results.contrast(model, "stale_targets")
    noise = results.contrast(model, "reduction_order")
    parts = []
    if identical(stale):
        parts.append("stale targets: same bits")
    elif stale is not None and stale["verdict"] in ("lower loss", "higher loss"):
        parts.append(f"stale targets: {_gap(stale)} loss")
    if identical(noise):
        parts.append("random order: same bits")
    elif noise is not None and noise["verdict"] == "equivalent":
        parts.append("random order: equivalent")
    elif noise is not None and noise["verdict"] != "inconclusive":
        parts.append(f"random order: {_gap(noise)} loss")
    for one in results.contrasts(model):
        if (one["treatment"], one["control"]) == ("gpu_deterministic", "gpu"):
            parts.append(f"GPU order: {one['verdict']}")
    return "; ".join(parts) or "loss during training"


def loss_curves(results: Results, theme: Theme, model: str) -> bytes | None:
    """The loss of each arm over the control's, one small panel an arm.

    Small panels, because curves that coincide hide one another in one. At most
    `MOST_ARMS` arms, in the order of the contrasts.
    """
    control = band(results, model, CONTROL)
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
            for name in (CONTROL, arm):
                _small_line(axes, results, theme, model, name)
            look.log_axis(axes)
            axes.set_xlim(0, control.update[-1])
            axes.tick_params(labelsize=8, labelleft=number % 2 == 0)
            axes.tick_params(labelbottom=number >= len(arms) - 2)
            shade = look.colour(arm, theme)
            axes.set_title(arm, loc="left", size=9, weight="bold", color=shade, pad=5)
            gap = _gap(results.contrast(model, arm))
            corner: Any = {"transform": axes.transAxes, "ha": "right", "va": "top"}
            axes.text(1, 0.97, gap, size=8.5, color=theme.muted, **corner)
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


def _gap(contrast: dict[str, Any] | None) -> str:
    """The difference from the control in a few words; empty where it is not known."""
    if identical(contrast):
        return "same bits"
    gap = relative(contrast, "mean_difference")
    if gap is None:
        return ""
    if 0 < abs(gap) < 1e-5:
        return "under 0.001 %"
    return percent(gap).replace("-", "−")


def _small_line(
    axes: Axes, results: Results, theme: Theme, model: str, arm: str
) -> None:
    curve = band(results, model, arm)
    if curve is None:
        return
    shade = theme.muted if arm == CONTROL else look.colour(arm, theme)
    axes.fill_between(
        curve.update, curve.low, curve.high, color=shade, alpha=0.15, lw=0
    )
    width = 3.2 if arm == CONTROL else 1.4
    alpha = 0.45 if arm == CONTROL else 1.0
    axes.plot(curve.update, curve.mean, color=shade, lw=width, alpha=alpha)
