"""divergence.py as a user runs it: in a process of its own, tiny."""

import json

import numpy as np
import pytest

TINY = ("--model=autoencoder", "--hidden=4", "--updates=12")


@pytest.mark.parametrize("noise", [None, "gradient_gaussian:scale=1e-5"])
def test_the_distance_grows_from_a_tiny_difference(forked, tmp_path, noise):
    extra = [f"--noise={noise}"] if noise else []
    done = forked("divergence.py", *TINY, f"--workdir={tmp_path}", *extra)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "divergence.json").read_text())
    distance = np.array([np.nan if d is None else d for d in result["distance"]])
    assert len(distance) == len(result["travelled"]) == 13
    assert len(result["losses"][0]) == len(result["losses"][1]) == 12
    if noise:
        assert distance[0] == 0.0  # the same weights; the noise does it
    else:
        # Some 7000 weights of order 0.04, each moved by an ulp of about 2e-9.
        assert 1e-8 < distance[0] < 1e-5
    assert (distance[1:] > 0).all()
    assert (distance[1:] < 0.1 * np.array(result["travelled"])[1:]).all()
    found = result["exponent"]
    assert found["low"] < found["rate"] < found["high"]
    span = found["last"] - found["first"]
    slope = np.log(distance[found["last"]] / distance[found["first"]]) / span
    assert found["rate"] == pytest.approx(slope)
    assert result["statement"].startswith(f"exponent {slope:.4f} per update")
    assert result["statement"] in done.stdout


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--updates=4", "--updates=4: expected a whole number, at least 5"),
        ("--noise=thermal", "thermal"),
        ("--data=/nowhere.npz", "/nowhere.npz"),
    ],
)
def test_bad_flags_end_in_one_line(refused, tmp_path, flag, message):
    refused(message, "divergence.py", *TINY, flag, f"--workdir={tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()
