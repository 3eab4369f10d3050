"""Saddles and curvature on the page, from the records of two experiments."""

import json

import numpy as np
import pytest

from prednet_jax import report
from prednet_jax.records import RecordError
from prednet_jax.report import document_tables, landscape


def group(noise: str, arrivals: list[int | None], budget: int = 100) -> dict:
    return {
        "function": "octopus",
        "optimizer": "gradient_descent",
        "form": "aligned",
        "precision": "float32",
        "noise": noise,
        "arrival_steps": [budget if a is None else a for a in arrivals],
        "arrived": [a is not None for a in arrivals],
    }


@pytest.fixture
def records_of(tmp_path):
    """A folder with both records."""
    saddles = {
        "command": "python experiments/saddle_escape.py",
        "git_commit": "0123456789abcdef",
        "findings": ["octopus: <b>2</b> of 4 runs"],
        "groups": [
            group("none", [None] * 4),
            group("ulp", [10, 20, None, None]),
        ],
    }
    rows = [
        {
            "model": "prednet",
            "update": update,
            "preconditioned": {
                "lowest": lowest,
                "highest": 300.0,
                "negative_curvature_proved": lowest < 0,
            },
        }
        for update, lowest in ((1, -20.0), (10, 5.0))
    ]
    curvature = {"command": "python experiments/probe_curvature.py", "rows": rows}
    (tmp_path / landscape.SADDLES).write_text(json.dumps(saddles))
    (tmp_path / landscape.CURVATURE).write_text(json.dumps(curvature))
    return tmp_path


def test_runs_that_are_left_are_counted_step_by_step(records_of):
    (escapes, words, command), _ = landscape.charts(landscape.load([records_of]))
    quiet, noisy = escapes.series
    assert command == "python experiments/saddle_escape.py"
    assert quiet.name == "no noise"
    assert (quiet.curves[""] == 100).all()
    left = dict(zip(escapes.x.tolist(), noisy.curves[""], strict=True))
    assert left[1] == 100
    assert left[max(x for x in left if x < 20)] == 75
    assert left[100] == 50
    assert "no noise 4 of 4, ulp 2 of 4" in words


def test_curvature_shows_sizes_and_leaves_out_what_has_another_sign(records_of):
    _, (curvature, words, _) = landscape.charts(landscape.load([records_of]))
    lowest, highest = curvature.series
    np.testing.assert_array_equal(lowest.curves[""], [20, np.nan])
    np.testing.assert_array_equal(highest.curves[""], [300, 300])
    assert "lowest -20.0 to 5.00" in words
    assert "proved at 1 of 2 stops" in words


def test_the_page_takes_published_records_and_says_from_where(
    records_of, verdict, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("comparison")
    (folder / "verdict.json").write_text(json.dumps(verdict))
    page = report.build(folder, records_of).read_text()
    assert "Saddles and curvature" in page
    assert "Recorded at commit 0123456789ab" in page
    assert "&lt;b&gt;2&lt;/b&gt; of 4 runs" in page
    assert page.count('data-source="saddles_') == 1
    assert page.count('data-source="curvature"') == 1


def test_a_record_that_is_broken_is_named(records_of):
    (records_of / landscape.CURVATURE).write_text('{"rows": [{"model": "prednet"}]}')
    with pytest.raises(RecordError, match=r"probe_curvature.*KeyError 'update'"):
        landscape.charts(landscape.load([records_of]))
    (records_of / landscape.CURVATURE).write_text('{"rows": []}')
    with pytest.raises(RecordError, match="expected an object with rows"):
        landscape.load([records_of])
    assert landscape.load([]) == {}


def test_tables_of_the_documents_show_the_records(records_of):
    found = landscape.load([records_of])
    table = document_tables.saddles(found[landscape.SADDLES])
    assert "| gradient descent | float32 | aligned | none | 4 of 4 |" in table
    assert "| aligned | `ulp` | 2 of 4 |" in table
    assert table.endswith("```\npython experiments/saddle_escape.py\n```")

    record = found[landscape.CURVATURE]
    for row in record["rows"]:
        row |= {"loss": 0.5, "raw": {"lowest": -1.0, "highest": 2.0}, "escape": None}
    record["rows"][0]["escape"] = {"noise_for_one_update": 0.24}
    table = document_tables.curvature(record)
    assert (
        "| prednet | 1 | 0.500 | -1.00 | 2.00 | -20.0 | 300 | proved | 0.24 |" in table
    )
    assert "| 5.00 | 300 | not found | - |" in table
