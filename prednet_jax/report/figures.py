"""Figures: losses by arm and seed, predicted frames, and the losses of one run.

The numbers of lines on the page are one CSV table, which the page holds as the file
that a reader downloads and hands to Vega; the figure itself computes medians, quartiles
and relative values.
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prednet_jax import records
from prednet_jax.files import FileError
from prednet_jax.records.verdict import CONTROL, Arms, Contrast, Record, Verdict
from prednet_jax.report import charts
from prednet_jax.report.charts import FAINT, INK, MUTED, ROLES, Dots, Row, Spec
from prednet_jax.report.numbers import significant
from prednet_jax.report.results import Results
from prednet_jax.report.verdict_text import display_name

COPY = "copy of the last frame"
# Points of a line of the page and of the picture of a run, means over its updates.
_MOST_POINTS, _PICTURE_POINTS = 120, 200
# The roles whose arms carry the finding, in the order of drawing.
_CARRY = ("control", "stale", "treatment", "gpu", "gpu_deterministic")


class Series(NamedTuple):
    """A line by seed that the reader can switch; `shown` is its initial state."""

    name: str
    colour: str
    curves: dict[str, NDArray[np.float64]]
    shown: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curves:
    """Lines over updates `x`, [points], in drawing order; `y_name` is the quantity.

    They are on a logarithmic axis, or `relative` to the first, in percent, seed by
    seed; half the `zone` around zero is then negligible. `source` names the figure
    whose table these lines are computed from, if they have no table of their own.
    """

    name: str
    y_name: str
    x: NDArray
    series: tuple[Series, ...]
    relative: bool = False
    zone: float | None = None
    source: str | None = None

    def columns(self) -> list[tuple[int, str]]:
        """Returns the line's number and the seed of each column after the axis."""
        return [(k, s) for k, line in enumerate(self.series) for s in line.curves]

    def csv(self) -> str:
        """Returns the table: the axis, then a column per line and seed."""
        curves = [self.series[k].curves[seed] for k, seed in self.columns()]
        names = [f"{self.series[k].name} {seed}".strip() for k, seed in self.columns()]
        return csv_text(["update", *names], zip(self.x, *curves, strict=True))

    def chart(self) -> Spec:
        """Returns the chart of the seeds' medians, with the middle half around them.

        Whoever embeds the figure gives it the table "curves" with rows of `x`, `k`
        (number of the line), `seed` and `value`.
        """
        names = json.dumps([line.name for line in self.series])
        colours: Spec = {"domain": list(range(len(self.series)))}
        colours["range"] = [line.colour for line in self.series]
        legend = {"labelExpr": f"{names}[datum.value]", "symbolOpacity": 1}
        colour = {"field": "k", "type": "ordinal", "scale": colours, "legend": legend}
        x = charts.channel("x", "update", nice=False)
        x["axis"] = {"grid": False, "labelFlush": True, "labelOverlap": True}
        scale = {"nice": False} if self.relative else {"type": "log", "nice": False}
        y = charts.channel("middle", **scale)
        unit = " + ' %'" if self.relative else ""
        y["axis"] = {"labelExpr": charts.PLAIN + unit, "tickCount": 5}
        band = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
        # The control is a broad pale line below the others.
        style = {
            "strokeWidth": _where("datum.k == 0", 5, 2),
            "strokeOpacity": _where("datum.k == 0", 0.3, 1),
            "strokeDash": _where("datum.k < 2", [1, 0], [7, 4]),
        }
        tooltip = [{"field": name} for name in ("line", "x", "middle", "low", "high")]
        both = {"x": x, "y": y, "color": colour}
        layers = [
            charts.layer("area", {"x": x, **band, "color": colour}, opacity=0.13),
            charts.layer("line", {**both, **style}),
            # Invisible; the pointer finds them.
            charts.layer("point", {**both, "tooltip": tooltip}, opacity=0, size=90),
        ]
        if self.zone:
            ends = [{"low": -self.zone, "high": self.zone}]
            shade = charts.layer("rect", band, data=ends, color=FAINT, opacity=0.55)
            layers.insert(0, shade)
        line_name = {"calculate": f"{names}[datum.k]", "as": "line"}
        return {
            "data": {"name": "curves"},
            "width": "container",
            "height": 250,
            "autosize": "fit-x",
            "params": self._inputs(),
            "transform": [*self._summary(), line_name],
            "layer": layers,
        }

    def _inputs(self) -> list[Spec]:
        """Returns the choice of a seed and a switch per line."""
        seeds = list(dict.fromkeys(seed for _, seed in self.columns()))
        seed: Spec = {"name": "seed", "value": ""}
        if len(seeds) > 1:
            labels = [f"all {len(seeds)}: median and middle half", *seeds]
            options = {"input": "select", "options": ["", *seeds], "labels": labels}
            seed["bind"] = {**options, "name": "Seed"}
        return [seed] + [
            {"name": f"line_{k}", "value": line.shown}
            | {"bind": {"input": "checkbox", "name": line.name}}
            for k, line in enumerate(self.series)
        ]

    def _summary(self) -> list[Spec]:
        """Turns the table's values into quartiles over the chosen seeds."""

        def joined(op: str, name: str, groups: Sequence[str], **field: str) -> Spec:
            aggregate = {"op": op, "as": name, **field}
            return {"joinaggregate": [aggregate], "groupby": list(groups)}

        # A seed that diverged has fewer finite values than the others and is left out.
        steps = [
            joined("count", "points", ("k", "seed")),
            joined("max", "most", ("k",), field="points"),
            {"filter": "datum.points == datum.most"},
        ]
        if self.relative:
            steps += [
                {"calculate": "datum.k == 0 ? datum.value : null", "as": "own"},
                joined("max", "base", ("x", "seed"), field="own"),
                {"filter": "isValid(datum.base)"},
                {"calculate": "100 * (datum.value / datum.base - 1)", "as": "value"},
            ]
        shown = ", ".join(f"line_{k}" for k in range(len(self.series)))
        quartiles = [
            {"op": op, "field": "value", "as": name}
            for op, name in (("q1", "low"), ("median", "middle"), ("q3", "high"))
        ]
        return [
            *steps,
            {"filter": f"[{shown}][datum.k] && (seed == '' || datum.seed == seed)"},
            {"aggregate": quartiles, "groupby": ["x", "k"]},
        ]


def _where(test: str, value: object, other: object) -> Spec:
    return {"condition": {"test": test, "value": value}, "value": other}


def csv_text(head: Sequence[str], rows: Iterable[Iterable[float | str]]) -> str:
    """Returns a CSV file; numbers that are not finite are empty cells."""
    import pandas as pd

    table = pd.DataFrame(rows, columns=head).replace([np.inf, -np.inf], np.nan)
    return table.to_csv(index=False, float_format="%.9g", lineterminator="\n")


def losses(results: Results, model: str) -> Curves | None:
    """Returns running means of the losses by arm and seed; None without the control.

    A mean is over a tenth of a run, at most 50 updates; a run that ended before the
    others, since it diverged, is left out.
    """
    arms = results.losses.get(model, {})
    if CONTROL not in arms:
        return None
    roles = {arm.name: arm.role for arm in results.arms(model)}
    first = {role: arm for arm, role in reversed(roles.items())}
    carry = [first[role] for role in _CARRY if role in first]
    contrasts = results.verdict.of_model(model)
    named = [str(arm) for pair in contrasts for arm in (pair.treatment, pair.control)]
    names = [a for a in dict.fromkeys([CONTROL, *carry, *named, *arms]) if a in arms]
    length = max(len(curve) for arm in names for curve in arms[arm].values())
    width = max(1, min(50, round(length / 10)))
    count, mean = length - width + 1, np.full(width, 1 / width)
    points = np.unique(np.linspace(0, count - 1, min(count, _MOST_POINTS)).round())
    points = points.astype(int)

    def smoothed(seeds: dict[int, NDArray]) -> dict[str, NDArray]:
        return {
            str(seed): np.convolve(curve[:length], mean, mode="valid")[points]
            for seed, curve in sorted(seeds.items())
            if len(curve) >= length
        }

    if not smoothed(arms[CONTROL]):
        return None
    colours = {arm: ROLES.get(roles.get(arm, ""), MUTED) for arm in names}
    colours[CONTROL] = INK
    series = [
        Series(arm, colours[arm], curves, arm in (CONTROL, *carry))
        for arm in names
        if (curves := smoothed(arms[arm]))
    ]
    if copied := smoothed(results.copied.get(model, {})):
        series.append(Series(COPY, MUTED, copied))
    return Curves(
        name=f"loss_{model}",
        y_name=f"loss of {display_name(model)}, running mean over {width} updates",
        x=np.arange(width, length + 1)[points],
        series=tuple(series),
    )


def relative_losses(results: Results, model: str) -> Curves | None:
    """Returns the same losses relative to the control's, seed by seed."""
    loss = losses(results, model)
    if loss is None:
        return None
    margin = _margin(results.verdict.of_model(model))
    return dataclasses.replace(
        loss,
        # Copying is far from the arms, which would share the remaining part of the
        # axis.
        series=tuple(
            line._replace(shown=line.shown and line.name != COPY)
            for line in loss.series
        ),
        name=f"finding_{model}",
        y_name=f"loss of {display_name(model)} relative to {CONTROL}, same seeds",
        relative=True,
        zone=margin or None,
        source=loss.name,
    )


def _margin(contrasts: Sequence[Contrast]) -> float:
    """Returns the margin in percent of the control's mean loss, or 0."""
    return 100 * (contrasts[0].relative("margin") or 0) if contrasts else 0.0


def seeds(verdict: Verdict) -> Dots:
    """Returns a dot per seed of each contrast, a panel per model."""
    panels, of_models = [], []
    colours: dict[str, str] = {}
    for model, arms in verdict.losses.items():
        chosen, rows = verdict.of_model(model), {}
        for contrast in chosen:
            if {contrast.treatment, contrast.control} <= arms.keys():
                rows[contrast.label] = _ratios(arms, contrast)
                colours[contrast.label] = ROLES.get(str(contrast.role), MUTED)
        title = f"{display_name(model)}, % of the same seed's control"
        panels.append(charts.around_zero(title, list(rows.values()), _margin(chosen)))
        of_models.append(rows)
    drawn = [
        Row(name, colour, [rows.get(name, []) for rows in of_models])
        for name, colour in colours.items()
    ]
    alt_text = (
        "A dot per seed: how much the final loss of each arm differs from its "
        "control's. Grey zone: counts as none. Triangles: beyond the ends."
    )
    return Dots(alt_text, panels, drawn)


def _ratios(arms: Arms, contrast: Contrast) -> list[float]:
    """Returns differences in percent of the control by common seed, averaging draws."""
    treated, control = arms[str(contrast.treatment)], arms[str(contrast.control)]
    ratios = [
        np.mean(np.asarray(treated[seed], np.float64))
        / np.mean(np.asarray(control[seed], np.float64))
        for seed in control
        if seed in treated
    ]
    return [100 * (float(ratio) - 1) for ratio in ratios if np.isfinite(ratio)]


def predicted_frames(results: Results, model: str) -> dict[str, NDArray]:
    """Returns true frames `[N, H, W, C]`, the predictions of the arms, and a copy.

    They are given by their captions, with the median over the frames of their mean
    squared error, since a cut between scenes, which cannot be predicted, would dominate
    a mean. The result is empty if no arm kept frames. Arms that were shown different
    frames are a FileError.
    """
    examples = results.examples.get(model, {})
    if not examples:
        return {}
    first = next(iter(examples.values()))
    predicted = {arm: example.predictions for arm, example in examples.items()}
    for arm, example in examples.items():
        if not np.array_equal(example.frames, first.frames):
            raise FileError(
                f"{results.directory / 'runs' / model}: examples.npz of {arm} holds "
                "different frames; expected the same ones in every arm"
            )
    if first.before is not None:
        predicted["copy of the frame before"] = first.before
    shown = {"true frame": first.frames}
    for name, images in predicted.items():
        errors = np.mean((images - first.frames) ** 2, axis=(1, 2, 3))
        shown[f"{name}, MSE {significant(float(np.median(errors)))}"] = images
    return shown


def loss_picture(folder: str | os.PathLike) -> bytes:
    """Returns the losses of one run and of copying its frames, as PNG.

    The run's directory is `folder`. Losses of frozen weights are shown too, if scored.
    """
    metrics = records.read_run(folder).metrics
    width = max(1, -(-len(metrics["loss"]) // _PICTURE_POINTS))
    rows: list[tuple[str, int, float]] = []
    for name, field in (
        ("while training", "loss"),
        ("copying the last frame", "copy_last_frame_loss"),
    ):
        for begin in range(0, len(metrics[field]), width):
            part = metrics[field][begin : begin + width]
            rows.append((name, begin + len(part), float(np.mean(part))))
    for row in records.read_validation(folder):
        rows.append(("frozen, held out", row["update"], row["loss"]))
        copied = row["copy_last_frame_loss"]
        rows.append(("copying, held out", row["update"], copied))
    values: list[Spec] = [
        {"line": name, "update": update, "loss": loss}
        for name, update, loss in rows
        if np.isfinite(loss)
    ]
    positive = [value for value in values if value["loss"] > 0]
    update, loss = charts.channel("update", "update"), charts.channel("loss", "loss")
    if positive:
        loss["scale"] = {"type": "log"}
    encoding = {"x": update, "y": loss, "color": charts.names("line")}
    point = len(rows) < _PICTURE_POINTS
    chart = charts.layer("line", encoding, data=positive or values, point=point)
    return charts.png(chart | {"width": 480, "height": 260})


def horizons_picture(scores: Mapping[str, Record]) -> bytes:
    """Draws the MSE of a network and of copying by horizon, as PNG.

    `scores` is the entry `horizons` of `training.evaluation.evaluate`.
    """
    values = [
        {"line": line, "horizon": int(horizon), "mse": score[field]}
        for line, field in (("network", "mse"), ("copying frame t", "copy_mse"))
        for horizon, score in scores.items()
    ]
    encoding = {
        "x": charts.channel("horizon", "horizon h: frame t + h, predicted from frame t")
        | {"axis": {"values": [int(h) for h in scores], "format": "d"}},
        "y": charts.channel("mse", "mean squared error", zero=True),
        "color": charts.names("line"),
    }
    mark = charts.layer("line", encoding, data=values, point=True)
    return charts.png(mark | {"width": 360, "height": 240})
