import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from prednet_jax import AutoencoderConfig, PredNetConfig, errors, process, runs, tasks
from prednet_jax.runs import Role

PREDNET = tasks.of(PredNetConfig(channels=(3, 6, 12), height=24, width=32))
FIVE = tasks.of(PredNetConfig(channels=(5, 6)))
BOTH = (PREDNET, tasks.of(AutoencoderConfig()))


def design(root, tasks=BOTH, **options):
    return runs.Design(root=root, script="train.py", tasks=tasks, **options)


def test_commands_are_exact_and_what_cannot_run_here_is_skipped_with_the_reason(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(process, "gpu_found", lambda: None)
    plan = design(tmp_path, arms=("gpu", "threads_1", "threads_9999"), seeds=2)
    gpu, (arm, reason) = plan.skipped
    assert gpu == ("gpu", "no GPU found")
    assert arm == "threads_9999"
    assert reason.startswith("threads=9999: expected a whole number")
    names = [job.arm.name for job in plan.runs() if job.model == "prednet"]
    assert names == ["float32", "reduction_order", "reduction_order", "threads_1"]
    first, second = (shlex.split(job.command_line) for job in plan.runs()[1:3])
    assert first[0] == "JAX_PLATFORMS=cpu"
    assert "--noise=reduction_order" in first
    assert "--seeds=3000,3001" in first
    # Another draw: other keys in another folder, and nothing else.
    changed = {"--draw=1", f"--workdir={plan.runs()[2].folder}"}
    assert set(second) - set(first) == changed
    monkeypatch.setattr(process, "gpu_found", lambda: "some GPU")
    with_gpu = design(tmp_path, arms=("gpu",))
    assert with_gpu.skipped == ()
    # The CPU too: initial weights are drawn there.
    (job, *_) = (job for job in with_gpu.runs() if job.arm.name == "gpu")
    assert shlex.split(job.command_line)[0] == "JAX_PLATFORMS=cuda,cpu"


def test_an_arm_of_any_noise_keeps_the_commas_of_its_spec(tmp_path):
    text = "float64,noise:reduction_order:partials=4,granularity=element,noise:ulp,ulp"
    names = runs.arm_names(text.split(","))
    spec = "reduction_order:partials=4,granularity=element"
    assert names == ("float64", f"noise:{spec}", "noise:ulp", "ulp")
    job = design(tmp_path, arms=names, tasks=(PREDNET,)).runs()[4]
    assert f"--noise={spec}" in shlex.split(job.command_line)
    assert job.arm.role == Role.DESCRIPTIVE


def test_what_a_run_would_refuse_is_refused_before(tmp_path):
    for options, message in (
        ({"data": "wakl"}, "data: data='wakl': no such source or file; accepted are"),
        ({"images": "/no/such/place"}, "images: data='/no/such/place'"),
        ({"root": Path(__file__)}, "test_design.py: a file; expected a directory"),
        ({"tasks": (FIVE,)}, r"data: channels=5: frames have 3 \(RGB\) or 1"),
    ):
        with pytest.raises(ValueError, match=message):
            runs.check(design(**{"root": tmp_path} | options))


def test_a_source_has_to_fill_one_window(tmp_path):
    np.savez(tmp_path / "few.npz", frames=np.zeros((6, 24, 32, 3), np.uint8))
    few = {"root": tmp_path / "out", "data": str(tmp_path / "few.npz")}
    with pytest.raises(ValueError, match="window=10: the longest sequence has 6"):
        runs.check(design(**few))
    runs.check(design(window=5, **few))
    assert not few["root"].exists()


def test_lists_may_name_files_outside_where_that_is_allowed(tmp_path):
    """The runs are told, too; without the flag their commands are what they were."""
    Image.fromarray(np.zeros((24, 32, 3), np.uint8)).save(tmp_path / "0.png")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "a.txt").write_text("../0.png\n" * 12)
    plan = {"tasks": (PREDNET,), "data": str(tmp_path / "lists" / "a.txt")}
    inside = design(tmp_path / "out", **plan)
    with pytest.raises(ValueError, match=r"names a file outside .* --allow_outside"):
        runs.check(inside)
    outside = design(tmp_path / "out", allow_outside=True, **plan)
    runs.check(outside)
    flag = "allow_outside"
    assert all(job.flags[flag] == "true" for job in outside.runs())
    assert not any(flag in job.flags for job in inside.runs())


@pytest.mark.parametrize(
    ("flag", "value", "shape"),
    [
        ("layout", "NTCHW", (6, 12, 3, 24, 32)),
        ("crop", "antialias", (12, 16, 16, 3)),
    ],
)
def test_frames_have_a_layout_and_a_crop(tmp_path, flag, value, shape):
    """The message named a flag that neither sweeps nor comparisons had."""
    path = tmp_path / "frames.npy"
    np.save(path, np.zeros(shape, np.uint8))
    plan = {"tasks": (PREDNET,), "data": str(path)}
    with pytest.raises(ValueError, match=f"--{flag}="):
        runs.check(design(tmp_path / "out", **plan))
    chosen = design(tmp_path / "out", **{flag: value}, **plan)
    runs.check(chosen)
    assert all(job.flags[flag] == value for job in chosen.runs())


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--arms="], "--arms=: expected at least one of float32"),
        (["--updates=99999999999"], "--updates=99999999999: expected a whole number"),
    ],
)
def test_a_refused_comparison_leaves_the_earlier_one(refused, tmp_path, flags, named):
    (tmp_path / "runs").mkdir()
    for kept in ("verdict.json", "report.html", "runs/kept"):
        (tmp_path / kept).write_text("earlier")
    before = sorted(tmp_path.rglob("*"))
    done = refused(named, "compare_backends.py", f"--workdir={tmp_path}", *flags)
    assert done.stdout == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_a_failing_arm_is_named(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import sys; print('broken on purpose'); sys.exit(3)")
    plan = runs.Design(root=tmp_path / "out", script=str(script), tasks=BOTH)
    (ended,) = runs.execute(plan.runs()[:1], processes=1)
    failed = r"float32 .* status 3 \(broken on purpose\)"
    with pytest.raises(runs.ProcessError, match=failed) as caught:
        raise ended.error
    # So a comparison ends in this line, such as of a full disk, without a traceback.
    assert isinstance(caught.value, errors.RunError)


def test_arms_by_pattern():
    found = runs.arm("gaussian_0.1")
    assert found.changes == {"noise": "gradient_gaussian:scale=0.1"}
    assert (found.role, found.scale) == (Role.GAUSSIAN, 0.1)
    assert runs.arm("threads_2").changes == {"threads": 2}
    assert runs.arm("convolution_shifted").changes == {"convolution": "shifted"}
    assert runs.arm("threads_2").threads == 2
    with pytest.raises(errors.UserError, match="threads_²': expected one of float32"):
        runs.arm("threads_²")
