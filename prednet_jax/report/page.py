"""The report: one HTML page that needs nothing beside itself.

One script, no font, no address outside; a content security policy says so to the
browser and lets no other script run. Every text from the records is escaped. Without
the script the page shows pictures in the charts' places.
"""

import html
from collections.abc import Mapping
from typing import Any

from prednet_jax.report import answers, method, sections
from prednet_jax.report.figure import Images
from prednet_jax.report.numbers import significant
from prednet_jax.report.results import Results
from prednet_jax.report.script import POLICY, SCRIPT
from prednet_jax.report.stylesheet import STYLE


def page(
    results: Results,
    images: Images,
    measured: Mapping[str, Any] | None = None,
    landscape: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """The whole page.

    Args:
      results: what the comparison left.
      images: figures `finding_<model>`, `loss_<model>` and `frames_<model>`, those
        there are, each with its "light" and "dark" bytes; the charts of `measured` and
        `landscape` by their names.
      measured: what `benchmark.py --suite=backends` wrote, or None.
      landscape: records of saddles and curvature, by file name.

    Returns:
      HTML. A section whose records are missing is left out or says so.
    """
    title = html.escape(answers.question(results))
    parts = [
        section(results, images)
        for section in (
            sections.finding,
            sections.numbers,
            sections.curves,
            sections.frames,
        )
    ]
    parts.append(sections.saddles(landscape or {}, images))
    if measured is not None:
        parts.append(sections.speeds(measured, images))
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
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
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
<script>{SCRIPT}</script>
</body>
</html>
"""


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
