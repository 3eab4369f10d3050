"""saddle_escape.py as a user runs it, tiny."""

import json

import pytest


def test_the_table_shows_who_leaves(forked, tmp_path):
    folder = tmp_path / "out"
    done = forked(
        "saddle_escape.py",
        "--functions=quadratic_quartic",
        "--optimizers=gradient_descent,heavy_ball",
        "--precision=float32",
        "--noise=gradient_gaussian:scale=1e-3",
        "--keys=8",
        "--steps=150",
        f"--workdir={folder}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    groups = json.loads((folder / "saddle_escape.json").read_text())["groups"]
    found = {(g["optimizer"], g["form"], g["noise"][:8]): g for g in groups}
    assert len(found) == len(groups) == 8
    quiet = found["gradient_descent", "aligned", "none"]
    assert not any(quiet["escaped"])
    rounding = found["gradient_descent", "rotated", "none"]
    assert all(rounding["escaped"])
    noisy = found["heavy_ball", "aligned", "gradient"]
    assert all(noisy["arrived"])
    assert noisy["arrival_p_holm"] < 0.05
    # Predicted from the projection after ten steps: within two steps of the median.
    for optimizer in ("gradient_descent", "heavy_ball"):
        row = found[optimizer, "rotated", "none"]
        assert abs(row["predicted_median"] - row["escape_median"]) <= 2
    assert "left after" in done.stdout


@pytest.mark.parametrize(
    ("flag", "named"),
    [("--functions=banana", "octopus"), ("--noise=fog:thick=1", "fog")],
)
def test_a_bad_value_is_one_line(refused, tmp_path, flag, named):
    refused(named, "saddle_escape.py", flag, f"--workdir={tmp_path}/out")
    assert not (tmp_path / "out").exists()
