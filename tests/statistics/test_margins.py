"""The margin comes from the pilot and stays as recorded."""

import json

import numpy as np
import pytest

from prednet_jax.statistics import fix_margin, margin


def test_smaller_of_the_two_limits():
    control = np.array([1.0, 2.0, 3.0])  # sd 1
    tight = margin(control, control + 1.0)
    assert tight.value == pytest.approx(0.2)
    assert "fifth of the stale-target gap" in tight.origin
    loose = margin(control, control + 100.0)
    assert loose.value == pytest.approx(0.5)
    assert "half the between-seed" in loose.origin
    assert (loose.n_control, loose.n_stale) == (3, 3)


def test_replicates_do_not_count_as_seeds():
    control = np.array([[0.0, 2.0], [1.0, 3.0], [2.0, 4.0]])
    assert margin(control, [52.0]).half_seed_sd == pytest.approx(0.5)


def test_a_recorded_margin_does_not_move(tmp_path):
    path = tmp_path / "margin.json"
    first = margin([1.0, 2.0, 3.0], [9.0])
    fix_margin(path, first)
    assert json.loads(path.read_text())["value"] == first.value
    assert fix_margin(path, first) == first
    with pytest.raises(ValueError, match="fresh directory"):
        fix_margin(path, margin([1.0, 2.0, 5.0], [9.0]))
    assert [p.name for p in tmp_path.iterdir()] == ["margin.json"]


@pytest.mark.parametrize(
    ("control", "stale", "message"),
    [
        ([1.0], [2.0], "at least 2"),
        ([1.0, 1.0], [2.0], "sd of 0.0"),
        ([1.0, 3.0], [2.0], "gap of 0.0"),
    ],
)
def test_a_pilot_that_cannot_fix_a_margin(control, stale, message):
    with pytest.raises(ValueError, match=message):
        margin(control, stale)
