"""Tables, figures and the page of a comparison. Reads records, never runs a model."""

from pathlib import Path

from prednet_jax import records
from prednet_jax.report.results import VERDICT, load, read_verdict
from prednet_jax.report.verdict_text import claim_lines, text_table

PAGE = "report.html"


def build(directory: str | Path) -> Path:
    """Writes the page of a comparison into its directory; returns its path.

    `directory` holds the records of `compare_backends`: verdict.json and runs/. The
    page is written at once, and the same records give the same bytes. A FileError names
    a verdict that is missing, or a broken file.
    """
    # Drawing loads vl-convert, which reading a verdict does not need.
    from prednet_jax.report import page

    results = load(directory)
    text = page.page(results)
    path = results.directory / PAGE
    records.write_bytes(path, text.encode())
    return path
