"""Paired contrasts by hand, and Holm's correction against statsmodels."""

import json
import math

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from prednet_jax.statistics import holm, paired, sign_flip


def test_draws_are_averaged_inside_the_seed():
    treatment = np.arange(24.0).reshape(8, 3) ** 1.5
    control = np.linspace(3, 9, 8)
    folded = paired(treatment, control, margin=1.0)
    assert folded == paired(treatment.mean(axis=1), control, margin=1.0)
    assert folded.n == 8
    assert folded.p_holm is None


def test_fields_by_hand():
    control = np.full(6, 10.0)
    d = np.asarray([-3.0, -0.5, 0.0, 0.25, 1.0, 2.0])
    result = paired(control + d, control, margin=0.75)
    assert result.mean_difference == pytest.approx(d.mean())
    assert result.max_abs_difference == 3.0
    assert (result.seeds_lower, result.seeds_higher) == (2, 3)
    assert (result.seeds_gaining, result.seeds_losing) == (1, 2)
    assert (result.treatment_mean, result.control_mean) == (control[0] + d.mean(), 10)
    # Six seeds: all of them but one pattern in 64 on either side, the extreme seeds.
    assert (result.ci_low, result.ci_high) == pytest.approx((-3, 2), abs=1e-7)
    assert result.p_value == sign_flip.two_sided(d)
    assert result.tost_p == sign_flip.equivalence(d, 0.75)


def test_reversed():
    rng = np.random.default_rng(1)
    result = paired(rng.normal(size=9), rng.normal(size=9), margin=0.5)
    turned = result.reversed()
    assert turned.ci_high == -result.ci_low
    assert turned.control_mean == result.treatment_mean
    assert turned.seeds_gaining == result.seeds_losing
    assert turned.reversed() == result


def test_equal_arms():
    result = paired(np.arange(8.0), np.arange(8.0), margin=0.1)
    assert (result.mean_difference, result.ci_low, result.ci_high) == (0, 0, 0)
    assert result.p_value == 1.0
    assert result.tost_p == 1 / 2**8
    assert result.verdict == "equivalent"
    assert result.bitwise_equal
    assert not paired([1.0 + 1e-15], [1.0], margin=0.1).bitwise_equal


def test_constant_differences_up_to_rounding_are_one_value():
    control = np.array([0.1, 0.7, 1.3, 2.9, 3.1, 4.7, 5.9, 6.1])
    result = paired(control + 0.3, control, margin=0.1)
    assert result.ci_low == result.ci_high == result.mean_difference
    assert result.sd_difference == 0
    assert result.p_value == 2 / 2**8
    assert result.tost_p == 1.0
    assert result.verdict == "higher loss"


def test_one_seed_claims_nothing():
    result = paired([1.0], [2.0], margin=0.1)
    assert result.p_value == 1.0
    assert result.verdict == "inconclusive"
    record = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert record["ci_low"] is None
    assert record["sd_difference"] is None


def test_words():
    d = np.array([0.1, -0.2, 0.05, 0.0, 0.15, -0.1, 0.02, -0.03])
    assert paired(d, np.zeros(8), margin=0.3).verdict == "equivalent"
    assert paired(d, np.zeros(8), margin=0.01).verdict == "inconclusive"
    assert paired(d - 1, np.zeros(8), margin=0.01).verdict == "lower loss"


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
    with pytest.raises(ValueError, match="label='arm'"):
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


@pytest.mark.parametrize("option", [{"alpha": 0.0}, {"alpha": 1.0}])
def test_bad_options_are_named(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        paired([1.0, 2.0], [1.0, 3.0], margin=1.0, **option)
