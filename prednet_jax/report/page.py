"""The report: one HTML page that needs no other file.

A content security policy allows only the page's own script, and fetches nothing. The
template escapes every text from the records.
"""

import base64
import functools
import hashlib
import json
from importlib import resources
from typing import Any
from urllib.parse import quote

import jinja2
import vl_convert
from markupsafe import Markup

from prednet_jax.records.verdict import CONTROL, Record
from prednet_jax.report import charts, figures, numbers, strips, verdict_text
from prednet_jax.report.results import Results

# Colours that the page's style sheet has in a light and a dark shade.
_SHADES = {charts.INK: "ink", charts.MUTED: "muted", charts.FAINT: "line"} | {
    colour: name for name, colour in charts.ROLES.items() if name != "control"
}


def _text(name: str) -> str:
    return (resources.files(__package__) / "template" / name).read_text("utf-8")


@functools.cache
def script() -> str:
    """Returns the text of the page's one script: its own, with Vega and Vega-Lite."""
    return vl_convert.javascript_bundle(_text("page.js"))


def policy() -> str:
    """Allows nothing from outside, no form, and no script but `script()`."""
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    return (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def page(results: Results) -> str:
    """Returns the whole page as HTML.

    A section whose records are missing is left out.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("prednet_jax.report", "template"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "address": lambda text: "data:text/csv;charset=utf-8," + quote(text, safe=","),
        "significant": numbers.significant,
        "probability": numbers.probability,
        "change": lambda value: f"{verdict_text.signed_percent(value)} %",
    }
    return environment.get_template("report.html").render(
        results=results,
        verdict=results.verdict,
        sentences=verdict_text.claim_sentences(results.verdict),
        settings=_settings(results),
        unpublished=verdict_text.unpublished(results.verdict),
        dots=_dots(results),
        several=any(
            len(seeds) > 1
            for arms in results.losses.values()
            for seeds in arms.values()
        ),
        models=[_model(results, model) for model in results.models],
        difference=verdict_text.difference,
        display_name=verdict_text.display_name,
        style=Markup(_text("page.css")),
        script=Markup(script()),
        policy=policy(),
    )


def _settings(results: Results) -> list[tuple[str, str]]:
    """Returns the settings of a comparison by name, for the top of the page."""
    design, rows = results.verdict.design, []
    if seeds := design.get("seeds"):
        ends = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
        rows.append(("Seeds", f"{len(seeds)}: {ends}"))

    def recorded(name: str, model: str) -> Any:
        return (design.get(name) or {}).get(model)

    for model in results.models:
        network = recorded("networks", model) or {}
        parts = {
            "pixels": [network.get("height"), network.get("width")],
            "channels": network.get("channels"),
            "updates": recorded("updates", model),
            "data": recorded("data", model),
            "arms": len(results.arms(model)),
        }
        phrases = [
            f"{name} {' x '.join(map(str, x)) if isinstance(x, list) else x}"
            for name, x in parts.items()
            if x and x != [None, None]
        ]
        rows.append((verdict_text.display_name(model), ", ".join(phrases)))
    if given_up := design.get("given_up"):
        rows.append(("Given up for want of time", "; ".join(given_up)))
    return rows


def _dots(results: Results) -> Record | None:
    if not results.verdict.losses:
        return None
    drawn = figures.seeds(results.verdict)
    rows: list[list[float | str]] = [
        [row.label, panel.title, value]
        for row in drawn.rows
        for panel, values in zip(drawn.panels, row.values, strict=True)
        for value in values
    ]
    return {
        "name": "seeds",
        "spec": _in_page(drawn.chart, drawn.alt_text),
        "caption": drawn.alt_text,
        "csv": figures.csv_text(["arm", "what", "change"], rows),
    }


#: The figures of lines of each network, by their names in report.html.
_LINES = {"losses": figures.losses, "finding": figures.relative_losses}


def _model(results: Results, model: str) -> Record:
    name, chosen = verdict_text.display_name(model), results.verdict.of_model(model)
    against = [contrast for contrast in chosen if contrast.control == CONTROL]
    phrases = "; ".join(
        f"{contrast.label} "
        + (
            "0, bit for bit"
            if contrast.identical
            else verdict_text.difference(contrast)
        )
        for contrast in against
    )
    phrases = phrases or "not recorded"
    caption = f"{name}. Difference of the loss at the end from {CONTROL}: {phrases}."
    drawn: dict[str, Any] = {}
    for figure_name, make in _LINES.items():
        if (curves := make(results, model)) is not None:
            drawn[figure_name] = {
                "name": curves.name,
                "title": curves.y_name,
                "spec": _in_page(curves.chart(), f"{curves.y_name}. {caption}"),
                "caption": caption,
                "csv": None if curves.source else curves.csv(),
                "source": curves.source or curves.name,
                "columns": json.dumps(curves.columns()),
            }
    if frames := figures.predicted_frames(results, model):
        picture = base64.b64encode(strips.strip(frames, None)).decode()
        drawn["frames"] = {
            "picture": f"data:image/png;base64,{picture}",
            "caption": (
                f"{name}. MSE: median over the frames of the mean squared error, "
                "pixels in [0, 1]."
            ),
        }
    return drawn | {
        "id": model,
        "name": name,
        # Networks of single images are not scored against a copy.
        "windowed": model in results.copied or not drawn.get("frames"),
        "word": str(results.verdict.verdict[model]),
        "margin": results.verdict.margins.get(model) or {},
        "contrasts": chosen,
        "arms": results.arms(model),
    }


def _in_page(drawn: charts.Spec, alt_text: str) -> Markup:
    """Returns the specification as JSON in light or dark colours."""
    chart = charts.spec({**drawn, "description": alt_text, "background": None})
    text = json.dumps(chart)
    for colour, name in _SHADES.items():
        text = text.replace(f'"{colour}"', f'"var(--{name})"')
    # Nothing in it can end the script element that holds it.
    return Markup(text.replace("<", "\\u003c"))
