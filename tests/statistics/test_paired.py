"""Paired contrasts against enumeration, hand calculation and scipy's own paths."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from prednet_jax.statistics import holm, paired, sign_flip, tost


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.integers(-20, 20).map(lambda k: k / 8), min_size=1, max_size=9
    )  # eighths add exactly, so brute force needs no tolerance and ties are frequent
)
def test_sign_flip_equals_brute_enumeration(d):
    observed = abs(sum(d))
    patterns = list(itertools.product([-1, 1], repeat=len(d)))
    extreme = sum(
        abs(sum(s * x for s, x in zip(signs, d, strict=True))) >= observed
        for signs in patterns
    )
    p, method = sign_flip(d)
    assert p == extreme / len(patterns)
    assert "exact" in method


def test_sign_flip_equals_scipy_and_survives_rounding_of_ties():
    d = np.random.default_rng(0).normal(0.4, 1, size=11)
    reference = stats.permutation_test(
        (d,), np.mean, permutation_type="samples", n_resamples=2**11
    )
    assert sign_flip(d)[0] == pytest.approx(reference.pvalue, abs=1e-12)
    # One after another these add to 9e-16 less than numpy's sum in pairs: the observed
    # pattern itself must not be lost to that.
    positive = np.random.default_rng(1).uniform(0.1, 1, 12)
    assert np.cumsum(positive)[-1] < positive.sum()
    assert sign_flip(positive)[0] == 2 / 2**12


def test_monte_carlo_above_the_limit_has_the_plus_one_correction():
    p, method = sign_flip(np.linspace(1, 2, 30))
    assert p == pytest.approx(2e-5, rel=1e-6)  # 2 * (0 + 1) / (99999 + 1)
    assert "Monte Carlo" in method


def test_replicates_are_averaged_inside_the_seed():
    treatment = np.arange(24.0).reshape(8, 3) ** 1.5
    control = np.linspace(3, 9, 8)
    folded = paired(treatment, control, margin=1.0)
    assert folded == paired(treatment.mean(axis=1), control, margin=1.0)
    assert folded.n == 8
    assert folded.p_holm is None


def test_interval_covers_and_follows_shift_and_sign():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=15), rng.normal(size=15)
    result = paired(a, b, margin=0.5)
    assert result.ci_low < result.mean_difference < result.ci_high
    assert result.mean_difference == pytest.approx(np.mean(a - b), rel=1e-12)
    shifted = paired(a + 10, b, margin=0.5)
    assert shifted.ci_low == pytest.approx(result.ci_low + 10, abs=1e-9)
    mirrored = paired(b, a, margin=0.5)
    # The resamples are not mirror images, and a tail of 9999 is known to about 1 %.
    assert mirrored.ci_high == pytest.approx(-result.ci_low, abs=0.05)
    assert result.reversed().ci_high == -result.ci_low
    assert result.reversed().reversed() == result


def test_interval_coverage_is_near_nominal():
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        r = paired(rng.exponential(size=20), np.zeros(20), margin=1.0, n_resamples=500)
        hits += r.ci_low <= 1.0 <= r.ci_high
    # BCa at n = 20 on a skewed distribution covers about 0.91; three binomial sd.
    assert 0.85 < hits / 200 <= 0.99


def test_equal_arms_are_answered():
    result = paired([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], margin=0.1)
    assert (result.mean_difference, result.ci_low, result.ci_high) == (0, 0, 0)
    assert result.p_value == 1.0
    assert result.tost_p == 0.0
    assert result.verdict == "equivalent"
    assert "all differences are equal" in result.ci_method


def test_constant_differences_up_to_rounding_are_one_value():
    control = np.array([0.1, 0.7, 1.3, 2.9, 3.1, 4.7, 5.9, 6.1])
    result = paired(control + 0.3, control, margin=0.1)
    assert result.ci_low == result.ci_high == result.mean_difference
    assert result.tost_p == 1.0
    assert result.p_value == 2 / 2**8
    assert result.verdict == "higher loss"


def test_one_seed_claims_nothing():
    result = paired([1.0], [2.0], margin=0.1)
    assert result.n == 1
    assert result.p_value == 1.0
    assert math.isnan(result.ci_low)
    assert math.isnan(result.tost_p)
    assert result.verdict == "inconclusive"
    assert json.loads(json.dumps(result.as_dict()))["tost_p"] is None


def test_tost_by_hand():
    d = np.array([0.1, -0.2, 0.05, 0.0, 0.15, -0.1])
    se = d.std(ddof=1) / np.sqrt(6)
    upper = stats.t.cdf((d.mean() - 0.3) / se, 5)
    lower = stats.t.sf((d.mean() + 0.3) / se, 5)
    assert tost(d, np.zeros(6), margin=0.3) == pytest.approx(max(upper, lower))
    assert paired(d, np.zeros(6), margin=0.3).verdict == "equivalent"
    assert paired(d, np.zeros(6), margin=0.05).verdict == "inconclusive"


def test_holm_equals_statsmodels():
    rng = np.random.default_rng(3)
    control = rng.normal(size=(4, 8))
    effects = np.array([2.0, 0.0, 1.0, 3.0])
    treatment = control + effects[:, None] + 0.5 * rng.normal(size=(4, 8))
    results = [
        paired(t, c, margin=0.01) for t, c in zip(treatment, control, strict=True)
    ]
    corrected = holm(results)
    raw = [r.p_value for r in results]
    library = multipletests(raw, method="holm")[1]
    assert [r.p_holm for r in corrected] == pytest.approx(library, rel=1e-12)
    smallest = min(range(4), key=raw.__getitem__)
    assert corrected[smallest].p_holm == pytest.approx(4 * raw[smallest])
    assert results[0].p_holm is None
    assert holm([]) == []


def test_holm_decides_the_word():
    control = np.zeros(6)
    treatment = -np.linspace(1, 2, 6)  # p = 2/64, above .05 after correction over two
    alone = paired(treatment, control, margin=0.1)
    assert alone.verdict == "lower loss"
    assert [r.verdict for r in holm([alone, alone])] == ["inconclusive"] * 2


def test_labels():
    result = paired([1.0, 2.0], [1.0, 3.0], margin=1.0).labelled(
        model="prednet", treatment="ulp"
    )
    assert (result.model, result.treatment) == ("prednet", "ulp")
    assert result.reversed().control == "ulp"
    with pytest.raises(ValueError, match="arm"):
        result.labelled(arm="ulp")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, 2.0], [1.0], 0.1), "2 seeds and control 1"),
        (([1.0, math.nan], [1.0, 2.0], 0.1), r"treatment\[1\] is nan"),
        (([1.0], [[[1.0]]], 0.1), "shape"),
        (([], [], 0.1), "at least one seed"),
        (([1.0], [1.0], 0.0), "margin=0.0"),
        (([1.0], [1.0], math.inf), "margin=inf"),
    ],
)
def test_bad_input_is_named(arguments, message):
    treatment, control, margin = arguments
    with pytest.raises(ValueError, match=message):
        paired(treatment, control, margin=margin)


@pytest.mark.parametrize(
    "option", [{"alpha": 0.0}, {"confidence": 1.0}, {"n_resamples": 5}]
)
def test_bad_options_are_named(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        paired([1.0, 2.0], [1.0, 3.0], margin=1.0, **option)
