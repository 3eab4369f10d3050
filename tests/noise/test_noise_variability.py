"""Measures of the distance between runs, compared with numbers computed by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax.noise import variability

A = {"x": jnp.array([1.0, -2.0, 0.0, 4.0]), "y": (jnp.array([[10.0]]),)}
B = {"x": jnp.array([1.0, -3.0, 0.0, 3.0]), "y": (jnp.array([[10.0]]),)}


def test_by_hand():
    assert variability.v_ermv(A, B) == pytest.approx((0.5 + 0.25) / 5)
    assert variability.v_ermv(B, A) == pytest.approx((1 / 3 + 1 / 3) / 5)
    assert variability.v_c(A, B) == 2 / 5
    assert variability.l2_distance(A, B) == pytest.approx(np.sqrt(2))


def test_zeros_and_nans_against_numbers():
    assert variability.v_ermv(jnp.zeros(2), jnp.array([0.0, 1e-30])) == 0.5
    assert np.isnan(variability.v_ermv(jnp.array([np.nan]), jnp.ones(1)))
    assert variability.v_c(jnp.array([np.nan]), jnp.ones(1)) == 1


def test_churn_of_labels_scores_and_shades():
    labels = np.array([0, 1, 2, 3])
    assert variability.churn(labels, np.array([0, 1, 2, 0])) == 0.25
    scores = np.array([[0.9, 0.1], [0.4, 0.6]])
    assert variability.churn(scores, scores[:, ::-1]) == 1
    assert variability.churn(scores, scores + 0.01) == 0
    shades = variability.churn(
        np.array([0.1, 0.5]),
        np.array([0.1001, 0.51]),
        decide=lambda p: np.rint(255 * p),
    )
    assert shades == 0.5


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_ulps_are_counted_across_zero_and_powers_of_two(dtype):
    tiny = float(jnp.finfo(dtype).smallest_subnormal)
    eps = float(jnp.finfo(dtype).eps)
    a = np.array([1, 1, tiny, 0, -1], jnp.dtype(dtype))
    b = np.array([1 + eps, 1 - eps, -tiny, -0.0, -1 - 3 * eps], jnp.dtype(dtype))
    np.testing.assert_array_equal(variability.ulp_distance(a, b), [1, 2, 2, 0, 3])
    far = variability.ulp_distance(np.full_like(a[:1], np.nan), b[:1])
    np.testing.assert_array_equal(far, [np.iinfo(np.int64).max])


def test_histogram_bins_are_inclusive_above():
    found = variability.ulp_histogram(np.array([0, 0, 1, 2, 3, 4, 5, 1 << 40]))
    assert list(found.items())[:5] == [
        ("0", 2),
        ("1", 1),
        ("2", 1),
        ("3-4", 2),
        ("5-8", 1),
    ]
    assert found[">65536"] == 1
    assert sum(found.values()) == 8


@pytest.mark.parametrize(
    ("measure", "a", "b", "message"),
    [
        (variability.v_c, A, {"x": A["x"]}, "the same structure"),
        (variability.v_c, np.ones(2), np.ones(3), r"shapes \(2,\) and \(3,\)"),
        (variability.v_c, {}, {}, "without elements"),
        (variability.churn, np.ones((2, 1)), np.ones((2, 1)), r"shape \(2, 1\)"),
        (variability.ulp_distance, np.ones(2), np.ones(2, np.float16), "float16"),
    ],
)
def test_what_cannot_be_compared_is_refused(measure, a, b, message):
    with pytest.raises(ValueError, match=message):
        measure(a, b)


def test_spread_and_shift():
    """By hand: two samples 2 apart about a mean that is 1 away, norm 5."""
    clean = {"a": np.array([3.0]), "b": np.array([4.0])}
    samples = [
        {"a": np.array([4.0]), "b": np.array([3.0])},
        {"a": np.array([4.0]), "b": np.array([5.0])},
    ]
    spread, shift = variability.spread_and_shift(clean, samples)
    assert spread == pytest.approx(np.sqrt(2.0) / 5)
    assert shift == pytest.approx(1.0 / 5)
    assert variability.spread_and_shift(clean, [clean, clean]) == (0.0, 0.0)
    with pytest.raises(ValueError, match="1 samples: expected two or more"):
        variability.spread_and_shift(clean, samples[:1])
    with pytest.raises(ValueError, match="a reference of zeros"):
        variability.spread_and_shift({"a": np.zeros(2)}, [{"a": np.ones(2)}] * 2)
