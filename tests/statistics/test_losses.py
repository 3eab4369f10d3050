"""Contrasts computed again from the losses of a verdict file."""

import json

import numpy as np
import pytest

from prednet_jax.statistics import (
    contrasts_from_losses,
    holm,
    margins_from_losses,
    match,
    paired,
)

RNG = np.random.default_rng(0)
CONTROL = RNG.normal(1, 0.1, 12)
NOISY = CONTROL[:, None] + RNG.normal(0, 0.01, (12, 2))
LOSSES = {
    "prednet": {
        "float32": {str(s): [v] for s, v in enumerate(CONTROL.tolist())},
        "reduction_order": {str(s): v for s, v in enumerate(NOISY.tolist())},
        "float64": {"10": [1.0], "9": [2.0], "99": [3.0]},
    }
}
PAIR = ("reduction_order", "float32")


def test_the_same_as_from_the_arrays_through_json():
    stored = json.loads(json.dumps(LOSSES))
    pairs = [PAIR, ("float64", "float32"), ("gpu", "float32")]
    found = contrasts_from_losses(stored, pairs, {"prednet": 0.02}, metric="loss")
    direct = [
        paired(NOISY, CONTROL, margin=0.02),
        paired([2.0, 1.0], CONTROL[9:11], margin=0.02),
    ]
    assert [r.p_holm for r in found] == [r.p_holm for r in holm(direct)]
    assert [r.ci_low for r in found] == [r.ci_low for r in direct]
    assert [r.n for r in found] == [12, 2]
    assert found[0].metric == "loss"
    assert (found[1].treatment, found[1].control) == ("float64", "float32")


def test_seeds_are_matched_in_numerical_order_and_diverged_ones_left_out():
    arms = {
        "a": {"10": [1.0], "9": [2.0], "3": [None, 1.0], "1": [0.0]},
        "b": {"9": [4.0], "10": [5.0], "3": [1.0], "1": [float("nan")]},
    }
    found = match(arms, "a", "b")
    assert found.seeds == ("9", "10")
    assert found.excluded == ("1", "3")
    np.testing.assert_array_equal(found.treatment - found.control, [-2.0, -4.0])
    with pytest.raises(ValueError, match="no seed with a finite loss"):
        match({"a": {"1": [None]}, "b": {"1": [1.0]}}, "a", "b")


def test_margins():
    (margin,) = margins_from_losses(LOSSES, "float32").values()
    assert margin.value == pytest.approx(0.02 * CONTROL.mean())
    with pytest.raises(ValueError, match="control='gpu': expected one of float32"):
        margins_from_losses(LOSSES, "gpu")
    with pytest.raises(ValueError, match="model='prednet'"):
        contrasts_from_losses(LOSSES, [PAIR], {"autoencoder": 0.1})
