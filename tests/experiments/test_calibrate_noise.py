"""The calibration script, run once, tiny; and its measures without it."""

import json

import numpy as np

from prednet_jax.noise import ReductionOrder, coverage
from prednet_jax.studies import calibration

SCRIPT = "calibrate_noise.py"


def test_a_cpu_repeats_bitwise_and_every_profile_overstates(forked, refused, tmp_path):
    for flag, message in (
        ("--workdir=/dev/null/below", "/dev/null is no directory that can be written"),
        ("--repeats=1", "--repeats=1: expected a whole number, at least 2"),
    ):
        flags = (f"--workdir={tmp_path / 'new'}", flag)
        assert refused(message, SCRIPT, *flags).stdout == ""
        assert not (tmp_path / "new").exists()
    done = forked(SCRIPT, "--repeats=2", f"--workdir={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "vary from run to run: none" in done.stdout
    result = json.loads((tmp_path / "calibration.json").read_text())
    assert result["device"]["platform"] == "cpu"
    assert result["varying"] == []
    rows = {row["primitive"]: row for row in result["primitives"]}
    for row in rows.values():
        assert row["process"]["outputs"] == 1
        for distance in calibration.DISTANCES:
            assert row[distance]["v_c"] == row[distance]["v_ermv"] == 0
    assert rows["dot_general"]["emulated"]["uniform_worst_case"]["v_c"] > 0.05
    # Chainer's dense products were deterministic, its scatters were not.
    assert rows["dot_general"]["emulated"]["chainer_cudnn"] is None
    assert rows["scatter-add"]["emulated"]["chainer_cudnn"]["v_c"] > 0.05


def test_variation_by_hand():
    first = np.ones(4, np.float32)
    other = np.nextafter(first, np.float32(2)) * np.float32([1, 1, 1, 2])
    other[0] = 1
    found = calibration.variation([first, first, other])
    assert found["outputs"] == 2
    assert found["v_c"] == 0.375
    assert calibration.variation([first, first])["v_c"] == 0


def test_each_holds_the_reduction_it_names():
    """And no other float reduction: its variation is that of one primitive."""
    for name, (function, operands) in calibration.reductions(small=True).items():
        # The backend of this process must not start before those of the others.
        assert all(isinstance(x, np.ndarray) for x in operands)
        (entry,) = coverage(function, ReductionOrder())(*operands).perturbed
        primitive = name.split(" ")[0].replace("conv", "conv_general_dilated")
        assert primitive in entry.path
