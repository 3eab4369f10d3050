"""`saddle_escape` on constructed runs: tests and table."""

import math

import numpy as np
import pytest

from prednet_jax import statistics
from prednet_jax.studies import escapes

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
    return escapes.compare(
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
    raw = [g[f"{e}_p"] for g in study for e in escapes.EVENTS if g["noise"] != "none"]
    holm = [
        g[f"{e}_p_holm"] for g in study for e in escapes.EVENTS if g["noise"] != "none"
    ]
    assert holm == statistics.holm_p_values(raw)
    assert study[0]["escape_p"] is None


def test_table_has_times_and_tests(study):
    rows = [row.split() for row in escapes.text_table(study[:4]).splitlines()[1:]]
    quiet, noisy, *_ = [row[5:] for row in rows if "aligned" in row]
    assert quiet == ["never", "never", "-", "0", "of", "16", "-"]
    assert float(noisy[2]) < 0.001
    assert noisy[3:6] == ["16", "of", "16"]
