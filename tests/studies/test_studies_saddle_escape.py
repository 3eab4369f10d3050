"""`saddle_escape` on constructed runs: tests, readings and findings."""

import math

import numpy as np
import pytest

from prednet_jax import statistics
from prednet_jax.studies import saddle_escape as escape

BUDGET = 100
ORDER = "reduction_order"


def group(form, noise, steps, *, arrived=None, predicted=None, precision="float32"):
    """Runs that leave at `steps`, None for never."""
    escaped = [s is not None for s in steps]
    arrived = escaped if arrived is None else arrived
    return {
        "function": "identical_units",
        "optimizer": "gradient_descent",
        "form": form,
        "precision": precision,
        "noise": noise,
        "escape_steps": [s or BUDGET for s in steps],
        "escaped": escaped,
        "arrival_steps": [s or BUDGET for s in steps],
        "arrived": arrived,
        "predicted_steps": [predicted] * len(steps),
    }


@pytest.fixture
def study():
    rng = np.random.default_rng(0)
    never = [None] * 16
    late = (40 + rng.integers(0, 9, 16)).tolist()
    stuck = [i < 4 for i in range(16)]
    return escape.compare(
        [
            group("aligned", "none", never, predicted=math.inf),
            group("aligned", ORDER, late),
            group("rotated", "none", late, predicted=44.0, arrived=stuck),
            group("rotated", ORDER, late[::-1]),
            group("rotated", "gaussian", [s - 30 for s in late]),
            group("rotated", "none", [2 * s for s in late], precision="float64"),
        ]
    )


def test_corrected_over_the_whole_table(study):
    raw = [g[f"{e}_p"] for g in study for e in escape.EVENTS if g["noise"] != "none"]
    holm = [
        g[f"{e}_p_holm"] for g in study for e in escape.EVENTS if g["noise"] != "none"
    ]
    assert holm == statistics.holm_p_values(raw)
    assert study[0]["escape_p"] is None


def test_findings_are_counts_of_the_runs(study):
    text = "\n".join(escape.findings(study))
    for part in (
        "0 of 16 leave in float32",
        "16 of 16 leave in float32, 16 of 16 leave in float64",
        "aligned: 16 of 16 runs leave; in 1 of 1 cases at other times",
        "rotated: 16 of 16 runs leave; in 0 of 1 cases at other times",
        "heavy ball: 16 escapes, median error",
    ):
        assert part in text


def test_table_marks_what_differs(study):
    rows = escape.text_table(study[:4]).splitlines()
    aligned = next(row for row in rows if " aligned " in row)
    assert "never" in aligned
    assert "*" in aligned
