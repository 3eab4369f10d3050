"""The rule of the verdict: each condition, and its calibration."""

import dataclasses
import json

import numpy as np
import pytest

from prednet_jax.statistics import (
    Evidence,
    Stall,
    decide,
    paired,
    tost_power,
    tost_seeds,
)

SEEDS = 13
RNG = np.random.default_rng(0)
CONTROL = RNG.normal(10, 1, SEEDS)
JITTER = 0.05 * RNG.normal(size=SEEDS)
MARGIN = 0.2


def contrast(effect, margin=MARGIN):
    return paired(CONTROL + effect + JITTER, CONTROL, margin=margin)


BETTER, SAME, WORSE = contrast(-1.0), contrast(0.0), contrast(1.0)
STALL = Stall(stalled=True, negative_curvature=True, small_projection=True)
SUPPORTED = Evidence(
    model="prednet",
    emulated=BETTER,
    null=(SAME,),
    gaussian_matched=BETTER,
    stall=STALL,
)
REFUTED = Evidence(
    model="prednet",
    emulated=SAME,
    null=(SAME,),
    gaussian_matched=SAME,
    gaussian_ladder=((1e-5, SAME), (1e-1, WORSE), (1e-3, SAME)),
    stale=WORSE,
    theory_matched=True,
    units_separated=True,
)


def test_supported_and_refuted():
    assert decide(SUPPORTED).verdict == "supported"
    assert decide(REFUTED).verdict == "refuted"
    assert not decide(REFUTED).unmet_for_refuted
    assert decide(REFUTED).achieved_power > 0.9


@pytest.mark.parametrize(
    "change",
    [
        {"emulated": WORSE},
        {"emulated": SAME},
        {"emulated": contrast(-1.0, margin=2.0)},
        {"null": ()},
        {"null": (contrast(1.5),)},
        {"gaussian_matched": None},
        {"gaussian_matched": SAME},
        {"stall": None},
        {"stall": dataclasses.replace(STALL, stalled=False)},
        {"stall": dataclasses.replace(STALL, negative_curvature=False)},
        {"stall": dataclasses.replace(STALL, small_projection=False)},
    ],
)
def test_supported_needs_each_condition(change):
    verdict = decide(dataclasses.replace(SUPPORTED, **change))
    assert verdict.verdict == "inconclusive"
    assert verdict.unmet_for_supported


@pytest.mark.parametrize(
    "change",
    [
        {"emulated": contrast(0.0, margin=1e-3)},
        {"emulated": contrast(0.3)},
        {"null": ()},
        {"null": (WORSE,)},
        {"stale": None},
        {"stale": SAME},
        {"gaussian_ladder": ()},
        {"gaussian_ladder": ((1e-1, SAME), (1e-3, WORSE))},
        {"theory_matched": None},
        {"theory_matched": False},
        {"units_separated": False},
        {"gpu": contrast(0.5)},
    ],
)
def test_refuted_needs_each_condition(change):
    verdict = decide(dataclasses.replace(REFUTED, **change))
    assert verdict.verdict == "inconclusive"
    assert verdict.unmet_for_refuted


def test_gpu_contrast_is_turned_round():
    # Recorded as deterministic minus noisy: positive means that noise helped.
    helped = decide(dataclasses.replace(SUPPORTED, emulated=SAME, gpu=WORSE))
    assert helped.verdict == "supported"
    assert helped.gpu.mean_difference == WORSE.mean_difference
    assert helped.gpu.p_holm == pytest.approx(2 * WORSE.p_value)
    assert helped.gpu.p_holm_family == "the 2 contrasts in question"
    harmed = decide(dataclasses.replace(SUPPORTED, emulated=SAME, gpu=BETTER))
    assert harmed.verdict == "inconclusive"


def test_sentence_states_the_limits():
    emulated = decide(REFUTED)
    assert emulated.emulated_only
    assert "(Holm over the 1 contrast in question)" in emulated.sentence
    assert "emulated noise only" in emulated.sentence
    with_gpu = decide(dataclasses.replace(REFUTED, gpu=SAME))
    assert with_gpu.verdict == "refuted"
    assert "emulated noise only" not in with_gpu.sentence


def test_more_noise_helps_is_reported_and_supports_nothing():
    ladder = ((1e-1, BETTER), (1e-3, SAME))
    verdict = decide(dataclasses.replace(REFUTED, gaussian_ladder=ladder))
    assert verdict.verdict == "refuted"
    assert verdict.more_noise_helps == (0.1,)
    assert "more noise helps" in verdict.sentence


def test_seeds_still_needed():
    wide = paired(CONTROL + RNG.normal(size=SEEDS), CONTROL, margin=MARGIN)
    verdict = decide(dataclasses.replace(REFUTED, emulated=wide))
    assert verdict.verdict == "inconclusive"
    assert verdict.seeds_needed == tost_seeds(margin=MARGIN, sd=wide.sd_difference)
    assert verdict.seeds_still_needed == verdict.seeds_needed - SEEDS
    assert str(verdict.seeds_still_needed) in verdict.sentence


def test_one_seed_is_no_verdict():
    alone = paired([1.0], [2.0], margin=0.1)
    verdict = decide(Evidence(model="prednet", emulated=alone))
    assert verdict.verdict == "inconclusive"
    assert verdict.seeds_needed is None
    assert json.loads(json.dumps(verdict.as_dict()))["achieved_power"] is None


def test_a_verdict_needs_a_contrast():
    with pytest.raises(ValueError, match="neither"):
        Evidence(model="prednet")


@pytest.fixture(scope="module")
def studies():
    """2000 independent studies of arms that do not differ; sd of the differences 1."""
    rng = np.random.default_rng(7)
    zeros = np.zeros(SEEDS)
    return [
        paired(rng.normal(size=SEEDS), zeros, margin=1.0, n_resamples=200)
        for _ in range(2000)
    ]


def test_null_calibration_of_supported(studies):
    # The hardest case for the rule: a margin so small that it excludes nothing, and
    # every other condition granted, Gaussian noise included.
    quiet = paired(1e-9 * RNG.normal(size=SEEDS), np.zeros(SEEDS), margin=1e-6)
    count = 0
    for study in studies:
        result = dataclasses.replace(study, margin=1e-6, tost_p=1.0)
        granted = dataclasses.replace(
            SUPPORTED, emulated=result, null=(quiet,), gaussian_matched=result
        )
        count += decide(granted).verdict == "supported"
    # One-sided by nature: 2.5 % are expected; none at all would mean a dead rule.
    assert 0.01 < count / len(studies) < 0.05


def test_equivalence_is_refuted_at_the_planned_power(studies):
    planned = tost_power(SEEDS, margin=1.0, sd=1.0)  # the table's 13 seeds
    assert 0.9 <= planned < 0.92
    passed = 0
    for result, null in zip(studies, studies[1:] + studies[:1], strict=True):
        study = dataclasses.replace(
            REFUTED, emulated=result, null=(null,), emulated_pilot_sd=1.0
        )
        passed += decide(study).verdict == "refuted"
    # Three binomial standard deviations, and the rare A/A that shows a difference.
    assert passed / len(studies) == pytest.approx(planned, abs=0.025)


def test_power_is_that_of_the_plan():
    thin = dataclasses.replace(REFUTED, emulated_pilot_sd=1.0)
    verdict = decide(thin)
    assert verdict.verdict == "inconclusive"
    assert verdict.planned_power < 0.1 < 0.9 < verdict.achieved_power
