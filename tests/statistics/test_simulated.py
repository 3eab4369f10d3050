"""Simulated studies get the answer that is right for them, at the stated rates."""

import csv
from pathlib import Path

import numpy as np
import pytest

from prednet_jax.report import document_tables
from prednet_jax.statistics import redraws, sign_flip, simulated

RECORDS = Path(__file__).parents[2] / "results" / "statistics"


def rates(studies=400, n=40, **of):
    (record,) = simulated.simulate(
        studies, truths=[simulated.Truth(**of)], seeds=[n], seed=1
    )
    return record


@pytest.fixture(scope="module")
def rows():
    with open(RECORDS / "simulated_studies.csv", newline="") as stream:
        return list(csv.DictReader(stream))


def test_no_effect_and_help_are_told_apart():
    nothing = rates(spread=0.0065)
    assert nothing[redraws.NO_EFFECT] > 0.95
    assert nothing[redraws.LOWERS] == nothing[redraws.RAISES] == 0
    helps = rates(effect=-0.04, shape="skewed")
    assert helps[redraws.LOWERS] > 0.95
    assert helps[redraws.NO_EFFECT] == helps[redraws.RAISES] == 0


@pytest.mark.parametrize("kind", simulated.KINDS)
def test_the_error_at_the_margin_is_that_of_the_tests(kind):
    shape, separated = kind
    found = rates(1000, effect=0.02, spread=0.02, shape=shape, separated=separated)
    # .05 and .025, with three binomial standard deviations.
    assert found[redraws.NO_EFFECT] < 0.072
    assert found[redraws.RAISES] < 0.041
    assert found[redraws.LOWERS] == 0
    assert 0.925 < found["coverage"] < 0.975


def test_random_subsets_stand_for_the_exact_test():
    rng = np.random.default_rng(0)
    d = rng.normal(size=(30, 14))
    low, low_90, high_90, high = simulated._ends(simulated._subset_means(rng, d))
    for row, ends, ends_90 in zip(
        d, zip(low, high, strict=True), zip(low_90, high_90, strict=True), strict=True
    ):
        assert ends == pytest.approx(sign_flip.interval(row, 0.95), abs=0.15)
        assert ends_90 == pytest.approx(sign_flip.interval(row, 0.9), abs=0.15)


def test_deviations_have_mean_0_and_standard_deviation_1():
    rng = np.random.default_rng(1)
    for shape, _ in simulated.KINDS:
        d = simulated.deviations(rng, shape, (400_000,))
        assert abs(d.mean()) < 0.01
        assert d.std() == pytest.approx(1, abs=0.1)
    assert np.median(simulated.deviations(rng, "skewed", (1000,))) > 0.1


def test_the_committed_records_keep_their_promises(rows):
    (new,) = simulated.simulate(2, truths=[simulated.Truth()], seeds=[3])
    assert tuple(rows[0]) == tuple(new)
    for row in rows:
        assert row["right"] == simulated.right_answer(float(row["effect"]))
        wrong = [float(row[a]) for a in simulated.ANSWERS[:3] if a != row["right"]]
        # 5 %, with three binomial standard deviations of 4000 studies.
        assert max(wrong) < 0.0605
        if float(row["effect"]) == 0:
            assert float(row[redraws.NO_EFFECT]) >= 0.9
        assert float(row["coverage"]) > 0.935
    for table in (
        document_tables.simulated_answers,
        document_tables.simulated_intervals,
    ):
        assert len(table(rows).splitlines()) > 5


def test_a_committed_row_is_simulated_again(rows):
    (old,) = [
        row
        for row in rows
        if (float(row["effect"]), float(row["spread"])) == (0.03, 0.02)
        and (row["shape"], row["seeds"]) == ("heavy tails", "40")
    ]
    new = rates(800, effect=0.03, spread=0.02, shape="heavy tails")
    assert new[redraws.RAISES] == pytest.approx(float(old[redraws.RAISES]), abs=0.06)
