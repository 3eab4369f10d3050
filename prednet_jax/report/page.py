"""The report: one HTML page that needs nothing beside itself.

Vega, Vega-Lite and the page's own script stand in it; a content security policy lets no
other script run and lets nothing be fetched. The template escapes every text from the
records.
"""

import base64
import functools
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any
from urllib.parse import quote

import jinja2
import vl_convert
from markupsafe import Markup

from prednet_jax.report import beside, charts, comparison_figures, numbers, tables
from prednet_jax.report.curves import Curves, chart, csv_text
from prednet_jax.report.results import (
    CONTROL,
    Record,
    Results,
    identical,
    label,
    relative,
)

# Colours that the page's style sheet has in a light and a dark shade.
_SHADES = {charts.INK: "ink", charts.MUTED: "muted", charts.FAINT: "line"} | {
    colour: name for name, colour in charts.ROLES.items() if name != "control"
}


def _text(name: str) -> str:
    place = resources.files(__package__) / "template" / name
    return place.read_text(encoding="utf-8")


@functools.cache
def script() -> str:
    """The text of the page's one script: its own, with Vega and Vega-Lite."""
    return vl_convert.javascript_bundle(_text("page.js"))


def policy() -> str:
    """Nothing from outside, no form, and no script but `script()`."""
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    return (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def page(results: Results, others: Mapping[str, Record]) -> str:
    """The whole page as HTML; a section whose records are missing is left out.

    Args:
        results: what the comparison left.
        others: the result of `beside.load`.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("prednet_jax.report", "template"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "typeset": lambda text: Markup(numbers.typeset(str(text))),
        "address": lambda text: "data:text/csv;charset=utf-8," + quote(text, safe=","),
        "significant": numbers.significant,
        "probability": numbers.probability,
        "percent": numbers.percent,
        "interval": numbers.interval,
    }
    landscape = (beside.SADDLES, beside.CURVATURE)
    command = results.section("design").get("command")
    return environment.get_template("report.html").render(
        results=results,
        verdict=results.verdict,
        sentences=tables.claim_sentences(results.verdict),
        dots=_dots(results, command),
        models=[_model(results, model, command) for model in results.models],
        command=command,
        saddles=[
            _of_curves(*one) for x in landscape for one in beside.charts(others, x)
        ],
        records=[others[name] for name in landscape if name in others],
        measured=others.get(beside.SPEED),
        speeds=[_of_curves(*one) for one in beside.charts(others, beside.SPEED)],
        beside=beside,
        label=label,
        identical=identical,
        relative=relative,
        display_name=tables.display_name,
        style=Markup(_text("page.css")),
        script=Markup(script()),
        policy=policy(),
    )


def _dots(results: Results, command: Any) -> dict[str, Any] | None:
    """A dot per seed and arm, for the opening of the page."""
    if not results.verdict.get("losses"):
        return None
    drawn = comparison_figures.seeds(results.verdict)
    rows: list[list[float | str | None]] = [
        [row.label, panel.title, value]
        for row in drawn.rows
        for panel, values in zip(drawn.panels, row.values, strict=True)
        for value in values
    ]
    return {
        "name": "seeds",
        "spec": _in_page(drawn.chart, drawn.alt_text),
        "caption": drawn.alt_text,
        "csv": csv_text(["arm", "what", "change"], rows),
        "command": command,
    }


def _model(results: Results, model: str, command: Any) -> dict[str, Any]:
    """What the template shows of a model."""
    name, chosen = tables.display_name(model), results.contrasts(model)
    gaps = [
        f"{label(one)} {tables.gap(one)}" for one in chosen if one["control"] == CONTROL
    ]
    said = "; ".join(gaps)
    caption = f"{name}. At the end, against {CONTROL}: {said or 'not recorded'}."
    finding = comparison_figures.relative_losses(results, model)
    loss = comparison_figures.losses(results, model)
    found: dict[str, Any] = {
        "id": model,
        "name": name,
        "word": str(results.verdict["verdict"][model]),
        "details": results.section("details").get(model) or {},
        "facts": tables.facts(results, model),
        "margin": results.section("margins").get(model) or {},
        "contrasts": chosen,
        "arms": results.arms(model),
        "finding": finding and _of_curves(finding, caption, command),
        "losses": loss and _of_curves(loss, caption, command),
    }
    if drawn := comparison_figures.differences(results, model):
        found["differences"] = {
            "name": f"differences_{model}",
            "spec": _in_page(drawn[0], f"{name}: differences in margins. {said}."),
            "caption": f"{name}. Dot: mean difference; bar: interval; diamond: the "
            "weights are the same bits; shaded: counts as none.",
            "csv": drawn[1],
            "command": command,
        }
    if slides := comparison_figures.slides(results, model):
        found["frames"] = {
            "name": f"frames_{model}",
            "slides": slides,
            "caption": f"{name}. Mean squared error of each frame, pixels from 0 to 1.",
            "csv": comparison_figures.frames_csv(slides),
            "command": command,
        }
    return found


def _of_curves(drawn: Curves, words: str, command: Any) -> dict[str, Any]:
    """A figure with lines, as the template takes it."""
    return {
        "name": drawn.name,
        "title": drawn.y_name,
        "spec": _in_page(chart(drawn), f"{drawn.y_name}. {words}"),
        "caption": words,
        "csv": None if drawn.source else drawn.csv(),
        "source": drawn.source or drawn.name,
        "columns": json.dumps(drawn.columns()),
        "command": command,
    }


def _in_page(drawn: charts.Spec, alt_text: str) -> Markup:
    """The specification as JSON, in colours that follow the page's light or dark."""
    made = charts.spec({**drawn, "description": alt_text, "background": None})
    text = json.dumps(made)
    for colour, name in _SHADES.items():
        text = text.replace(f'"{colour}"', f'"var(--{name})"')
    # Nothing in it can end the script element that holds it.
    return Markup(text.replace("<", "\\u003c"))
