"""Tables of part F, from the records that its scripts write."""

from prednet_jax import records
from prednet_jax.studies import along_tables


def pair(rate):
    return {
        "exponent": {"rate": rate} if rate else None,
        "distance": [0.0] + [2e-6] * 60,
        "travelled": [0.0] + [1.0] * 59 + [2.0],
        "mean_losses": [0.1, 0.101],
    }


def group(noise, passed, p):
    return {
        "noise": noise,
        "escaped": [True] * 4,
        "still": [False] * 3 + [passed < 4],
        "arrived": [True] * passed + [False] * (4 - passed),
        "arrival_p_holm": p,
    }


def test_divergence_shows_median_and_range():
    text = along_tables.divergence({"16x12": [pair(0.01), pair(0.02), pair(None)]})
    assert "| 16x12 | 0.015 (0.010 to 0.020) | 2.0e-06 | 1.0e-06 | +1.000 % |" in text


def test_curvature_has_a_row_for_each_stop():
    stop = {
        "update": 250,
        "loss": 0.1,
        "grad_norm": 0.5,
        "raw": {"lowest": -1.5, "highest": 20.0},
        "preconditioned": {
            "lowest": -200.0,
            "highest": 600.0,
            "negative_curvature_proved": True,
            "finite_difference": {"verdict": "agrees", "reach": 0.3},
        },
        "escape": {
            "step_length": 0.1,
            "step_cosine": -0.0123,
            "growth_per_update": 1.234,
            "updates_saved": 4e-13,
        },
    }
    none = stop | {"update": 500, "escape": None}
    none["preconditioned"] = stop["preconditioned"] | {
        "negative_curvature_proved": False
    }
    scaled = stop["preconditioned"]
    unknown = {"finite_difference": {"verdict": "disagrees", "reach": 0.0}}
    kinked = stop | {"preconditioned": scaled | unknown}
    lines = along_tables.curvature({8550: [stop, none, kinked]}).splitlines()
    begins = "| 8550 | 250 | 0.1 | 0.5 | -1.5, 20 | -2e+02, 6e+02 | proved "
    assert lines[2] == begins + "| agrees | 3.0 | 1.23 | -0.012 | 4e-13 |"
    assert lines[3].endswith("| not found | agrees | - | - | - | - |")
    assert "| disagrees | - | 1.23 |" in lines[4]


def test_octopus_counts_those_that_passed():
    text = along_tables.escape([group("none", 1, None), group("order", 3, 0.04)])
    assert "| `none` | 4 | 4 | 1 | 1 | - |" in text
    assert "| `order` | 4 | 4 | 3 | 1 | " in text


def test_a_table_waits_for_all_of_its_records(tmp_path):
    groups = [group("none", 1, None)]
    records.write_json(tmp_path / "octopus.json", {"groups": groups})
    for seed in along_tables.SEEDS_FOLLOWED[:-1]:
        records.write_json(tmp_path / f"divergence_16x12_{seed}.json", pair(0.1))
    found = along_tables.blocks(tmp_path)
    assert found["study-F-octopus"] == along_tables.escape(groups)
    assert found["study-F-divergence"] == "Not measured yet."
    assert found["study-F-curvature"] == "Not measured yet."
