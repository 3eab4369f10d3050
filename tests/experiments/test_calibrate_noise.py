"""The calibration script, run once, tiny; and its measures without it."""

import json

import numpy as np
import pytest

from prednet_jax.noise.specs import ReductionOrder
from prednet_jax.studies import calibration


def test_a_cpu_repeats_bitwise_and_every_profile_overstates(forked, tmp_path):
    done = forked(
        "calibrate_noise.py",
        "--primitives=dot_general,scatter-add",
        "--repeats=3",
        "--profile=uniform_worst_case,chainer_cudnn",
        f"--workdir={tmp_path}",
    )
    assert done.returncode == 0, done.stderr
    assert "vary from run to run: none" in done.stdout
    assert (
        "constant here: scatter-add; not perturbed, but varies here: none"
        in done.stdout
    )
    result = json.loads((tmp_path / "calibration.json").read_text())
    assert result["device"]["platform"] == "cpu"
    assert result["varying"] == []
    dot, scatter = result["primitives"]
    for row in (dot, scatter):
        assert row["process"]["outputs"] == 1
        for distance in ("call", "compilation", "process"):
            assert row[distance]["v_c"] == row[distance]["v_ermv"] == 0
            assert row[distance]["ulps"].keys() == row["call"]["ulps"].keys()
        assert row["emulated"]["uniform_worst_case"]["v_c"] > 0.05
    # Chainer's dense products were deterministic, its scatters were not.
    assert dot["emulated"]["chainer_cudnn"] is None
    assert scatter["emulated"]["chainer_cudnn"]["v_c"] > 0.05


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--workdir=/dev/null/below", "/dev/null is no directory that can be written"),
        ("--primitives=dot", "--primitives=dot: expected some of dot_general"),
        ("--profile=", "--profile=: expected at least one profile"),
        ("--profile=other", "profile='other'"),
    ],
)
def test_nothing_is_measured_that_could_not_be_written(
    refused, tmp_path, flag, message
):
    flags = (f"--workdir={tmp_path / 'new'}", flag)
    assert refused(message, "calibrate_noise.py", *flags).stdout == ""
    assert not (tmp_path / "new").exists()


def test_variation_by_hand():
    first = np.ones(4, np.float32)
    other = np.nextafter(first, np.float32(2)) * np.float32([1, 1, 1, 2])
    other[0] = 1
    found = calibration.variation([first, first, other])
    assert found["outputs"] == 2
    assert found["v_c"] == 0.375
    assert found["ulps"]["0"] == 5
    assert found["ulps"]["1"] == 2
    assert calibration.variation([first, first])["v_c"] == 0


def test_each_holds_the_reduction_it_names():
    """And no other float reduction: its variation is that of one primitive."""
    for reduction in calibration.reductions("tiny"):
        # The backend of this process must not start before those of the others.
        assert all(isinstance(x, np.ndarray) for x in reduction.operands)
        (path,) = calibration.perturbed_paths(reduction, ReductionOrder())
        name = reduction.name.split(" ")[0].replace("conv", "conv_general_dilated")
        assert name in path


def test_a_profile_and_a_device_disagree_in_words():
    still, moves = {"v_c": 0.0}, {"v_c": 0.5}

    def row(name, process, noise):
        measured = {"call": still, "compilation": still, "process": process}
        return {"primitive": name, **measured, "emulated": {"p": noise}}

    rows = [row("a", None, moves), row("b", moves, None), row("c", moves, moves)]
    assert calibration.disagreement("p", rows) == (
        "p: perturbed, but constant here: a; not perturbed, but varies here: b"
    )


def test_unknown_shapes_are_refused():
    with pytest.raises(ValueError, match="shapes='large': expected one of tiny"):
        calibration.reductions("large")
