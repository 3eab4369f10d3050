"""The article's figure from records of part I; the tests write the records."""

import dataclasses

import numpy as np
import pytest

from study import machines
from study.parts import PARTS, SEEDS_WITH_TWELVE_MACHINES
from study.seed_records import Run, SeedRecord

PART = PARTS["I"]
# What the figure does not look at.
REST = {"control": "float32", "final_params_sha256": "", "diverged_at": None}
REST |= {"distance_over_travelled": {}, "final_distance_from": {}}


def record(seed, mistake=0.5, spread=1e-3, weights=1.0):
    """A seed: stale targets raise the loss, machines and own weights scatter it."""
    rng = np.random.default_rng(seed)
    runs = []
    for treatment in PART.of_seed(seed):
        log = np.log1p(mistake) if treatment.targets == "stale" else 0.0
        log += (weights if treatment.weights_seed_offset else spread) * rng.uniform(
            -1, 1
        )
        about = {"arm": treatment.name, "draw": treatment.draw, **REST}
        runs.append(Run(last_frame_loss=1e-2 * float(np.exp(log)), **about))
    return SeedRecord(seed=seed, updates=250, runs=tuple(runs), about={})


FIRST = [record(seed) for seed in PART.seeds[:SEEDS_WITH_TWELVE_MACHINES]]


def test_one_initial_model_gives_the_articles_picture_and_free_weights_do_not():
    for prefix in machines.STARTS:
        found = machines.twelve(FIRST, prefix)
        assert len(found) == SEEDS_WITH_TWELVE_MACHINES
        assert all((len(of.stale), len(of.true)) == (4, 8) for of in found.values())
    made = machines.values(FIRST)
    assert made["I.apart"] == "6 of 6"
    assert made["I.free_apart"] != "6 of 6"


def test_the_direction_of_the_picture_is_said():
    for mistake, picture in ((-0.5, machines.LOWER), (0, machines.OVERLAP)):
        found = machines.twelve([record(8700, mistake)], "")
        assert found["8700"].picture == picture


def test_the_difference_of_all_seeds_has_a_sign_and_a_size():
    made = machines.values([record(seed) for seed in PART.seeds])
    assert made["I.higher"] == "40 of 40 (91 to 100 %)"
    estimate = float(made["I.stale"].split()[0])
    assert estimate == pytest.approx(50, abs=0.5)


def test_a_seed_with_a_diverged_machine_is_left_out():
    runs = list(FIRST[0].runs)
    place = [(run.arm, run.draw) for run in runs].index(("stale_order_run", 7))
    runs[place] = dataclasses.replace(runs[place], last_frame_loss=None)
    seeds = [dataclasses.replace(FIRST[0], runs=tuple(runs)), *FIRST[1:]]
    assert machines.values(seeds)["I.apart"] == "5 of 5"
    rows = machines.figure(seeds).rows
    assert [len(values) for values in rows[0].values] == [0, 8]
