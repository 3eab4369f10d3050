"""The sections of the page that hold figures."""

import html
from collections.abc import Callable, Mapping
from typing import Any

from prednet_jax.report import (
    answers,
    differences,
    figures,
    landscape,
    lines,
    slides,
    speed,
)
from prednet_jax.report.answers import display_name, gap
from prednet_jax.report.chart import csv_text, download
from prednet_jax.report.curves import MOST_ARMS, shown_arms
from prednet_jax.report.figure import Images, figure, source
from prednet_jax.report.finding import subtitle
from prednet_jax.report.numbers import typeset
from prednet_jax.report.records_beside import origin
from prednet_jax.report.results import (
    CONTROL,
    Results,
    label,
    smoothing_width,
)
from prednet_jax.report.tables import family, verdict_table


def _columns(results: Results, draw: Callable[[str], str]) -> str:
    """A figure per model side by side, or nothing where there is none."""
    drawn = "".join(draw(model) for model in results.models)
    return f'<div class="columns">{drawn}</div>' if drawn else ""


def _command(results: Results) -> str | None:
    """The command of the comparison, where it was recorded."""
    found = results.section("design").get("command")
    return None if found is None else str(found)


def finding(results: Results, images: Images) -> str:
    """The losses of the arms that carry the finding, relative to the control's."""

    def draw(model: str) -> str:
        # Its numbers lie in the figure of all losses, which a control alone has not.
        there = f"loss_{model}" in images
        return figure(
            images,
            f"finding_{model}",
            alt=f"{display_name(model)}, {subtitle(results, model)}.",
            caption=f"{display_name(model)}: {subtitle(results, model)}.",
            chart=lines.finding(results, model) if there else None,
            data=_same_numbers(model) if there else "",
            made_by=_command(results),
        )

    drawn = _columns(results, draw)
    if not drawn:
        return "<p>No run with a loss curve was found beside the verdict.</p>"
    return (
        f"<section><h2>What changes the loss, and what does not</h2>{drawn}"
        '<p class="note">Loss against true targets, '
        f"{html.escape(_smoothing(results))}, divided by that of float32 with the same "
        "seeds. Line: median seed. Band: middle half of the seeds. Grey zone: "
        "the margin. Where lines coincide their colours take turns.</p></section>"
    )


def _same_numbers(model: str) -> str:
    name = lines.file_of(model)
    return f'<a href="#{name}">the numbers of {name}.csv, below</a>'


def _smoothing(results: Results) -> str:
    """The running means of the figures, in words."""
    widths = {}
    for model in results.models:
        curves_of = results.losses.get(model, {}).get(CONTROL, {})
        if curves_of:
            widths[model] = smoothing_width(min(map(len, curves_of.values())))
    if len(set(widths.values())) > 1:
        parts = [f"{width} ({display_name(model)})" for model, width in widths.items()]
        return f"running mean over {' and '.join(parts)} updates"
    width = next(iter(widths.values()), 1)
    return "every update" if width == 1 else f"running mean over {width} updates"


def numbers(results: Results, images: Images) -> str:
    """The table of each model's contrasts, and the same in margins."""
    del images  # Its figures are boxes and text.
    parts = [
        "<section><h2>The numbers</h2><p>Differences are treatment minus control, "
        "paired over seeds; the control is <code>float32</code> unless the row names "
        "another, n the pairs of seeds. Below zero is an improvement.</p>"
    ]
    for model in results.models:
        chosen = results.contrasts(model)
        parts.append(f"<h3>{html.escape(display_name(model))}</h3>")
        if not chosen:
            parts.append("<p>No contrast was recorded.</p>")
            continue
        parts.append(f'<div class="wide measures">{verdict_table(chosen)}</div>')
        if note := family(chosen):
            parts.append(f'<p class="note">{html.escape(note)}.</p>')
        sentence = answers.details(results, model).get("sentence")
        if sentence:
            parts.append(f"<blockquote>{typeset(str(sentence))}</blockquote>")
    drawn = _columns(results, lambda model: _differences(results, model))
    if drawn:
        parts.append(
            "<h3>The same in units of the margin</h3><p>Inside the shaded zone a "
            "difference counts as none. The axis is logarithmic on both sides of zero, "
            f"so that rounding and a bug fit in one picture.</p>{drawn}"
        )
    return "\n".join([*parts, "</section>"])


_CONTRAST = ("n", "mean_difference", "ci_low", "ci_high", "margin", "p_holm", "tost_p")


def _differences(results: Results, model: str) -> str:
    drawn = differences.figure(results, model)
    if not drawn:
        return ""
    chosen = results.contrasts(model)
    # A verdict may say nothing of a field; then its cell is empty.
    rows = [
        [label(one), one["verdict"], *(one.get(name) for name in _CONTRAST)]
        for one in chosen
    ]
    text = csv_text(["contrast", "verdict", *_CONTRAST], rows)
    data = download(f"differences_{model}", text, "numbers of this figure (CSV)")
    return (
        f"<figure>{drawn}<figcaption>{html.escape(display_name(model))}. Dot: mean "
        "difference; bar: interval; hollow: the weights are the same bits; shaded: "
        f"counts as none.</figcaption>{source(None, data, _command(results))}</figure>"
    )


def curves(results: Results, images: Images) -> str:
    """The losses of all arms."""

    def draw(model: str) -> str:
        said = "; ".join(
            f"{label(one)} {gap(one) or one['verdict']}"
            for one in results.contrasts(model)
            if one["control"] == CONTROL
        )
        return figure(
            images,
            f"loss_{model}",
            alt=f"Loss of {display_name(model)} over the updates. At the end, against "
            f"{CONTROL}: {said or 'not recorded'}.",
            caption=f"{display_name(model)}. At the end, against {CONTROL}: "
            f"{said or 'not recorded'}.",
            chart=lines.losses(results, model),
            made_by=_command(results),
        )

    drawn = _columns(results, draw)
    if not drawn:
        return ""
    left_out = [
        f"{display_name(model)}: {', '.join(arms)}"
        for model in results.models
        if (arms := shown_arms(results, model)[MOST_ARMS:])
    ]
    more = ""
    if left_out:
        more = f" Without a panel of its own: {html.escape('; '.join(left_out))}."
    return (
        "<section><h2>Training, arm by arm</h2><p>Every arm; the broad line is the "
        f"control; {html.escape(_smoothing(results))}, logarithmic scale. Line: "
        "median seed. Band: middle half of the seeds. Dotted: the loss of copying the "
        f"last frame.{more}</p>{drawn}</section>"
    )


def frames(results: Results, images: Images) -> str:
    """True and predicted frames, with a slider over them."""

    def draw(model: str) -> str:
        rows = figures.frame_rows(results, model)
        said = "; ".join(title for title, _ in rows[1:])
        count = len(rows[0][1]) if rows else 0
        return figure(
            images,
            f"frames_{model}",
            alt=f"True frames and predictions of {display_name(model)}: {said}.",
            caption=f"{display_name(model)}. Mean squared error over {count} frames, "
            f"pixels from 0 to 1: {said}.",
            viewer=slides.viewer(results, model),
            data=slides.table(results, model),
            made_by=_command(results),
        )

    drawn = _columns(results, draw)
    if not drawn:
        return ""
    return (
        "<section><h2>What the networks see</h2><p>The last frames of the source; "
        "of an endless one, frames far beyond training. "
        "PredNet predicts each frame before it sees it, and a copy of the frame before "
        "is what it has to beat; the autoencoder only reconstructs.</p>"
        f"{drawn}</section>"
    )


def saddles(found: Mapping[str, Mapping[str, Any]], images: Images) -> str:
    """Escapes from known saddles and curvature along training, where recorded."""
    drawn = "".join(
        figure(
            images, chart.name, alt=words, caption=words, chart=chart, made_by=command
        )
        for chart, words, command in landscape.charts(found)
    )
    if not drawn:
        return ""
    return (
        "<section><h2>Saddles and curvature</h2><p>Records of their own, not of this "
        "comparison. Escapes: functions whose saddles are known, from starts that "
        "exact arithmetic would never leave. Curvature: extreme eigenvalues of the "
        "Hessian along a small training, in the coordinates that Adam steps in.</p>"
        f'<div class="columns">{drawn}</div><details><summary>What these records say'
        f"</summary>{landscape.findings(found)}</details></section>"
    )


def speeds(measured: Mapping[str, Any], images: Images) -> str:
    """What `benchmark.py --suite=backends` measured."""
    height, width, *channels = measured["shape"]
    device = measured["device"]
    drawn = "".join(
        figure(
            images,
            chart.name,
            alt=speed.best(measured, chart.name),
            caption=speed.best(measured, chart.name),
            chart=chart,
            made_by=measured.get("command"),
        )
        for chart in speed.charts(measured)
    )
    return (
        "<section><h2>Speed</h2><p>PredNet at "
        f"{width} x {height}, channels {', '.join(map(str, channels))}, training "
        f"windows of {measured['window']} frames, {html.escape(measured['precision'])} "
        f"on {html.escape(str(device['platform']))} "
        f"({html.escape(str(device['processor']))}). "
        "Inference sees one frame a call.</p>"
        f'<div class="columns">{drawn}</div>'
        + speed.html_table(measured)
        + origin(measured)
        + "</section>"
    )
