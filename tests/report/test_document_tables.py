"""Tables of the documents, on made records."""

import re

import pytest
from scipy import stats

from prednet_jax.report import document_tables


def test_the_mean_of_the_seeds_has_students_interval():
    shipped = {"ratio": 0.4}
    scores = {"validation": shipped, "test": {"observed": shipped}}
    scores["unseen"] = {"observed": shipped}
    splits = dict.fromkeys(scores, 0.5)
    ratios = {"convlstm": dict.fromkeys(scores, 9.0), "walk-b-1": splits}
    text = document_tables.learned_seeds({"scores": scores}, ratios)
    rows = {row.split(" | ")[0][2:]: row for row in text.splitlines()[2:]}
    assert list(rows)[1:3] == ["walk-b-1", "convlstm"]
    mean = rows["mean of 2 seeds [95 %]"].split(" | ")[1]
    found = [float(x) for x in re.findall(r"[\d.-]+", mean)]
    low, high = stats.t.interval(0.95, 1, 0.45, 0.05)
    assert found == pytest.approx([0.45, low, high], abs=1e-3)
