"""What the tests of sentences share.

`make tables` makes the tables of README.md, of the paper and of docs/results.md. A
number in a sentence is written by hand, so these tests make the same words from the
records and look for them in the page.
"""

from pathlib import Path

import numpy as np

from prednet_jax import records
from prednet_jax.studies import judgement

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "results" / "study"
RANDOM, FIXED, NULL = "reduction_order", "reduction_order_run", "convolution_im2col"


def words(page):
    """A page as one line."""
    return " ".join((ROOT / page).read_text().split())


def contrast(treatment, control="float32", endpoint=judgement.PRIMARY):
    """A contrast of part C, from its verdict file."""
    found = records.read_json(STUDY / f"verdict_{endpoint}.json")["contrasts"]
    pair = (treatment, control)
    return next(c for c in found if (c["treatment"], c["control"]) == pair)


def percent(one, name):
    """A number of a contrast, in percent of the control's mean."""
    return 100 * one[name] / one["control_mean"]


def of_arm(found, arm, name):
    """An endpoint of all runs of an arm."""
    return np.array([r[name] for s in found for r in s["runs"] if r["arm"] == arm])
