"""The report: one HTML page that needs nothing beside itself.

No script, no font, no address outside; a content security policy says so to the
browser. Every text from the records is escaped.
"""

import base64
import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prednet_jax.report import answers, curves, method, speed
from prednet_jax.report.answers import display_name
from prednet_jax.report.finding import subtitle
from prednet_jax.report.numbers import significant, typeset
from prednet_jax.report.results import CONTROL, Results, smoothing_width
from prednet_jax.report.stylesheet import STYLE
from prednet_jax.report.tables import family, verdict_table

#: PNG bytes by figure and by theme.
Images = Mapping[str, Mapping[str, bytes]]
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(
    results: Results, images: Images, measured: Mapping[str, Any] | None = None
) -> str:
    """The whole page.

    Args:
      results: what the comparison left.
      images: figures `finding_<model>`, `loss_<model>`, `differences_<model>` and
        `frames_<model>`, those there are, each with its "light" and "dark" bytes;
        `backends` where something was measured.
      measured: what `benchmark.py --suite=backends` wrote, or None.

    Returns:
      HTML. A section whose records are missing is left out or says so.
    """
    title = html.escape(answers.question(results))
    sections: Sequence[Callable[[Results, Images], str]] = (
        _finding,
        _numbers,
        _curves,
        _frames,
    )
    parts = [section(results, images) for section in sections]
    if measured is not None:
        parts.append(_speed(measured, images))
    for section in (
        method.variability,
        method.arms,
        method.design,
        method.excluded,
        method.limits,
    ):
        parts.append(section(results))
    body = "\n".join(parts)
    cards = "".join(answers.card(results, model) for model in results.models)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<header>
<p class="kicker">prednet_jax: compare</p>
<h1>{title}</h1>
<p class="standfirst">Every arm starts from the same weights and sees the same frames;
each changes one thing.</p>
</header>
<div class="columns">{cards}</div>
{body}
{_footer(results)}
</main>
</body>
</html>
"""


def _finding(results: Results, images: Images) -> str:
    figures = _figures(
        results,
        images,
        "finding",
        lambda m: f"Loss of {display_name(m)} during training: {subtitle(results, m)}",
    )
    if not figures:
        return "<p>No run with a loss curve was found beside the verdict.</p>"
    return (
        f"<section><h2>What changes the loss, and what does not</h2>{figures}"
        '<p class="note">Loss against true targets, '
        f"{html.escape(_smoothing(results))}, divided by that of float32 with the same "
        "seeds. Line: median seed. Band: middle half of the seeds. Grey zone: "
        "the margin. Where lines coincide their colours take turns.</p></section>"
    )


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


def _numbers(results: Results, images: Images) -> str:
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
    figures = _figures(
        results,
        images,
        "differences",
        lambda m: f"Paired differences of {display_name(m)} in margins",
        lambda m: (
            f"{display_name(m)}. Dot: mean difference; bar: interval; hollow: "
            "the weights are the same bits."
        ),
    )
    if figures:
        parts.append(
            "<h3>The same in units of the margin</h3><p>Inside the shaded zone a "
            "difference counts as none. The axis is logarithmic on both sides of zero, "
            f"so that rounding and a bug fit in one picture.</p>{figures}"
        )
    return "\n".join([*parts, "</section>"])


def _curves(results: Results, images: Images) -> str:
    figures = _figures(
        results,
        images,
        "loss",
        lambda m: f"Loss of each arm of {display_name(m)} over that of float32",
        display_name,
    )
    if not figures:
        return ""
    left_out = [
        f"{display_name(model)}: {', '.join(arms)}"
        for model in results.models
        if (arms := curves.shown_arms(results, model)[curves.MOST_ARMS :])
    ]
    more = f" Not shown: {html.escape('; '.join(left_out))}." if left_out else ""
    return (
        "<section><h2>Training, arm by arm</h2><p>Each arm over the control in grey, "
        f"{html.escape(_smoothing(results))}, logarithmic scale. Line: median "
        "seed. Band: middle half of the seeds. Dotted: the loss of copying the last "
        "frame. At the right the difference at the end of training."
        f"{more}</p>{figures}</section>"
    )


def _frames(results: Results, images: Images) -> str:
    figures = _figures(
        results,
        images,
        "frames",
        lambda m: f"True frames and predictions of {display_name(m)}",
        lambda m: (
            f"{display_name(m)}. Mean squared error over {_count(results, m)} "
            "frames, pixels from 0 to 1."
        ),
    )
    if not figures:
        return ""
    return (
        "<section><h2>What the networks see</h2><p>The last frames of the source; "
        "of an endless one, frames far beyond training. "
        "PredNet predicts each frame before it sees it, and a copy of the frame before "
        "is what it has to beat; the autoencoder only reconstructs.</p>"
        f"{figures}</section>"
    )


def _speed(measured: Mapping[str, Any], images: Images) -> str:
    height, width, *channels = measured["shape"]
    device = measured["device"]
    return (
        "<section><h2>Speed</h2><p>PredNet at "
        f"{width} x {height}, channels {', '.join(map(str, channels))}, training "
        f"windows of {measured['window']} frames, {html.escape(measured['precision'])} "
        f"on {html.escape(str(device['platform']))} "
        f"({html.escape(str(device['processor']))}). "
        "Inference sees one frame a call.</p>"
        + _figure(
            images,
            "backends",
            "Frames a second against batch size, by number of threads",
            "Filled: frames kept on the device; hollow, dotted: fed from the host each "
            "call.",
        )
        + speed.html_table(measured)
        + "</section>"
    )


def _count(results: Results, model: str) -> int:
    return max(
        (len(one.frames) for one in results.examples.get(model, {}).values()), default=0
    )


def _figures(
    results: Results,
    images: Images,
    kind: str,
    alt: Callable[[str], str],
    caption: Callable[[str], str] = lambda model: "",
) -> str:
    """The figures of one kind side by side, or nothing where there is none."""
    drawn = "".join(
        _figure(images, f"{kind}_{model}", alt(model), caption(model))
        for model in results.models
    )
    return f'<div class="columns">{drawn}</div>' if drawn else ""


def _figure(images: Images, name: str, alt: str, caption: str = "") -> str:
    """A figure in the reader's theme, or nothing where there is none."""
    if name not in images:
        return ""
    light, dark = (
        base64.b64encode(images[name][theme]).decode() for theme in ("light", "dark")
    )
    below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return (
        '<figure><picture><source media="(prefers-color-scheme: dark)" '
        f'srcset="data:image/png;base64,{dark}">'
        f'<img src="data:image/png;base64,{light}" alt="{html.escape(alt)}"></picture>'
        f"{below}</figure>"
    )


def _footer(results: Results) -> str:
    seconds = results.verdict.get("seconds")
    took = ""
    if isinstance(seconds, (int, float)):
        took = f" The runs took {significant(seconds / 60, 2)} minutes."
    return (
        "<footer><p>Everything on this page is read from <code>verdict.json</code> "
        "and the runs beside it; <code>.venv/bin/python experiments/report.py</code> "
        f"writes it anew.{took}</p></footer>"
    )
