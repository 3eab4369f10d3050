"""The charts of a comparison: losses of every arm and seed, to be switched and read."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from prednet_jax.report import theme as look
from prednet_jax.report.answers import display_name
from prednet_jax.report.chart import Chart, Series, file_name, thin
from prednet_jax.report.curves import shown_arms
from prednet_jax.report.finding import drawn_arms, margin_of
from prednet_jax.report.results import (
    CONTROL,
    Results,
    smooth,
    smoothing_width,
)

COPY = "copy of the last frame"


def file_of(model: str) -> str:
    """Name of a model's CSV file of losses, and of its link in the page."""
    return file_name(f"loss_{model}")


def losses(results: Results, model: str) -> Chart | None:
    """Running means of the losses, arm by arm; None without the control."""
    arms = results.losses.get(model, {})
    if CONTROL not in arms:
        return None
    # The arms that carry the finding lead and are on at first.
    carry = drawn_arms(results, model).values()
    order = dict.fromkeys([CONTROL, *carry, *shown_arms(results, model)])
    names = [name for name in order if name in arms]
    # The figures' running means: the window is the shortest curve's.
    length = min(len(curve) for name in names for curve in arms[name].values())
    width = smoothing_width(length)
    points = thin(length - width + 1)

    def curves(seeds: dict[int, NDArray]) -> dict[str, NDArray]:
        return {
            str(seed): smooth(curve[:length], width)[points]
            for seed, curve in sorted(seeds.items())
        }

    roles = results.roles(model)
    series = [
        Series(
            name=name,
            colour=look.key("control" if name == CONTROL else roles.get(name)),
            curves=curves(arms[name]),
            shown=name == CONTROL or name in carry,
        )
        for name in names
    ]
    copied = {
        s: c for s, c in results.copied.get(model, {}).items() if len(c) >= length
    }
    if copied:
        series.append(Series(name=COPY, colour="muted", curves=curves(copied)))
    return Chart(
        name=file_of(model),
        x=np.arange(width, length + 1)[points],
        x_name="update",
        y_name=f"loss of {display_name(model)}, running mean over {width} updates",
        series=tuple(series),
        y_log=True,
    )


def finding(results: Results, model: str) -> Chart | None:
    """The same losses relative to the control's, seed by seed."""
    loss = losses(results, model)
    if loss is None:
        return None
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
        zone=100 * (margin_of(results, model) or 0) or None,
        source=loss.name,
    )
