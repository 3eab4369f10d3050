"""The speed section: table, figure, and no section if nothing was measured."""

import json

import pytest

from prednet_jax import report
from prednet_jax.records import RecordError
from prednet_jax.report import speed


@pytest.fixture
def measured():
    return {
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
                "mode": "map",
                "seconds_per_seed_update": 0.012,
                "ratio_to_single": 0.6,
            }
        ],
        "threads_not_here": [4, 6],
        "device": {"platform": "cpu", "processor": "a processor", "threads": 2},
        "shape": [24, 32, 3, 6],
        "window": 10,
        "precision": "float32",
    }


def test_table_names_every_case_and_what_was_not_measured(measured):
    text = speed.text_table(measured)
    assert len(text.splitlines()) == 1 + 16 + 1 + 1
    assert "0.60 of a single run" in text
    assert "Not measured with 4, 6 threads" in text


def test_a_document_gets_the_same_rows(measured):
    text = speed.markdown_table(measured | {"command": "python measure.py"})
    assert "| training | 2 | 4 | from host | 40.0 | 200 |" in text
    assert "- 10 replica(s), map" in text
    assert text.endswith("```\npython measure.py\n```")


def test_section_escapes_and_names_the_size(measured, verdict, tmp_path):
    measured["replicas"][0]["mode"] = "<map>"
    (tmp_path / speed.FILE).write_text(json.dumps(measured))
    (tmp_path / report.VERDICT).write_text(json.dumps(verdict))
    page = report.build(tmp_path).read_text()
    assert "32 x 24, channels 3, 6" in page
    assert "10 replica(s), &lt;map&gt;" in page
    assert page.count('data-source="speed_') == 2


def test_a_line_per_threads_and_feed(measured):
    inference, training = speed.charts(measured)
    assert [one.name for one in inference.series] == [
        "1 thread, on device",
        "1 thread, from host",
        "2 threads, on device",
        "2 threads, from host",
    ]
    assert training.x.tolist() == [1, 4]
    assert training.series[2].curves[""].tolist() == [200, 200]
    assert "at most 200 frames per second" in speed.best(measured, "speed_training")


def test_missing_is_none_and_broken_is_named(tmp_path):
    assert speed.load(tmp_path) is None
    (tmp_path / speed.FILE).write_text(json.dumps({"rows": []}))
    with pytest.raises(RecordError, match="expected an object with rows"):
        speed.load(tmp_path)
