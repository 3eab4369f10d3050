"""What a comparison repeats of the study, from committed records."""

import dataclasses
import json

import numpy as np
import pytest

from prednet_jax import runs, statistics, tasks
from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.studies import again, judgement, seed_records, symmetric
from prednet_jax.studies.parts import PARTS
from tests.test_imports import ROOT

STUDY = ROOT / "results" / "study"
SMALL = PredNetConfig(channels=(3, 6, 12), height=24, width=32)


def design(**changes):
    usual = {"root": STUDY, "script": "train.py", "updates": 3000, "seeds": 3}
    networks = (tasks.of(SMALL), tasks.of(AutoencoderConfig()))
    return runs.Design(**usual | {"tasks": networks, "arms": None} | changes)


def part_c():
    found = seed_records.read(PARTS["C"], STUDY / "C")
    return judgement.losses(found, judgement.PRIMARY)


def test_the_study_is_repeated_in_its_setting_alone(tmp_path):
    found = again.published(design(), STUDY)
    assert list(found) == ["prednet"]
    assert len(found["prednet"]["float32"]) == len(again.PART.seeds)
    for changes in (
        {"updates": 2999},
        {"window": 9},
        {"last": 0.1},
        {"data": "moving_digits"},
        {"tasks": (tasks.of(dataclasses.replace(SMALL, variant="lotter")),)},
    ):
        assert again.published(design(**changes), STUDY) == {}
    # A part that is not complete is not repeated.
    (tmp_path / again.PART.name).mkdir()
    assert again.published(design(), tmp_path) == {}


def test_three_seeds_of_the_study_fall_where_the_others_predict():
    """Of 13 triples of part C about 12 should; the numbers are those of its record."""
    losses = part_c()
    both = statistics.gather(
        losses, "reduction_order", ["float32", "convolution_im2col"]
    )
    order = np.random.default_rng(0).permutation(len(both.seeds))
    inside = []
    for triple in order[:39].reshape(13, 3):
        rest = [i for i in range(len(both.seeds)) if i not in triple]
        low, high = statistics.predicted(
            of(both, rest), seeds=3, treatment=2, control=2
        )
        first, second = of(both, triple).logs
        inside.append(low <= np.expm1((first - second).mean()) <= high)
    assert sum(inside) >= 11
    everything = statistics.gather(losses, "reduction_order")
    found = statistics.predicted(everything, seeds=3, treatment=2, control=2)
    assert found == pytest.approx((-0.0199, 0.0317), abs=1e-4)
    stale = statistics.gather(losses, "stale_targets")
    found = statistics.predicted(stale, seeds=3, treatment=1, control=2)
    assert found == pytest.approx((1.369, 3.122), abs=1e-3)


def of(both, places):
    def pick(values):
        return tuple(values[i] for i in places)

    return statistics.Redraws(
        seeds=pick(both.seeds),
        treatment=pick(both.treatment),
        control=pick(both.control),
    )


def saddle_rows(seed):
    rows = symmetric.read(STUDY / "A" / "runs.csv")
    return [
        row
        for row in rows
        if (row.program, row.delta, row.seed) == ("symmetric", 0, seed)
        and row.arm in again.SADDLE_ARMS
    ]


def test_an_order_that_differs_between_twins_leaves_the_saddle():
    rows = [row._replace(seed=1) for row in saddle_rows(8101)]
    claim = again.saddle_claim(rows, STUDY)
    losses = {row.arm: row.loss for row in rows}
    mean = np.log([losses["tile"], losses["run"]]).mean() - np.log(losses["float32"])
    assert claim.estimate == pytest.approx(np.expm1(mean))
    assert (claim.answer, claim.holds) == ("yes", True)
    assert "7 orders of magnitude" in claim.claim
    assert claim.published["low"] is None  # five seeds
    assert claim.together()["seeds"] == 6
    control = again.saddle_control(rows)
    assert set(control) == {"passed", "figure"}
    assert json.loads(json.dumps(control)) == control
    stays = [r._replace(separated_at=r.updates + 1) for r in rows]
    assert again.saddle_claim(stays, STUDY).answer == "no"
    short = [r._replace(updates=400, separated_at=401) for r in stays]
    claim = again.saddle_claim(short, STUDY)
    assert (claim.answer, claim.predicted) == ("cannot tell", None)
