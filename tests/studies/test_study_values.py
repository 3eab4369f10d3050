"""Numbers in sentences, from runs that the tests make."""

import pytest

from prednet_jax.studies import study_values
from prednet_jax.studies.judgement import CONTROL, FIXED, NULL, RANDOM, STALE


def seed(number, losses, parity=None):
    """A record of one seed: (arm, draw, primary endpoint) of each run."""
    return {
        "seed": number,
        "runs": [
            {
                "arm": arm,
                "draw": draw,
                "last_frame_loss": loss,
                "over_copy": 2 * loss,
                "parity": parity,
                "plateau_left": 100 * number,
                "distance_over_travelled": {"100": draw + 0.25, "250": 0.5},
                "final_distance_from": {f"{FIXED}.0": 0.125},
            }
            for arm, draw, loss in losses
        ],
    }


@pytest.fixture
def runs():
    quiet = [(CONTROL, 0, 1.0), (RANDOM, 0, 1.0), (RANDOM, 1, 1.2), (FIXED, 0, 0.9)]
    first = seed(1, [*quiet, (NULL, 0, 1.0), (STALE, 0, 2.0)])
    second = seed(
        2, [(a, d, 3 * x) for a, d, x in [*quiet, (NULL, 0, 1), (STALE, 0, 1.5)]], 9
    )
    return study_values.frame([first, second])


def test_part_c(runs):
    said = study_values.long_trainings(
        runs,
        {
            "verdict.json": {
                "claims": [{"estimate": 0.0017, "low": -0.0037, "high": 0.0072}]
            },
            "verdict_held_out_loss.json": {"contrasts": []},
        },
    )
    assert said == {
        "C.noise": "+0.17 % [-0.37, +0.72]",
        "C.stale": "1.5 to 2.0 times",
        # A draw of 3.6 against 3.0, of the mean 2.0 without noise.
        "C.furthest": "30 %",
        "C.behind": "1 of the 2",
        "C.behind.over_copying": "2.00",
        "C.over_copying": "4.00",
        "C.plateau_left": "150",
    }


def test_part_e_names_its_seeds(runs):
    said = study_values.article_size(runs)
    assert said["E.random.seeds"] == "+10.0 and +10.0 %"
    assert said["E.fixed.seeds"] == "-10.0 and -10.0 %"
    assert said["E.stale.seeds"] == "2.0 and 1.5 times"
    assert said["E.over_copying.seeds"] == "2.0 and 6.0"
    assert said["E.apart.100"] == "0.25 to 1.25"
    assert said["E.apart.orders"] == "0.12 to 0.12"
