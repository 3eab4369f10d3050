"""The numbers behind every figure, as they were drawn by an earlier library."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from prednet_jax import report
from prednet_jax.report import beside, comparison_figures
from prednet_jax.report.curves import Curves
from prednet_jax.studies import study_figures, study_tables

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = json.loads((ROOT / "tests" / "golden" / "figure_data.json").read_text())
STUDY, PUBLISHED = ROOT / "results" / "study", ROOT / "results" / "published"


def rounded(values):
    """Six digits, as the golden has them; None where a value is not finite."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values]


def test_figures_of_the_study_show_the_recorded_numbers():
    verdict = json.loads((STUDY / "verdict.json").read_text())
    drawn = study_figures.figures(STUDY, study_tables.load(STUDY), verdict)
    golden = GOLDEN["documents"]
    # Parts that came later have no golden, nor have the contrasts of a later rule.
    assert {f"docs/study/{name}" for name in drawn} >= golden.keys()
    for name, figure in drawn.items():
        if f"docs/study/{name}" not in golden:
            continue
        shown = {}
        for i, panel in enumerate(figure.panels):
            rows = {}
            for row in figure.rows:
                rows[row.label] = {"seeds": rounded(row.values[i])}
                if i < len(row.intervals) and row.intervals[i]:
                    rows[row.label]["interval"] = rounded(row.intervals[i])
            ends = rounded([panel.low, panel.high])
            shown[panel.title] = {"ends": ends, "rows": rows}
        assert shown == golden[f"docs/study/{name}"], name


def table_is_golden(curves: Curves) -> bool:
    digest = hashlib.sha256(curves.csv().encode()).hexdigest()[:16]
    return digest == GOLDEN["page"][curves.name]["csv"]


@pytest.mark.parametrize("model", ["prednet", "autoencoder"])
def test_figures_of_a_comparison_show_the_runs(comparison, model):
    found = report.load(comparison)
    golden = GOLDEN["page"]
    loss = comparison_figures.losses(found, model)
    assert table_is_golden(loss)
    relative = comparison_figures.relative_losses(found, model)
    for curves in (loss, relative):
        shown = [one.name for one in curves.series if one.shown]
        assert shown == golden[curves.name]["shown"]
    assert rounded([relative.zone]) == [golden[relative.name]["zone"]]

    chart, _ = comparison_figures.differences(found, model)
    drawn = {
        row["row"].partition("|")[0]: rounded([row["low"], row["mean"], row["high"]])
        for row in chart["data"]["values"]
    }
    assert drawn == golden[f"differences_{model}"]
    slides = comparison_figures.slides(found, model)
    errors = {s.name: rounded(s.errors) for s in slides if s.errors is not None}
    assert errors == golden[f"frames_{model}"]


def test_figures_of_published_records_show_them():
    found = beside.load(PUBLISHED)
    drawn = [one.chart for name in found for one in beside.charts(found, name)]
    assert len(drawn) == 5 + 2
    assert all(map(table_is_golden, drawn))
