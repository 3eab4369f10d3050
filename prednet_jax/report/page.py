"""The report: one HTML page that needs nothing beside itself.

No script, no font, no address outside; a content security policy says so to the
browser. Every text from the records is escaped.
"""

import base64
import html
from collections.abc import Callable, Mapping, Sequence

from prednet_jax.report import answers, curves
from prednet_jax.report.answers import display_name
from prednet_jax.report.numbers import probability, significant, typeset
from prednet_jax.report.results import Results, smoothing_width
from prednet_jax.report.stylesheet import STYLE
from prednet_jax.report.tables import arms_list, nested, table, verdict_table

#: PNG bytes by figure and by theme.
Images = Mapping[str, Mapping[str, bytes]]
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(results: Results, images: Images) -> str:
    """The whole page.

    Args:
      results: what the comparison left.
      images: figures `finding_<model>`, `loss_<model>`, `differences_<model>` and
        `frames_<model>`, those there are, each with its "light" and "dark" bytes.

    Returns:
      HTML. A section whose records are missing is left out or says so.
    """
    title = html.escape(answers.question(results))
    sections: Sequence[Callable[[Results, Images], str]] = (
        _finding,
        _numbers,
        _curves,
        _frames,
        _arms,
        _design,
        _excluded,
        _limits,
    )
    body = "\n".join(section(results, images) for section in sections)
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
    captions = {model: curves.subtitle(results, model) for model in results.models}
    figures = [
        _figure(
            images,
            f"finding_{model}",
            f"Loss of {display_name(model)} during training: {captions[model]}",
        )
        for model in results.models
    ]
    if not any(figures):
        return "<p>No run with a loss curve was found beside the verdict.</p>"
    return (
        "<section><h2>What changes the loss, and what does not</h2>"
        f'<div class="columns">{"".join(figures)}</div>'
        '<p class="note">Loss against true targets, running '
        f"mean over {_width(results)} updates. Line: mean over the seeds. Band: lowest "
        "to highest seed of float32 and of stale targets. Where lines coincide their "
        "colours take turns.</p></section>"
    )


def _width(results: Results) -> int:
    lengths = [
        len(curve)
        for arms in results.losses.values()
        for seeds in arms.values()
        for curve in seeds.values()
    ]
    return smoothing_width(min(lengths)) if lengths else 1


def _numbers(results: Results, images: Images) -> str:
    parts = [
        "<section><h2>The numbers</h2><p>Differences are treatment minus control, "
        "paired over seeds; the control is <code>float32</code> unless the row names "
        "another. Below zero is an improvement.</p>"
    ]
    for model in results.models:
        chosen = results.contrasts(model)
        parts.append(f"<h3>{html.escape(display_name(model))}</h3>")
        if not chosen:
            parts.append("<p>No contrast was recorded.</p>")
            continue
        parts.append(f'<div class="wide measures">{verdict_table(chosen)}</div>')
        sentence = answers.details(results, model).get("sentence")
        if sentence:
            parts.append(f"<blockquote>{typeset(str(sentence))}</blockquote>")
    figures = [
        _figure(
            images,
            f"differences_{model}",
            f"Paired differences of {display_name(model)} in margins",
            f"{display_name(model)}. Dot: mean difference; bar: interval; hollow: the "
            "weights are the same bits.",
        )
        for model in results.models
    ]
    if any(figures):
        parts.append(
            "<h3>The same in units of the margin</h3><p>Inside the shaded zone a "
            "difference counts as none. The axis is logarithmic on both sides of zero, "
            f'so that rounding and a bug fit in one picture.</p><div class="columns">'
            f"{''.join(figures)}</div>"
        )
    return "\n".join([*parts, "</section>"])


def _curves(results: Results, images: Images) -> str:
    figures = [
        _figure(
            images,
            f"loss_{model}",
            f"Loss of each arm of {display_name(model)} over that of float32",
            display_name(model),
        )
        for model in results.models
    ]
    if not any(figures):
        return ""
    left_out = [
        f"{display_name(model)}: {', '.join(arms)}"
        for model in results.models
        if (arms := curves.shown_arms(results, model)[curves.MOST_ARMS :])
    ]
    more = f" Not shown: {html.escape('; '.join(left_out))}." if left_out else ""
    return (
        "<section><h2>Training, arm by arm</h2><p>Each arm over the control in grey, "
        f"running mean over {_width(results)} updates, logarithmic scale. Band: lowest "
        "to highest seed. At the right the difference at the end of training."
        f'{more}</p><div class="columns">{"".join(figures)}</div></section>'
    )


def _frames(results: Results, images: Images) -> str:
    figures = [
        _figure(
            images,
            f"frames_{model}",
            f"True frames and predictions of {display_name(model)}",
            f"{display_name(model)}. Mean squared error over "
            f"{_count(results, model)} frames, pixels from 0 to 1.",
        )
        for model in results.models
    ]
    if not any(figures):
        return ""
    return (
        "<section><h2>What the networks see</h2><p>Frames that training never used. "
        "PredNet predicts each frame before it sees it, and a copy of the frame before "
        "is what it has to beat; the autoencoder only reconstructs.</p>"
        f'<div class="columns">{"".join(figures)}</div></section>'
    )


def _count(results: Results, model: str) -> int:
    return max(
        (len(one.frames) for one in results.examples.get(model, {}).values()), default=0
    )


def _arms(results: Results, images: Images) -> str:
    del images
    arms = results.verdict.get("arms") or []
    if not arms:
        return ""
    parts = [
        "<section><h2>Arms and their commands</h2><p>Each arm is a process of its own, "
        "because threads and compiler flags are fixed when a process starts.</p>"
    ]
    for model in dict.fromkeys(arm.get("model") for arm in arms):
        parts.append(f"<h3>{html.escape(display_name(str(model)))}</h3>")
        parts.append(arms_list([arm for arm in arms if arm.get("model") == model]))
    prints = results.section("fingerprints")
    for model, seeds in prints.items():
        rows = [
            [html.escape(str(seed))]
            + [
                f"<code>{html.escape(str(pair.get(name, '-')))}</code>"
                for name in ("initial_params_sha256", "data_order_sha256")
            ]
            for seed, pair in seeds.items()
        ]
        head = ("Seed", "Initial weights, SHA-256", "Data order, SHA-256")
        parts.append(
            f"<details><summary>Fingerprints of {html.escape(display_name(model))}, "
            f'shared by all arms</summary><div class="wide">{table(head, rows)}</div>'
            "</details>"
        )
    return "\n".join([*parts, "</section>"])


def _design(results: Results, images: Images) -> str:
    del images
    parts = ["<section><h2>Design</h2>"]
    design = results.section("design")
    if design.get("command"):
        parts.append(f"<pre>{html.escape(str(design['command']))}</pre>")
    rows = [_design_row(results, model) for model in results.models]
    head = (
        "Model",
        "Seeds",
        "Margin",
        "Origin of the margin",
        "Power planned",
        "Power achieved",
        "Seeds needed",
    )
    parts.append(f'<div class="wide design">{table(head, rows)}</div>')
    methods = {
        str(one[name])
        for one in results.verdict["contrasts"]
        for name in ("p_method", "ci_method", "tost_method")
        if one.get(name)
    }
    if methods:
        listed = "".join(f"<li>{typeset(name)}</li>" for name in sorted(methods))
        parts.append(f"<h3>Methods</h3><ul>{listed}</ul>")
    controls = results.section("controls")
    if controls:
        parts.append("<h3>Positive controls</h3>")
        parts.append(_record(controls, opened=True))
    parts.append("<h3>Record</h3>")
    shown = {name: value for name, value in design.items() if name != "command"}
    parts.append(_record(shown) if shown else "<p>The design was not recorded.</p>")
    return "\n".join([*parts, "</section>"])


def _design_row(results: Results, model: str) -> list[str]:
    margin = results.section("margins").get(model) or {}
    record = answers.details(results, model)
    chosen = results.contrasts(model)
    value = margin.get("value", chosen[0].get("margin") if chosen else None)
    needed = record.get("seeds_needed")
    return [
        html.escape(display_name(model)),
        str(record.get("n", chosen[0].get("n", "-") if chosen else "-")),
        typeset(significant(value)),
        typeset(str(margin.get("origin") or "not recorded")),
        typeset(probability(record.get("planned_power"))),
        typeset(probability(record.get("achieved_power"))),
        "-" if needed is None else str(needed),
    ]


def _record(values: Mapping[str, object], *, opened: bool = False) -> str:
    """Short entries as a list, the others under their names, to be unfolded."""
    long = {k: v for k, v in values.items() if isinstance(v, Mapping)}
    short = {k: v for k, v in values.items() if k not in long}
    state = " open" if opened else ""
    return (nested(short) if short else "") + "".join(
        f"<details{state}><summary>{html.escape(str(name).replace('_', ' '))}</summary>"
        f"{nested(value)}</details>"
        for name, value in long.items()
    )


def _excluded(results: Results, images: Images) -> str:
    del images
    excluded = results.verdict.get("excluded")
    if excluded is None:
        return ""
    listed = "".join(f"<li>{html.escape(str(one))}</li>" for one in excluded)
    body = f"<ul>{listed}</ul>" if excluded else "<p>Nothing was left out.</p>"
    return f"<section><h2>Left out</h2>{body}</section>"


def _limits(results: Results, images: Images) -> str:
    del images
    listed = "".join(f"<li>{html.escape(one)}</li>" for one in answers.limits(results))
    return f"<section><h2>Limits</h2><ul>{listed}</ul></section>"


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
