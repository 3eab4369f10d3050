"""A figure of the page: its picture in two themes, its words, its data and command."""

import base64
import html
from collections.abc import Mapping

from prednet_jax.report.chart import Chart, command, download

#: PNG bytes by figure and by theme.
Images = Mapping[str, Mapping[str, bytes]]


def figure(
    images: Images,
    name: str,
    *,
    alt: str,
    caption: str = "",
    chart: Chart | None = None,
    viewer: str = "",
    data: str = "",
    made_by: str | None = None,
) -> str:
    """A figure as HTML, or nothing where it has no picture.

    Args:
        images: pictures by name.
        name: which.
        alt: what the picture says, in words.
        caption: below it, plain text.
        chart: what the script draws in the picture's place.
        viewer: HTML that the script shows in the picture's place.
        data: links to its data, HTML; a chart of its own table brings its own.
        made_by: the command that made the records.
    """
    if name not in images:
        return ""
    light, dark = (
        base64.b64encode(images[name][theme]).decode() for theme in ("light", "dark")
    )
    below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    attribute = f" {chart.attribute()}" if chart else ""
    return (
        f'<figure{attribute}><picture><source media="screen and (prefers-color-scheme: '
        f'dark)" srcset="data:image/png;base64,{dark}">'
        f'<img src="data:image/png;base64,{light}" alt="{html.escape(alt)}"></picture>'
        f"{viewer}{below}{source(chart, data, made_by)}</figure>"
    )


def source(chart: Chart | None, data: str, made_by: str | None) -> str:
    """The data and the command, to be unfolded."""
    if chart is not None and chart.source is None:
        data = download(chart.name, chart.csv(), "numbers of this figure (CSV)") + data
    said = (f"<p>{data}</p>" if data else "") + command(made_by)
    if not said:
        return ""
    return (
        f'<details class="source"><summary>Data and command</summary>{said}</details>'
    )
