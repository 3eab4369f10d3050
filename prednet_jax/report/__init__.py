"""Tables, figures and the page of a comparison. Reads records, never runs a model."""

from pathlib import Path

from prednet_jax import records
from prednet_jax.report import chart, curves, figures, finding, landscape, speed
from prednet_jax.report.page import page
from prednet_jax.report.results import VERDICT, Results, load
from prednet_jax.report.tables import text_table
from prednet_jax.report.theme import LIGHT, THEMES

PAGE = "report.html"

__all__ = ["PAGE", "VERDICT", "build", "load", "text_table"]


def build(directory: str | Path, *others: Path) -> Path:
    """Writes the figures and the page of a comparison into its directory.

    Everything is drawn before the first file is written, and each file appears whole.
    The same records give the same bytes.

    Args:
      directory: what `compare_backends` wrote: verdict.json and runs/.
      others: where records of speed, saddles and curvature are looked for that do not
        lie in `directory`.

    Returns:
      The path of the page.

    Raises:
      RecordError: no verdict, or a broken file, which the message names.
    """
    results = load(directory)
    images = _draw(results)
    both = finding.finding(results, LIGHT, results.models)
    own = set(images)
    places = (results.directory, *others)
    measured, records_of = speed.load(*places), landscape.load(places)
    drawn = [one for one, _, _ in landscape.charts(records_of)]
    for one in drawn + (speed.charts(measured) if measured else []):
        images[one.name] = {t.name: chart.picture(one, t) for t in THEMES}
    text = page(results, images, measured, records_of)
    for name, themes in images.items():
        if name in own and not name.startswith("finding_"):
            path = results.directory / f"{name}.png"
            records.write_bytes(path, themes[LIGHT.name])
    if both is not None:
        records.write_bytes(results.directory / "finding.png", both)
    path = results.directory / PAGE
    records.write_bytes(path, text.encode())
    return path


def _draw(results: Results) -> dict[str, dict[str, bytes]]:
    """PNG bytes by figure and theme, without those that have nothing to show."""
    images: dict[str, dict[str, bytes]] = {}
    for model in results.models:
        for kind, draw in (
            ("finding", lambda r, theme, m: finding.finding(r, theme, [m])),
            ("loss", curves.loss_curves),
            ("frames", figures.frames),
        ):
            drawn = {theme.name: draw(results, theme, model) for theme in THEMES}
            found = {name: png for name, png in drawn.items() if png is not None}
            if found:
                images[f"{kind}_{model}"] = found
    return images
