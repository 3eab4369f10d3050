import dataclasses
import math

import numpy as np
import pytest

from prednet_jax import AutoencoderConfig, PredNetConfig, runs, statistics, tasks
from prednet_jax.records.verdict import Answer
from prednet_jax.runs import published
from prednet_jax.runs.arms import FIXED_ORDERS
from prednet_jax.saddles.symmetric import SaddleRow

SMALL = PredNetConfig(channels=(3, 6, 12), height=24, width=32)


def design(root, **changes):
    usual = {"root": root, "script": "train.py", "updates": 3000, "seeds": 3}
    networks = (tasks.of(SMALL), tasks.of(AutoencoderConfig()))
    return runs.Design(**usual | {"tasks": networks, "arms": None} | changes)


def test_the_study_is_repeated_in_its_setting_alone(tmp_path):
    study = published.load()
    (losses,) = study.losses(design(tmp_path)).values()
    everything = statistics.collect_redraws(losses, "reduction_order", FIXED_ORDERS)
    assert len(everything.seeds) == 40
    found = statistics.predicted(everything, seeds=3, treatment=2, control=2)
    assert found == pytest.approx((-0.0199, 0.0317), abs=1e-4)
    for updates in published.UPDATES:
        assert set(study.losses(design(tmp_path, updates=updates))) == {"prednet"}
    for changes in (
        {"updates": 2999},
        {"window": 9},
        {"last": 0.1},
        {"data": "moving_digits"},
        {"tasks": (tasks.of(dataclasses.replace(SMALL, variant="lotter")),)},
    ):
        assert study.losses(design(tmp_path, **changes)) == {}
    other = design(tmp_path, window=9)
    assert study.other_setting(other, other.tasks[0]) == ["window 9 instead of 10"]


def test_the_records_say_what_a_size_can_show():
    by_updates = published.load().by_updates
    assert by_updates[1000].chance_to_separate(3) == pytest.approx(0.53, abs=0.02)
    assert by_updates[3000].chance_to_separate(3) == pytest.approx(0.95, abs=0.02)
    effect, higher, seeds = by_updates[1000].stale_effect()
    assert effect == pytest.approx(0.83, abs=0.02)
    assert (higher, seeds) == (40, 40)


def saddle_rows(updates, left=True):
    losses = published.load().saddle[updates]
    return [
        SaddleRow(
            program="symmetric",
            arm=arm,
            delta=0.0,
            seed=1,
            separated_at=700 if left and arm != "float32" else updates + 1,
            equal=arm == "float32",
            loss=losses[arm]["8101"],
            updates=updates,
        )
        for arm in ("float32", "tile")
    ]


def test_an_order_that_differs_between_twins_leaves_the_saddle():
    study = published.load()
    rows = saddle_rows(2250)
    claim = study.saddle_claim(rows)
    change = np.log(rows[1].loss / rows[0].loss)
    assert claim.found.estimate == pytest.approx(math.expm1(change))
    assert (claim.answer, claim.holds) == (Answer.YES, True)
    assert claim.remark.startswith("ordinary weights are 7 orders of magnitude")
    assert claim.published.low is None  # five seeds
    assert claim.together.seeds == 6
    assert study.saddle_claim(saddle_rows(2250, left=False)).answer is Answer.NO
    short = [row._replace(updates=400, separated_at=401) for row in rows]
    claim = study.saddle_claim(short)
    assert (claim.answer, claim.predicted) == (Answer.CANNOT_TELL, None)
