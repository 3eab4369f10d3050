import dataclasses

import numpy as np
import pytest

from prednet_jax import AutoencoderConfig, PredNetConfig, runs, statistics, tasks
from prednet_jax.saddles import symmetric
from study import again
from tests.processes import ROOT

STUDY = ROOT / "results" / "study"
SMALL = PredNetConfig(channels=(3, 6, 12), height=24, width=32)


def design(**changes):
    usual = {"root": STUDY, "script": "train.py", "updates": 3000, "seeds": 3}
    networks = (tasks.of(SMALL), tasks.of(AutoencoderConfig()))
    return runs.Design(**usual | {"tasks": networks, "arms": None} | changes)


def test_the_study_is_repeated_in_its_setting_alone(tmp_path):
    (losses,) = again.published(design(), STUDY).values()
    assert len(losses["float32"]) == len(again.PART.seeds)
    everything = statistics.gather(losses, "reduction_order")
    found = statistics.predicted(everything, seeds=3, treatment=2, control=2)
    assert found == pytest.approx((-0.0199, 0.0317), abs=1e-4)
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


def test_an_order_that_differs_between_twins_leaves_the_saddle():
    rows = [
        row._replace(seed=1)
        for row in symmetric.read(STUDY / "A" / "runs.csv")
        if (row.program, row.delta, row.seed) == ("symmetric", 0, 8101)
        and row.arm in again.SADDLE_ARMS
    ]
    claim = again.saddle_claim(rows, STUDY)
    losses = {row.arm: row.loss for row in rows}
    mean = np.log([losses["tile"], losses["run"]]).mean() - np.log(losses["float32"])
    assert claim.estimate == pytest.approx(np.expm1(mean))
    assert (claim.answer, claim.holds) == ("yes", True)
    assert "7 orders of magnitude" in claim.claim
    assert claim.published["low"] is None  # five seeds
    assert claim.together()["seeds"] == 6
    stays = [r._replace(separated_at=r.updates + 1) for r in rows]
    assert again.saddle_claim(stays, STUDY).answer == "no"
    short = [r._replace(updates=400, separated_at=401) for r in stays]
    claim = again.saddle_claim(short, STUDY)
    assert (claim.answer, claim.predicted) == ("cannot tell", None)
