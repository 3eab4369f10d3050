"""What a comparison repeats of the study, from committed records."""

import dataclasses
import json

import numpy as np
import pytest

from prednet_jax import errors, runs, statistics, tasks
from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.studies import again, judgement, seed_records, symmetric_findings
from prednet_jax.studies.parts import PARTS
from tests.studies.test_study_judgement import diverge, study
from tests.studies.test_symmetric_findings import runs as saddle_runs
from tests.studies.test_symmetric_findings import table
from tests.test_imports import ROOT

STUDY = ROOT / "results" / "study"
SMALL = PredNetConfig(channels=(3, 6, 12), height=24, width=32)


def design(**changes):
    usual = {"root": STUDY, "script": "train.py", "updates": 3000, "seeds": 3}
    networks = (tasks.of(SMALL), tasks.of(AutoencoderConfig()))
    return runs.Design(**usual | {"tasks": networks, "arms": None} | changes)


def part_c():
    found = seed_records.read(PARTS["C"], STUDY / "C")
    return judgement.losses(found, judgement.PRIMARY)["prednet"]


def test_the_default_comparison_repeats_the_study():
    found = again.published(design(), STUDY)
    assert list(found) == ["prednet"]
    assert len(found["prednet"]["float32"]) == len(again.PART.seeds)


@pytest.mark.parametrize(
    "changes",
    [
        {"updates": 2999},
        {"window": 9},
        {"last": 0.1},
        {"data": "moving_digits"},
        {"tasks": (tasks.of(dataclasses.replace(SMALL, variant="lotter")),)},
    ],
)
def test_another_setting_repeats_nothing(changes):
    assert again.published(design(**changes), STUDY) == {}


def test_a_part_that_is_not_complete_is_not_repeated(tmp_path):
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
            of(both, rest), seeds=3, treatment=2, control=2, resamples=4000
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
    rows = symmetric_findings.read(STUDY / "A" / "runs.csv")
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


def test_the_control_of_the_saddle_is_a_record():
    control = again.saddle_control([r._replace(seed=1) for r in saddle_rows(8101)])
    assert set(control) == {"passed", "figure"}
    assert json.loads(json.dumps(control)) == control


def test_a_saddle_that_is_not_left():
    stays = [r._replace(separated_at=r.updates + 1) for r in saddle_rows(8101)]
    assert again.saddle_claim(stays, STUDY).answer == "no"
    short = [r._replace(updates=400, separated_at=401) for r in stays]
    claim = again.saddle_claim(short, STUDY)
    assert (claim.answer, claim.predicted) == ("cannot tell", None)


def test_seeds_made_again_agree_or_differ():
    published = study(spread=1e-2)
    error = max(
        max(a / b, b / a)
        for a, b in (
            (runs["convolution_im2col"], runs["float32"])
            for one in published
            for runs in [{r["arm"]: r["last_frame_loss"] for r in one["runs"]}]
        )
    )

    def judged(**changes):
        new = {**published[0], "runs": [dict(r) for r in published[0]["runs"]]}
        new["runs"][1].update(changes)
        return again.of_seeds([new], published)[1]

    loss = published[0]["runs"][1]["last_frame_loss"]
    assert judged().bits
    assert judged().error == pytest.approx(error)
    assert judged(final_params_sha256="new", last_frame_loss=loss * error * 0.999).holds
    assert not judged(
        final_params_sha256="new", last_frame_loss=loss * error * 1.01
    ).holds
    assert not judged(final_params_sha256="new", last_frame_loss=None).holds
    # A null that diverged does not make everything agree.
    run = next(r for r in published[4]["runs"] if r["arm"] == "convolution_im2col")
    diverge(run)
    assert np.isfinite(judged().error)
    doses = [dict(one, runs=one["runs"][:1]) for one in published]
    with pytest.raises(errors.UserError, match="expected part C"):
        again.of_seeds(doses, doses)
    with pytest.raises(errors.UserError, match="seed"):
        again.of_seeds([{**published[0], "seed": 1}], published)


def test_runs_made_again_agree_or_differ():
    rows = table(**{"ordinary shared 0": (700, 1.1)})
    rows = [row._replace(sha256="old") for row in rows]
    tile = next(r for r in rows if r[:4] == ("ordinary", "tile", 0.0, 2))

    def judged(**changes):
        row = tile._replace(**{"sha256": "new"} | changes)
        return again.of_symmetric([row], rows)[0]

    assert judged(sha256="old", loss=9.0).holds  # Nothing else is looked at.
    assert judged(loss=1.09).holds
    assert judged(loss=1 / 1.09).holds
    assert judged(loss=1.0).error == pytest.approx(1.1)
    assert not judged(loss=1.2).holds
    assert not judged(separated_at=3001).holds
    with pytest.raises(errors.UserError, match="not among"):
        judged(seed=77)


def test_another_order_that_separates_twins_sets_the_error_too():
    rows = table()
    rows += saddle_runs("symmetric", "run", 0.0, 702, 1.05)
    at_zero = {row.arm: row for row in rows if row[:3:2] == ("symmetric", 0.0)}
    found = again.of_symmetric([at_zero["tile"], at_zero["float32"]], rows)
    assert [one.error for one in found] == pytest.approx([1.05, 1.0])
