"""Tables of part F, from the records that its scripts write."""

import pandas as pd

from prednet_jax.studies import along_tables


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
    text = along_tables.divergence(pairs)
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
    found = along_tables.with_reach(pd.json_normalize(rows))
    lines = along_tables.curvature(found).splitlines()
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

    text = along_tables.octopus([group("none", 1, None), group("order", 3, 0.04)])
    assert "| `none` | 4 | 4 | 1 | 1 | - |" in text
    assert "| `order` | 4 | 4 | 3 | 1 | 0.040 |" in text
