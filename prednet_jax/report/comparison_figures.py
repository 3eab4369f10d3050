"""The figures of a comparison: losses, differences of the arms, predicted frames."""

import base64
import dataclasses
import io
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from prednet_jax.records import RecordError
from prednet_jax.report import charts
from prednet_jax.report.answers import display_name
from prednet_jax.report.charts import INK, MUTED, ROLES, Dots, Row, Spec
from prednet_jax.report.curves import Curves, Series, csv_text
from prednet_jax.report.numbers import interval, significant
from prednet_jax.report.results import (
    CONTROL,
    Examples,
    Results,
    contrasts,
    identical,
    label,
    relative,
    smooth,
    smoothing_width,
)

COPY = "copy of the last frame"
_MOST_POINTS = 120
# The roles whose arms carry the finding, in the order of drawing.
_CARRY = ("control", "stale", "treatment", "gpu", "gpu_deterministic")
_CONTRAST = ("n", "mean_difference", "ci_low", "ci_high", "margin", "p_holm", "tost_p")


def leading_arms(results: Results, model: str) -> list[str]:
    """The arms that carry the finding."""
    arms = {role: arm for arm, role in reversed(results.roles(model).items())}
    return [arms[role] for role in _CARRY if role in arms]


def losses(results: Results, model: str) -> Curves | None:
    """Running means of the losses of every arm and seed; None without the control."""
    arms = results.losses.get(model, {})
    if CONTROL not in arms:
        return None
    carry = leading_arms(results, model)
    named = [
        arm
        for one in results.contrasts(model)
        for arm in (one["treatment"], one["control"])
    ]
    names = [
        arm for arm in dict.fromkeys([CONTROL, *carry, *named, *arms]) if arm in arms
    ]
    # The window is the shortest curve's.
    length = min(len(curve) for arm in names for curve in arms[arm].values())
    width = smoothing_width(length)
    count = length - width + 1
    points = np.unique(np.linspace(0, count - 1, min(count, _MOST_POINTS)).round())
    points = points.astype(int)

    def smoothed(seeds: dict[int, NDArray]) -> dict[str, NDArray]:
        return {
            str(seed): smooth(curve[:length], width)[points]
            for seed, curve in sorted(seeds.items())
        }

    roles = results.roles(model)
    series = [
        Series(
            name=arm,
            colour=INK if arm == CONTROL else ROLES.get(roles.get(arm, ""), MUTED),
            curves=smoothed(arms[arm]),
            shown=arm == CONTROL or arm in carry,
        )
        for arm in names
    ]
    copied = {
        s: c for s, c in results.copied.get(model, {}).items() if len(c) >= length
    }
    if copied:
        series.append(Series(name=COPY, colour=MUTED, curves=smoothed(copied)))
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
    chosen = results.contrasts(model)
    margin = relative(chosen[0], "margin") if chosen else None
    return dataclasses.replace(
        loss,
        # Copying is far from the arms, which would share what is left of the axis.
        series=tuple(
            dataclasses.replace(one, shown=one.shown and one.name != COPY)
            for one in loss.series
        ),
        name=f"finding_{model}",
        y_name=f"loss of {display_name(model)} relative to {CONTROL}, same seeds",
        y_log=False,
        base=CONTROL,
        zone=100 * (margin or 0) or None,
        source=loss.name,
    )


class Differences(NamedTuple):
    """The contrasts of a model in units of the margin.

    Attributes:
        chart: of them.
        csv: their numbers.
    """

    chart: Spec
    csv: str


def differences(results: Results, model: str) -> Differences | None:
    """A row per contrast with a margin and a difference; None if there is none.

    The axis is linear near zero and logarithmic beyond, so that rounding and a bug fit
    in one figure.
    """
    chosen = [
        one
        for one in results.contrasts(model)
        if one.get("margin") and one.get("mean_difference") is not None
    ]
    if not chosen:
        return None
    rows: list[Spec] = [
        {
            "row": f"{label(one)}|{_finding(one)}",
            "colour": ROLES.get(str(one.get("role")), MUTED),
            "shape": "diamond" if identical(one) else "circle",
            "told": (
                f"{significant(one['mean_difference'], sign=True)} "
                f"{interval(one['ci_low'], one['ci_high'])}"
            ),
            **_in_margins(one),
        }
        for one in chosen
    ]
    extents = [max(abs(row["low"]), abs(row["mean"]), abs(row["high"])) for row in rows]
    smallest = min((extent for extent in extents if extent > 0), default=0.1)
    linear = 10.0 ** min(-1, max(-14, math.floor(math.log10(smallest))))
    reach = 2.5 * max(1.5, *extents)
    tick = 10.0 ** round(math.log10(linear) / 2)
    ticks = [-1, 0, 1] if tick > 0.2 else [-1, -tick, 0, tick, 1]
    x = charts.channel(
        "mean",
        "difference / margin",
        type="symlog",
        constant=linear,
        domain=[-reach, reach],
    )
    x["axis"] = {"values": ticks, "labelExpr": charts.SHORT}
    two_lines = {"labelExpr": "split(datum.label, '|')", "labelColor": INK}
    y = charts.names("row", axis=two_lines)
    ends = {"x": {**x, "field": "low"}, "x2": {"field": "high"}}
    colour = charts.literal("colour")
    bar = {**ends, "y": y, "color": colour}
    dot = {"x": x, "y": y, "color": colour, "shape": charts.literal("shape")}
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
    return Differences(
        chart,
        csv_text(["contrast", "verdict", *_CONTRAST], table),
    )


def _finding(contrast: dict[str, Any]) -> str:
    return "identical bits" if identical(contrast) else contrast["verdict"]


def _in_margins(contrast: dict[str, Any]) -> dict[str, float]:
    """Ends and mean in margins; the mean where an end is not known or infinite."""
    mean = contrast["mean_difference"]
    ends = {"low": contrast["ci_low"], "mean": mean, "high": contrast["ci_high"]}
    return {
        name: (mean if end is None or not math.isfinite(end) else end)
        / contrast["margin"]
        for name, end in ends.items()
    }


def seeds(verdict: Mapping[str, Any]) -> Dots:
    """A dot per seed of every contrast whose two arms were run, a panel per model."""
    relative_losses = {
        model: {
            label(one): (one.get("role"), _ratios(arms, one))
            for one in contrasts(verdict, model)
            if {one["treatment"], one["control"]} <= arms.keys()
        }
        for model, arms in verdict["losses"].items()
    }
    first = {one["model"]: one for one in reversed(verdict["contrasts"])}
    panels = [
        charts.around_zero(
            f"{display_name(model)}, % of the same seed's control",
            [values for _, values in rows.values()],
            100 * (relative(first.get(model), "margin") or 0),
        )
        for model, rows in relative_losses.items()
    ]
    names = dict.fromkeys(name for rows in relative_losses.values() for name in rows)
    rows = []
    for name in names:
        of_models = [rows.get(name, (None, [])) for rows in relative_losses.values()]
        role = next((str(role) for role, _ in of_models if role), "")
        values = [values for _, values in of_models]
        rows.append(Row(name, ROLES.get(role, MUTED), values))
    alt_text = (
        "A dot per seed: how much the final loss of each arm differs from its "
        "control's. Grey zone: counts as none. Triangles: beyond the ends."
    )
    return Dots(alt_text, panels, rows)


def _ratios(arms: Mapping[str, Any], contrast: Mapping[str, Any]) -> list[float]:
    """Relative differences in percent by common seed, draws averaged first.

    Seeds with a run that diverged are left out.
    """
    treated, control = arms[contrast["treatment"]], arms[contrast["control"]]
    means = [
        [
            float(np.mean(np.asarray(arm[seed], np.float64)))
            for arm in (treated, control)
        ]
        for seed in control
        if seed in treated
    ]
    return [100 * (a / b - 1) for a, b in means if math.isfinite(a + b)]


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
    first = _same_frames(results, model)
    found = [Slide("true frame", first.frames, None)]
    found += [
        Slide(arm, one.predictions, _errors(one.predictions, one.frames))
        for arm, one in examples.items()
    ]
    if first.before is not None:
        errors = _errors(first.before, first.frames)
        found.append(Slide("copy of the frame before", first.before, errors))
    return found


def frames_csv(shown: list[Slide]) -> str:
    """The error of every frame."""
    compared = [one for one in shown if one.errors is not None]
    count = len(shown[0].images)
    return csv_text(
        ["frame", *(one.name for one in compared)],
        zip(range(1, count + 1), *(one.errors for one in compared), strict=True),
    )


def _errors(images: NDArray, frames: NDArray) -> NDArray[np.float64]:
    return np.mean((images - frames) ** 2, axis=(1, 2, 3))


def _same_frames(results: Results, model: str) -> Examples:
    """The first arm's examples, whose frames all arms share."""
    (name, first), *others = results.examples[model].items()
    for arm, one in others:
        if not np.array_equal(one.frames, first.frames):
            raise RecordError(
                f"{results.directory / 'runs' / model}: examples.npz of {name} and "
                f"{arm} hold different frames; expected the same ones"
            )
    return first
