"""Simulated studies reach the verdict that is right for them, at the stated rates."""

import csv
from pathlib import Path

import numpy as np
import pytest

from prednet_jax.report import document_tables
from prednet_jax.statistics import coverage, paired, rates
from prednet_jax.statistics.truths import TRUTHS, Truth, draw

RECORDS = Path(__file__).parents[2] / "results" / "statistics"
STUDIES = 200


def truth(name, shape="normal"):
    (found,) = [t for t in TRUTHS if (t.name, t.shape) == (name, shape)]
    return found


def rate(which, n, studies=STUDIES):
    (record,) = rates.simulate(studies, truths=[which], seeds=[n])
    return record


@pytest.mark.parametrize("shape", ["normal", "lognormal 2"])
def test_each_firm_verdict_is_reached_under_its_own_truth(shape):
    helps = rate(truth("helps by two margins", shape), 10)
    assert helps["supported"] > 0.9
    assert helps["refuted"] == 0
    nothing = rate(truth("no effect", shape), 40)
    assert nothing["refuted"] > 0.8
    assert nothing["supported"] == 0


@pytest.mark.parametrize(
    "name",
    [
        "no bit changed",
        "stops before separation",
        "one seed in ten gains 5 %",
        "one seed in three gains 10 %",
        "hurts by two margins",
        "any fixed order helps as much",
        "one draw of two helps",
        "no effect, stale targets lower the loss",
        "no effect, noise helps nowhere",
    ],
)
def test_neither_is_given_where_neither_is_right(name):
    record = rate(truth(name), 40)
    assert record["inconclusive"] > 0.95


def test_the_edge_of_the_margin_is_kept_at_its_level():
    record = rate(truth("helps by exactly the margin"), 20, studies=1000)
    # .025 is the level of the interval; three binomial standard deviations.
    assert record["supported"] < 0.04
    assert record["refuted"] < 0.04


@pytest.mark.parametrize("n", [6, 10])
def test_a_batch_is_the_exact_test_where_all_subsets_are_enumerated(n):
    rng = np.random.default_rng(0)
    d = draw(rng, "lognormal 1", (20, n)) - 0.5
    for row, fast in zip(d, rates.batch(rng, d, margin=1.0), strict=True):
        exact = paired(1 + row, np.ones(n), margin=1.0)
        for name in ("p_value", "tost_p", "seeds_gaining", "verdict", "sd_difference"):
            assert getattr(fast, name) == pytest.approx(getattr(exact, name))
        ends = (exact.ci_low, exact.ci_high)
        assert (fast.ci_low, fast.ci_high) == pytest.approx(ends, abs=1e-6)


def test_shapes_have_mean_0_and_standard_deviation_1():
    rng = np.random.default_rng(1)
    for shape in ("normal", "lognormal 1", "skewed 1"):
        d = draw(rng, shape, (400_000,))
        assert abs(d.mean()) < 0.01
        assert d.std() == pytest.approx(1, abs=0.1)
    assert np.median(draw(rng, "skewed 1", (1000,))) > 0.1


def test_intervals_cover_where_the_bootstrap_does_not():
    records = coverage.simulate(500, shapes=["normal", "lognormal 2"], seeds=[10])
    for record in records:
        # Three binomial standard deviations of .95 and of .05.
        assert record["sign_flip_coverage"] > 0.92
        assert record["sign_flip_level"] < 0.08
    assert records[1]["bca_coverage"] < 0.8


@pytest.mark.parametrize(
    ("module", "file", "table"),
    [
        (rates, "verdict_rates", document_tables.verdict_rates),
        (coverage, "coverage", document_tables.interval_coverage),
    ],
)
def test_committed_records_make_a_table(module, file, table):
    with open(RECORDS / f"{file}.csv", newline="") as stream:
        records = list(csv.DictReader(stream))
    assert tuple(records[0]) == module.COLUMNS
    assert len(table(records).splitlines()) > 5


def test_a_committed_row_is_simulated_again():
    with open(RECORDS / "verdict_rates.csv", newline="") as stream:
        rows = {(r["truth"], r["shape"], r["seeds"]): r for r in csv.DictReader(stream)}
    old = rows["no effect, half the seeds apart, spread 0.5", "normal", "40"]
    new = rate(truth(old["truth"]), 40, studies=400)
    assert new["refuted"] == pytest.approx(float(old["refuted"]), abs=0.09)


def test_a_rule_that_is_blind_would_show():
    # A truth whose noise helps and whose trajectories separate is not called refuted
    # however many seeds it has; the same effect within the margin is.
    small = Truth(name="", answer="", effect=-0.3, spread=0.1)
    assert rate(small, 40)["refuted"] > 0.9
    assert rate(truth("helps by exactly the margin"), 40)["refuted"] == 0
