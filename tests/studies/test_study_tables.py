"""Tables, numbers and figures of the study, from records that the tests make."""

import pandas as pd
import pytest

from prednet_jax.studies import (
    described_tables,
    judgement,
    study_figures,
    study_tables,
    study_values,
)
from prednet_jax.studies.judgement import CONTROL, FIXED, NULL, RANDOM, STALE
from prednet_jax.studies.parts import PARTS
from tests.studies.test_study_judgement import FEW, study


def test_divergence_shows_median_and_range():
    pairs = [
        {
            "frame": "16x12",
            "exponent": {"rate": rate} if rate else None,
            "distance": [0.0] + [2e-6] * 60,
            "travelled": [0.0] + [1.0] * 59 + [2.0],
            "mean_losses": [0.1, 0.101],
        }
        for rate in (0.01, 0.02, None)
    ]
    text = study_tables.divergence(pairs)
    assert "| 16x12 | 0.015 (0.010 to 0.020) | 2.0e-06 | 1.0e-06 | +1.000 % |" in text


def test_curvature_has_a_row_for_each_stop():
    def stop(escape=True, proved=True, verdict="agrees"):
        grown = {
            "step_length": 0.1,
            "step_cosine": -0.0123,
            "growth_per_update": 1.234,
            "updates_saved": 4e-13,
        }
        return {
            "seed": 8550,
            "update": 250,
            "loss": 0.1,
            "grad_norm": 0.5,
            "raw": {"lowest": -1.5, "highest": 20.0},
            "preconditioned": {
                "lowest": -200.0,
                "highest": 600.0,
                "negative_curvature_proved": proved,
                "finite_difference": {"verdict": verdict, "reach": 0.3},
            },
            "escape": grown if escape else None,
        }

    rows = [stop(), stop(escape=False, proved=False), stop(verdict="disagrees")]
    found = study_tables.with_reach(pd.json_normalize(rows))
    lines = study_tables.curvature(found).splitlines()
    begins = "| 8550 | 250 | 0.1 | 0.5 | -1.5, 20 | -2e+02, 6e+02 | proved "
    assert lines[2] == begins + "| agrees | 3.0 | 1.23 | -0.012 | 4e-13 |"
    assert lines[3].endswith("| not found | agrees | - | - | - | - |")
    assert "| disagrees | - | 1.23 |" in lines[4]


def test_octopus_counts_those_that_passed():
    def group(noise, passed, p):
        return {
            "noise": noise,
            "escaped": [True] * 4,
            "still": [False] * 3 + [passed < 4],
            "arrived": [True] * passed + [False] * (4 - passed),
            "arrival_p_holm": p,
        }

    text = study_tables.octopus([group("none", 1, None), group("order", 3, 0.04)])
    assert "| `none` | 4 | 4 | 1 | 1 | - |" in text
    assert "| `order` | 4 | 4 | 3 | 1 | 0.040 |" in text


def test_tables_wait_for_the_last_seed(tmp_path):
    """Nothing is shown of a part before its last record."""
    made = study_tables.described(PARTS["E"], [{}, {}], tmp_path)
    said = "Part E: 2 of 3 recorded. No result before the last."
    assert made == dict.fromkeys(
        ("study-E", "study-E-endpoints", "study-E-separation"), said
    )
    progress = study_tables.progress({"E": (2, 3), "F": (0, 1)}).splitlines()
    assert progress[2:] == ["| E | 2 of 3 | begun |", "| F | 0 of 1 | not begun |"]


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
            judgement.PRIMARY: {
                "claims": [{"estimate": 0.0017, "low": -0.0037, "high": 0.0072}]
            },
            "held_out_loss": {"contrasts": []},
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


def dots(figure):
    """Number of dots inside the panels, and of those beyond an end."""
    inside = beyond = 0
    for row in figure.rows:
        for panel, values in zip(figure.panels, row.values, strict=True):
            shown = sum(panel.low <= value <= panel.high for value in values)
            inside, beyond = inside + shown, beyond + len(values) - shown
    return inside, beyond


def test_a_dot_per_seed_of_every_contrast():
    record = judgement.judge(study(effects={"stale_targets": 0.5}))
    inside, beyond = dots(study_figures.contrasts(record))
    assert inside + beyond == sum(one["n"] for one in record["contrasts"])
    # Stale targets are far outside what the others need.
    assert beyond == len(FEW)


def test_of_two_arms_the_nearer_one_has_the_room():
    found = study(effects={"stale_targets": 3.0})
    inside, beyond = dots(study_figures.against_control("D", found))
    rows = described_tables.compared(found)
    assert inside + beyond == sum(row["n"] for row in rows)
    assert beyond == len(FEW)


def test_part_a_shows_separation_and_loss_of_one_program():
    def effect(program, arm):
        about = {"program": program, "arm": arm, "delta": 0.0}
        return about | {"separated_at": (700, 3001), "over_control": (1, 0.3)}

    found = [effect("symmetric", "tile"), effect("ordinary", "tile")]
    figure = study_figures.saddle(found, "symmetric", 3000)
    assert [row.label for row in figure.rows] == ["delta 0, tile"]
    assert dots(figure) == (4, 0)
