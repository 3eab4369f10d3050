"""The figure of the finding: each arm's loss relative to the control's, seed by seed.

Seeds differ in their frames and weights far more than arms do within a seed, so curves
of the loss itself hide what a paired comparison shows. Here each seed's curve is

    running mean of the arm's loss / running mean of the control's loss - 1

and the figure shows the median and the middle half of the seeds: what happens to a
typical one, whatever the hardest does. The verdict compares means over seeds.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from prednet_jax.report import theme as look
from prednet_jax.report.answers import display_name, gap
from prednet_jax.report.curves import Band, quartiles
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
# Four kinds of dashes take turns and leave a fifth of the line beneath in sight.
_DASH = (2.5, 10)
# A line's sample in the legend is too short for its own dashes.
_SAMPLE = (0, (2.5, 1.7))
_STYLES: dict[str, dict[str, Any]] = {
    "control": {"lw": 5.5, "alpha": 0.3},
    "stale": {"lw": 2.6},
    "treatment": {"lw": 2.0, "ls": (5, _DASH), "dash_capstyle": "butt"},
    "gpu": {"lw": 2.0, "ls": (2.5, _DASH), "dash_capstyle": "butt"},
    "gpu_deterministic": {"lw": 2.0, "ls": (7.5, _DASH), "dash_capstyle": "butt"},
}


def drawn_arms(results: Results, model: str) -> dict[str, str]:
    """The arms that carry the finding by their roles, in the order of drawing."""
    roles = {role: arm for arm, role in reversed(results.roles(model).items())}
    return {role: roles[role] for role in _STYLES if role in roles}


def relative_band(results: Results, model: str, arm: str) -> Band | None:
    """Loss of an arm relative to the control's, in percent, over the shared seeds.

    Returns:
      Median and middle half of the seeds, [points]; None where no seed has both.
    """
    arms = results.losses.get(model, {})
    ours, theirs = arms.get(arm, {}), arms.get(CONTROL, {})
    seeds = sorted(set(ours) & set(theirs))
    if not seeds:
        return None
    length = min(min(len(ours[s]), len(theirs[s])) for s in seeds)
    width = smoothing_width(length)
    a, b = (
        np.stack([smooth(curves[s][:length], width) for s in seeds])
        for curves in (ours, theirs)
    )
    return quartiles(np.arange(width, length + 1), 100 * (a / b - 1))


def finding(results: Results, theme: Theme, models: Sequence[str]) -> bytes | None:
    """Relative loss of the arms that carry the finding, one panel a model.

    All models share one scale, also where a panel is drawn alone: a difference that
    cannot be seen beside the others is not worth seeing.

    Returns:
      PNG, 4.4 inches a panel; None where no model has a control to compare with.
    """
    drawn = [model for model in models if relative_band(results, model, CONTROL)]
    if not drawn:
        return None
    limits = _limits(results)
    with look.canvas(theme, 4.4 * len(drawn), 3.5) as figure:
        for number, model in enumerate(drawn):
            left = (number + 0.125) / len(drawn)
            axes = figure.add_axes((left, 0.135, 0.53 / len(drawn), 0.665))
            _panel(axes, results, theme, model, limits)
            x = (number + 0.02) / len(drawn)
            figure.text(x, 0.94, display_name(model), weight="bold", size=13)
            words = subtitle(results, model)
            figure.text(x, 0.875, words, size=9 if len(words) < 56 else 7.5)
            unit = "loss relative to float32, same seeds"
            figure.text(x, 0.82, unit, size=8.5, color=theme.muted)
        return look.png(figure)


def _limits(results: Results) -> tuple[float, float]:
    """Ends of the axis, in percent: all bands and margins."""
    high, low = 1e-3, -1e-3
    for model in results.models:
        margin = 130 * (margin_of(results, model) or 0)
        high, low = max(high, margin), min(low, -margin)
        for arm in drawn_arms(results, model).values():
            curve = relative_band(results, model, arm)
            if curve is not None:
                high = max(high, 1.1 * curve.high.max())
                low = min(low, 1.1 * curve.low.min())
    return min(low, -0.15 * high), max(high, -0.15 * low)


def margin_of(results: Results, model: str) -> float | None:
    """The margin as a fraction of the control's loss, where both are known."""
    chosen = results.contrasts(model)
    return relative(chosen[0], "margin") if chosen else None


def _panel(
    axes: Axes,
    results: Results,
    theme: Theme,
    model: str,
    limits: tuple[float, float],
) -> None:
    margin = 100 * (margin_of(results, model) or 0)
    axes.axhspan(-margin, margin, color=theme.faint, lw=0, zorder=0)
    ends: list[tuple[str, str, float]] = []
    last = 1.0
    for role, arm in drawn_arms(results, model).items():
        curve = relative_band(results, model, arm)
        if curve is None:
            continue
        shade = look.colour(role, theme)
        axes.fill_between(
            curve.update, curve.low, curve.high, color=shade, alpha=0.15, lw=0
        )
        axes.plot(curve.update, curve.middle, color=shade, **_STYLES[role])
        ends.append((role, arm, float(curve.middle[-1])))
        last = max(last, float(curve.update[-1]))
    axes.set_xlim(0, last)
    axes.set_ylim(*limits)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(_tick))
    axes.grid(visible=False, axis="x")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("update", fontsize=9)
    if margin > 0.09 * (limits[1] - limits[0]):
        place: Any = {"va": "bottom", "size": 8, "color": theme.muted}
        axes.text(0.02 * last, -0.97 * margin, "counts as none", **place)
    _end_labels(axes, ends, theme)


def _tick(value: float, _: Any) -> str:
    return "0" if value == 0 else f"{value:+g} %".replace("-", "−")


def _end_labels(axes: Axes, ends: list[tuple[str, str, float]], theme: Theme) -> None:
    """Names at the end of the lines, spread so that none covers another."""
    low, high = axes.get_ylim()
    step = 0.075
    places = sorted(
        ((value - low) / (high - low), -rank, role, arm)
        for rank, (role, arm, value) in enumerate(ends)
    )
    heights = np.array([place for place, *_ in places])
    for _ in range(200):
        gaps = np.diff(heights)
        close = gaps < step - 1e-6
        if not close.any():
            break
        push = np.where(close, (step - gaps) / 2, 0)
        heights[:-1] -= push
        heights[1:] += push
    heights += max(0, 0.01 - heights[0])
    for height, (_, _, role, arm) in zip(heights, places, strict=True):
        shade = look.colour(role, theme)
        axes.plot(
            [1.025, 1.115],
            [height, height],
            transform=axes.transAxes,
            clip_on=False,
            color=shade,
            solid_capstyle="butt",
            **_STYLES[role] | ({"ls": _SAMPLE} if "ls" in _STYLES[role] else {}),
        )
        axes.text(
            1.135,
            height,
            look.plain_name(arm, role),
            transform=axes.transAxes,
            va="center",
            size=9.5,
            color=theme.ink,
        )


def subtitle(results: Results, model: str) -> str:
    """What the finding's panel shows, in words that the contrasts justify."""
    stale = results.contrast(model, "stale")
    noise = results.contrast(model, "treatment")
    parts = []
    if identical(stale):
        parts.append("stale targets: same bits")
    elif stale is not None and stale["verdict"] in ("lower loss", "higher loss"):
        parts.append(f"stale targets: {gap(stale)} loss")
    if identical(noise):
        parts.append("random order: same bits")
    elif noise is not None and noise["verdict"] == "equivalent":
        parts.append("random order: equivalent")
    elif noise is not None and noise["verdict"] != "inconclusive":
        parts.append(f"random order: {gap(noise)} loss")
    for one in results.contrasts(model):
        if one.get("role") == "gpu_deterministic" and one["control"] != CONTROL:
            parts.append(f"GPU order: {one['verdict']}")
    return "; ".join(parts) or "loss during training"
