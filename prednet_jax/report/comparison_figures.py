"""The figures of a comparison: losses, differences of the arms, predicted frames."""

import base64
import dataclasses
import io
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from prednet_jax.records import RecordError
from prednet_jax.report import charts
from prednet_jax.report.charts import INK, MUTED, ROLES, Dots, Row, Spec
from prednet_jax.report.curves import Curves, Series, csv_text
from prednet_jax.report.numbers import interval, significant
from prednet_jax.report.results import (
    CONTROL,
    Record,
    Results,
    contrasts,
    identical,
    label,
    relative,
)
from prednet_jax.report.tables import display_name

COPY = "copy of the last frame"
_MOST_POINTS = 120
# The roles whose arms carry the finding, in the order of drawing.
_CARRY = ("control", "stale", "treatment", "gpu", "gpu_deterministic")
_CONTRAST = ("n", "mean_difference", "ci_low", "ci_high", "margin", "p_holm", "tost_p")


def smooth(loss: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Running mean over `width` values, [n] -> [n - width + 1]."""
    sums = np.concatenate([[0.0], np.cumsum(loss)])
    return (sums[width:] - sums[:-width]) / width


def losses(results: Results, model: str) -> Curves | None:
    """Running means of the losses of every arm and seed; None without the control.

    A mean is over a tenth of the shortest run, at most 50 updates.
    """
    arms = results.losses.get(model, {})
    if CONTROL not in arms:
        return None
    roles = {str(a.get("name")): str(a.get("role", "")) for a in results.arms(model)}
    first = {role: arm for arm, role in reversed(roles.items())}
    carry = [first[role] for role in _CARRY if role in first]
    pairs = [(one["treatment"], one["control"]) for one in results.contrasts(model)]
    named = [arm for pair in pairs for arm in pair]
    names = [a for a in dict.fromkeys([CONTROL, *carry, *named, *arms]) if a in arms]
    length = min(len(curve) for arm in names for curve in arms[arm].values())
    width = max(1, min(50, round(length / 10)))
    count = length - width + 1
    points = np.unique(np.linspace(0, count - 1, min(count, _MOST_POINTS)).round())
    points = points.astype(int)

    def smoothed(seeds: dict[int, NDArray]) -> dict[str, NDArray]:
        return {
            str(seed): smooth(curve[:length], width)[points]
            for seed, curve in sorted(seeds.items())
            if len(curve) >= length
        }

    colours = {arm: ROLES.get(roles.get(arm, ""), MUTED) for arm in names}
    colours[CONTROL] = INK
    series = [
        Series(arm, colours[arm], smoothed(arms[arm]), arm in (CONTROL, *carry))
        for arm in names
    ]
    if copied := smoothed(results.copied.get(model, {})):
        series.append(Series(COPY, MUTED, copied))
    return Curves(
        name=f"loss_{model}",
        x=np.arange(width, length + 1)[points],
        x_name="update",
        y_name=f"loss of {display_name(model)}, running mean over {width} updates",
        series=tuple(series),
        y_log=True,
    )


def relative_losses(results: Results, model: str) -> Curves | None:
    """The same losses relative to the control's, seed by seed.

    Seeds differ in their frames and weights far more than arms do within a seed, so
    curves of the loss itself hide what a paired comparison shows.
    """
    loss = losses(results, model)
    if loss is None:
        return None
    margin = relative(next(iter(results.contrasts(model)), None), "margin")
    return dataclasses.replace(
        loss,
        # Copying is far from the arms, which would share what is left of the axis.
        series=tuple(
            one._replace(shown=one.shown and one.name != COPY) for one in loss.series
        ),
        name=f"finding_{model}",
        y_name=f"loss of {display_name(model)} relative to {CONTROL}, same seeds",
        y_log=False,
        base=CONTROL,
        zone=100 * (margin or 0) or None,
        source=loss.name,
    )


def differences(results: Results, model: str) -> tuple[Spec, str] | None:
    """A row per contrast, in units of the margin, and the numbers as a CSV file.

    None: no contrast has a margin and a difference. The axis is linear near zero and
    logarithmic beyond, so that rounding and a bug fit in one figure.
    """
    chosen = [
        one
        for one in results.contrasts(model)
        if one.get("margin") and one.get("mean_difference") is not None
    ]
    if not chosen:
        return None
    rows = [_difference(one) for one in chosen]
    extents = [max(abs(row[k]) for k in ("low", "mean", "high")) for row in rows]
    smallest = min((extent for extent in extents if extent > 0), default=0.1)
    linear = 10.0 ** min(-1, max(-14, math.floor(math.log10(smallest))))
    reach = 2.5 * max(1.5, *extents)
    tick = 10.0 ** round(math.log10(linear) / 2)
    ticks = [-1, 0, 1] if tick > 0.2 else [-1, -tick, 0, tick, 1]
    scale = {"type": "symlog", "constant": linear, "domain": [-reach, reach]}
    x = charts.channel("mean", "difference / margin", **scale)
    x["axis"] = {"values": ticks, "labelExpr": charts.SHORT}
    two_lines = {"labelExpr": "split(datum.label, '|')", "labelColor": INK}
    y = charts.names("row", axis=two_lines)
    ends = {"x": {**x, "field": "low"}, "x2": {"field": "high"}}
    bar = {**ends, "y": y, "color": charts.literal("colour")}
    dot = {"x": x, "y": y, "color": bar["color"], "shape": charts.literal("shape")}
    dot["tooltip"] = {"field": "told"}
    none = [{"low": -1, "high": 1}]
    chart = {
        "data": {"values": rows},
        "width": "container",
        "height": 38 * len(rows),
        "autosize": "fit-x",
        "layer": [
            charts.layer("rect", ends, data=none, color=charts.FAINT, opacity=0.55),
            charts.layer("rule", bar, size=4, opacity=0.5),
            charts.layer("point", dot, filled=True, size=70, opacity=1),
        ],
    }
    table = [
        [label(one), one["verdict"], *(one.get(name) for name in _CONTRAST)]
        for one in chosen
    ]
    return chart, csv_text(["contrast", "verdict", *_CONTRAST], table)


def _difference(one: Record) -> Spec:
    """A contrast in margins; an end that is not known or infinite is at the mean."""
    same, mean, margin = identical(one), one["mean_difference"], one["margin"]
    low, high = (
        mean if end is None or not math.isfinite(end) else end
        for end in (one["ci_low"], one["ci_high"])
    )
    ends = interval(one["ci_low"], one["ci_high"])
    return {
        "row": f"{label(one)}|{'identical bits' if same else one['verdict']}",
        "colour": ROLES.get(str(one.get("role")), MUTED),
        "shape": "diamond" if same else "circle",
        "told": f"{significant(mean, sign=True)} {ends}",
        "low": low / margin,
        "mean": mean / margin,
        "high": high / margin,
    }


def seeds(verdict: Record) -> Dots:
    """A dot per seed of every contrast whose two arms were run, a panel per model."""
    panels, of_models = [], []
    for model, arms in verdict["losses"].items():
        chosen = contrasts(verdict, model)
        rows = {
            label(one): (str(one.get("role")), _ratios(arms, one))
            for one in chosen
            if {one["treatment"], one["control"]} <= arms.keys()
        }
        title = f"{display_name(model)}, % of the same seed's control"
        margin = 100 * (relative(next(iter(chosen), None), "margin") or 0)
        values = [ratios for _, ratios in rows.values()]
        panels.append(charts.around_zero(title, values, margin))
        of_models.append(rows)
    drawn = []
    for name in dict.fromkeys(name for rows in of_models for name in rows):
        role = next(rows[name][0] for rows in of_models if name in rows)
        found = [rows[name][1] if name in rows else [] for rows in of_models]
        drawn.append(Row(name, ROLES.get(role, MUTED), found))
    alt_text = (
        "A dot per seed: how much the final loss of each arm differs from its "
        "control's. Grey zone: counts as none. Triangles: beyond the ends."
    )
    return Dots(alt_text, panels, drawn)


def _ratios(arms: Record, contrast: Record) -> list[float]:
    """Relative differences in percent by common seed, draws averaged first.

    Seeds with a run that diverged are left out.
    """
    treated, control = arms[contrast["treatment"]], arms[contrast["control"]]
    ratios = [
        np.mean(np.asarray(treated[seed], np.float64))
        / np.mean(np.asarray(control[seed], np.float64))
        for seed in control
        if seed in treated
    ]
    return [100 * (float(ratio) - 1) for ratio in ratios if np.isfinite(ratio)]


class Slide(NamedTuple):
    """Frames of one kind, for the page's slider.

    Attributes:
        name: the arm that predicted them, or what else they are.
        images: [N, H, W, C] in [0, 1].
        errors: mean squared error of each, [N]; None: these are the true frames.
    """

    name: str
    images: NDArray[np.float64]
    errors: NDArray[np.float64] | None

    @property
    def source(self) -> str:
        """All images side by side in one PNG, pixel by pixel, as an address."""
        pixels = np.round(255 * np.clip(self.images, 0, 1)).astype(np.uint8)
        sheet = np.concatenate(list(pixels), axis=1)
        picture = Image.fromarray(sheet if sheet.shape[-1] == 3 else sheet[..., 0])
        buffer = io.BytesIO()
        picture.save(buffer, format="png", optimize=True)
        return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"

    @property
    def ratio(self) -> str:
        """Width to height of a frame, as CSS has it."""
        _, height, width, _ = self.images.shape
        return f"{width}/{height}"


def slides(results: Results, model: str) -> list[Slide]:
    """True frames, the predictions of every arm that kept some, and the frame before.

    The copy of the frame before is what a prediction has to beat.

    Raises:
        RecordError: two arms were shown different frames.
    """
    examples = results.examples.get(model, {})
    if not examples:
        return []
    name, first = next(iter(examples.items()))
    shown = {arm: one.predictions for arm, one in examples.items()}
    for arm, one in examples.items():
        if not np.array_equal(one.frames, first.frames):
            raise RecordError(
                f"{results.directory / 'runs' / model}: examples.npz of {name} and "
                f"{arm} hold different frames; expected the same ones"
            )
    if first.before is not None:
        shown["copy of the frame before"] = first.before
    return [Slide("true frame", first.frames, None)] + [
        Slide(kind, images, np.mean((images - first.frames) ** 2, axis=(1, 2, 3)))
        for kind, images in shown.items()
    ]


def frames_csv(shown: list[Slide]) -> str:
    """The error of every frame."""
    compared = [one for one in shown if one.errors is not None]
    numbers = range(1, len(shown[0].images) + 1)
    errors = [one.errors for one in compared if one.errors is not None]
    head = ["frame", *(one.name for one in compared)]
    return csv_text(head, zip(numbers, *errors, strict=True))
