"""Saddles, curvature and speed beside a comparison, from records of their own."""

import json

import numpy as np
import pytest

from prednet_jax import report
from prednet_jax.records import RecordError
from prednet_jax.report import beside, document_tables


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


def stop(update: int, lowest: float) -> dict:
    proved = {"negative_curvature_proved": lowest < 0}
    ends = {"lowest": lowest, "highest": 300.0}
    return {"model": "prednet", "update": update, "preconditioned": ends | proved}


MEASURED = {
    "rows": [
        {
            "work": work,
            "threads": threads,
            "batch": batch,
            "feed": feed,
            "seconds": 0.01 * batch,
            "frames_per_second": 100.0 * threads,
        }
        for work in ("inference", "training")
        for threads in (1, 2)
        for batch in (1, 4)
        for feed in ("device", "host")
    ],
    "replicas": [
        {
            "replicas": 10,
            "devices": 2,
            "mode": "<map>",
            "seconds_per_seed_update": 0.012,
            "ratio_to_single": 0.6,
        }
    ],
    "threads_not_here": [4, 6],
    "device": {"platform": "cpu", "processor": "a processor", "threads": 2},
    "shape": [24, 32, 3, 6],
    "window": 10,
    "precision": "float32",
    "command": "python measure.py",
}


@pytest.fixture
def records_of(tmp_path):
    """A folder with all records."""
    found = {
        beside.SADDLES: {
            "command": "python experiments/saddle_escape.py",
            "git_commit": "0123456789abcdef",
            "findings": ["octopus: <b>2</b> of 4 runs"],
            "groups": [group("none", [None] * 4), group("ulp", [10, 20, None, None])],
        },
        beside.CURVATURE: {
            "command": "python experiments/probe_curvature.py",
            "rows": [stop(1, -20.0), stop(10, 5.0)],
        },
        beside.SPEED: MEASURED,
    }
    for name, record in found.items():
        (tmp_path / name).write_text(json.dumps(record))
    return tmp_path


def test_runs_that_are_left_are_counted_step_by_step(records_of):
    ((escapes, words, command),) = beside.charts(
        beside.load(records_of), beside.SADDLES
    )
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
    ((curvature, words, _),) = beside.charts(beside.load(records_of), beside.CURVATURE)
    lowest, highest = curvature.series
    np.testing.assert_array_equal(lowest.curves[""], [20, np.nan])
    np.testing.assert_array_equal(highest.curves[""], [300, 300])
    assert "lowest -20.0 to 5.00" in words
    assert "proved at 1 of 2 stops" in words


def test_speed_has_a_line_per_threads_and_feed(records_of):
    inference, training = beside.charts(beside.load(records_of), beside.SPEED)
    assert [one.name for one in inference.chart.series] == [
        "1 thread, on device",
        "1 thread, from host",
        "2 threads, on device",
        "2 threads, from host",
    ]
    assert training.chart.x.tolist() == [1, 4]
    assert training.chart.series[2].curves[""].tolist() == [200, 200]
    assert "at most 200 frames per second" in training.words


def test_the_page_takes_published_records_and_says_from_where(
    records_of, verdict, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("comparison")
    (folder / report.VERDICT).write_text(json.dumps(verdict))
    page = report.build(folder, records_of).read_text()
    for said in (
        "Saddles and curvature",
        "Recorded at commit 0123456789ab",
        "&lt;b&gt;2&lt;/b&gt; of 4 runs",
        "32 x 24, channels 3, 6",
        "10 replica(s), &lt;map&gt;",
    ):
        assert said in page
    for figure, count in (("saddles_", 1), ('curvature"', 1), ("speed_", 2)):
        assert page.count(f'data-source="{figure}') == count


def test_a_record_that_is_broken_is_named(records_of):
    (records_of / beside.CURVATURE).write_text('{"rows": [{"model": "prednet"}]}')
    with pytest.raises(RecordError, match=r"probe_curvature.*KeyError 'update'"):
        beside.charts(beside.load(records_of), beside.CURVATURE)
    (records_of / beside.CURVATURE).write_text('{"rows": []}')
    with pytest.raises(RecordError, match="expected an object with rows"):
        beside.load(records_of)
    assert beside.load() == {}


def test_tables_show_the_records(records_of):
    found = beside.load(records_of)
    table = document_tables.saddles(found[beside.SADDLES])
    assert "| gradient descent | float32 | aligned | none | 4 of 4 |" in table
    assert "| aligned | `ulp` | 2 of 4 |" in table
    assert table.endswith("```\npython experiments/saddle_escape.py\n```")

    record = found[beside.CURVATURE]
    for row in record["rows"]:
        row |= {"loss": 0.5, "raw": {"lowest": -1.0, "highest": 2.0}, "escape": None}
    record["rows"][0]["escape"] = {"noise_for_one_update": 0.24}
    table = document_tables.curvature(record)
    ends = "| prednet | 1 | 0.500 | -1.00 | 2.00 | -20.0 | 300 | proved | 0.24 |"
    assert ends in table
    assert "| 5.00 | 300 | not found | - |" in table

    table = document_tables.backends(found[beside.SPEED])
    assert "| training | 2 | 4 | from host | 40.0 | 200 |" in table
    assert "- 10 replica(s), <map>" in table
    assert table.endswith("```\npython measure.py\n```")
    text = beside.speed_table(found[beside.SPEED])
    assert len(text.splitlines()) == 1 + 16 + 1 + 1
    assert "0.60 of a single run" in text
    assert "Not measured with 4, 6 threads" in text
