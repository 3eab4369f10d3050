"""Every script as a user runs it: mistakes end in one line; the small ones, tiny."""

import errno
import json
import math
import os
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from runs_on_disk import TINY

import prednet_jax
from prednet_jax import (
    PredNetConfig,
    files,
    records,
    statistics,
    tasks,
    weights,
)
from prednet_jax.noise import ReductionOrder, coverage
from prednet_jax.saddles.measured_escapes import EVENTS
from prednet_jax.training import calibration
from tests.processes import ROOT, SCRIPTS, python

WINDOWS = "--sampling=windows"
BEST = "--validate_every=2 --keep_best=1 --checkpoint_every=3"
TASK = "tests.experiments.tiny_task:TINY"
GIVEN = f"--init_weights={ROOT}/tests/golden/chainer_tiny/initial.model.npz"
DIGITS = "--data=moving_digits --weights=moving_digits"
# By script: flags, and words of the message.
MISTAKES = {
    "train.py": {
        "--nonsense": "nonsense",
        "extra": "extra",
        "--height=9": "height=9: expected a multiple of 2",
        "--pixel_max=2": "--pixel_max=2.0: expected at most 1, since frames of uint8",
        "--init_weights=/no/such/file": "/no/such/file: no such file",
        f"{GIVEN} --channels=3,4,6,16": "--channels=3,4,6,16: expected 3,4,6,8, as in",
        f"{GIVEN} --variant=lotter": "--variant=lotter: expected watanabe, as in",
        "--replicas=2 --seeds=0,1": "--seeds: expected --replicas=N",
        "--keep_best=1": "keep_best=1 keeps the best of several checkpoints: expected",
        "--replicas=3 --devices=2": "replicas=3 with batch=1 on 2 devices",
        "--coordinator=x:1": "--coordinator=x:1 has no effect without --replicas",
        f"--model={TASK}": f"--channels has no effect with --model={TASK}",
        "--model=autoencoder": "--channels has no effect with --model=auto",
        "--hidden=4": "--hidden has no effect with --model=prednet; remove it",
        "--model=resnet": "model='resnet': expected prednet, ",
        "--data=": "--data=: expected a path",
        "--mode=finetune_rollout": "expected --init_weights",
        "--extrapolate_from=3": "no effect without --mode=finetune_rollout",
        "--sequences=3": "--sequences=3 has no effect without --sampling=windows",
        "--rate_floor=0.1": "--rate_floor=0.1 has no effect without --schedule=cosine",
        "--schedule=cosine": "schedule='cosine' needs the rate",
        f"{WINDOWS} --data=digits": "data=digits: single pictures",
        "--validate_every=2 --data=a.mp4": "--data=a.mp4: expected --sampling=windows",
        BEST: "checkpoint_every=3: expected a multiple of validate_every=2",
        f"{WINDOWS} --window=301": "window=301: the longest sequence",
    },
    "predict.py": {
        "--layers=R9": "--layers=R9: layer='R9': expected",
        f"{DIGITS} --start=10 --frames=20": "--frames=20: expected a sum of at most 20",
        "--frames=900000000": "--frames=900000000: expected a whole number, from 2 to",
        "--frames=9 --extrapolate_from=-1": "expected a whole number, from 1 to 8",
        "--frames=9 --extrapolate_from=9": "expected a whole number, from 1 to 8",
    },
    "evaluate.py": {
        "--ssim_range=0": "--ssim_range=0.0: expected",
        "--ssim_range=1e23": "--ssim_range=1e+23: expected a number from 1e-6 to 1e9",
        "--sequences=-1": "--sequences=-1: -1 is not a non-negative integer; expected",
        "--sequences=5000": "sequences=5000, frames=100: there are",
        "--frames=1": "frames=1: expected a whole number, at least 2",
        "--extrapolate_from=-1": "extrapolate_from=-1: expected",
        "--data=walk --split=all --sequences=0": "--data=walk: it has no end; expected",
    },
    "sweep.py": {
        "--models=resnet": "model='resnet'",
        "--seeds=a": "--seeds=a: expected whole numbers",
        "--arms=gpu": "arm='gpu': no GPU found",
        "--arms=threads_9999": "arm='threads_9999': threads=9999",
        "--data=/no/such/place": "/no/such/place",
        "--setting=windows=5": "setting='windows=5': train.py: Unknown command line",
        "--setting=window=few": "setting='window=few': train.py: flag --window=few",
        "--setting=updates=7 --updates=20": "--updates is given too",
    },
    "benchmark.py": {
        "--repeats=0": "--repeats=0: 0 is not an integer in the range [1, 1000000]",
        "--window=99999999999": "is not an integer in the range [2, 1000000]; expected",
        "--suite=foreign --networks=rnn": "networks='rnn': expected",
        "--suite=foreign --batch=4": "--batch has no effect with --suite=foreign",
        "--torch_python=/no/python": "--torch_python=/no/python: expected a Python",
    },
    "convert_weights.py": {
        "--input=walk --height=48": "--height=48: expected 24, as in walk",
        "--input=walk --pixel_max=2": "--pixel_max=2.0: expected 1.0, as in walk",
    },
    "calibrate_noise.py": {
        "--workdir=/dev/null/x": "/dev/null is no directory that can be written",
        "--repeats=1": "--repeats=1: 1 is not integer >= 2; expected integer >= 2",
    },
    "probe_curvature.py": {
        "--updates=0,5": "--updates=0,5: expected numbers from 1",
        "--updates=2147483648": "expected numbers from 1 to 2147483647",
        "--models=": "--models=: expected at least one, each once",
        "--models=autoencoder,autoencoder": "expected at least one, each once",
        "--models=prednet,gan": "model='gan': expected prednet, ",
    },
    "symmetric_start.py": {
        "--arms=": "arms=: expected at least one, each once",
        "--seeds=1,1": "seeds=1,1: expected at least one, each once",
        "--deltas=0,-0": "deltas=0.0,-0.0: expected at least one, each once",
        "--deltas=0,nan": "delta=nan: expected a number from 0 to below 1",
    },
    "on_gpu.py": {
        "--minutes=nan": "--minutes=nan: expected a finite number above 0",
        "--minutes=1e400": "--minutes=1e400: inf is not a number in the range [0.5",
    },
    "saddle_escape.py": {
        "--functions=banana": "octopus",
        "--first_key=2147483647": "--first_key=2147483647: expected a whole number",
        "--noise=fog:thick=1": "fog",
        "--steps=4294967296": "--steps=4294967296: expected a whole number below 21474",
    },
}
# What each is told beside the mistake: where it would write.
BESIDE = {
    "train.py": (*TINY, "--workdir={}"),
    "predict.py": ("--weights=walk", "--workdir={}"),
    "evaluate.py": ("--weights=walk", "--output={}"),
    "sweep.py": ("--workdir={}", "--dry_run"),
    "benchmark.py": (),
    "convert_weights.py": ("--output={}.safetensors",),
}


@pytest.mark.parametrize(
    ("script", "flags"),
    [(script, flags) for script, found in MISTAKES.items() for flags in found],
)
def test_mistakes_end_in_one_line_and_status_two(refused, tmp_path, script, flags):
    beside = BESIDE.get(script, ("--workdir={}",))
    words = (*(flag.format(tmp_path / "never") for flag in beside), *flags.split())
    assert refused(MISTAKES[script][flags], script, *words).stdout == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("script", sorted(p.name for p in SCRIPTS.glob("[a-z]*.py")))
def test_help_has_the_purpose_three_examples_and_every_flag(forked, script):
    text = forked(script, "--help").stdout
    assert text.split("\n\n")[0].rstrip().endswith((".", "?"))
    before = text.partition("\n  --")[0]
    examples = re.findall(r"^ {4}(?:python|make) .*", before, re.MULTILINE)
    assert len(examples) >= 3
    shown = re.findall(r"^  --(?:\[no\])?(\w+): \S", text, re.MULTILINE)
    assert len(shown) == len(set(shown))
    source = (SCRIPTS / script).read_text()
    own = re.findall(r'flags\.DEFINE_\w+\(\s*"(\w+)"', source)
    if "define_setup_flags" in source:
        own += ["models", "channels", "data", "window", "updates", "workdir"]
    assert set(own) <= set(shown)


@pytest.mark.fault
@pytest.mark.parametrize(
    "command",
    [("train.py",), ("sweep.py", "--seeds=0,1"), ("compare_backends.py", "--seeds=2")],
)
def test_a_second_one_in_the_same_directory_is_refused(tmp_path, refused, command):
    """Refused in one line, which names the first; nothing changes."""
    held = tmp_path / "held"
    with files.hold(held):
        before = sorted(path.name for path in held.iterdir())
        refused(f"in use by process {os.getpid()}", *command, f"--workdir={held}")
        assert sorted(path.name for path in held.iterdir()) == before


def test_the_commands_of_a_sweep_are_exact(forked, tmp_path):
    done = forked("sweep.py", *TINY[:5], f"--workdir={tmp_path}/out", "--dry_run")
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert all("--updates=6" in line and "--threads=1" in line for line in lines)
    assert not list(tmp_path.iterdir())


def test_seeds_are_fresh_unless_given_and_stay_those_of_an_interrupted_one(
    forked, tmp_path
):
    def dry(*arguments):
        flags = ("--dry_run", f"--workdir={tmp_path}", *arguments)
        done = forked("compare_backends.py", *flags)
        return re.search(r"--seeds=(\S+)", done.stdout)[1].split(",")

    first, other = dry(), dry()
    assert len(first) == len(other) == 3
    assert first != other
    assert dry("--seeds=2") == ["3000", "3001"]
    assert dry("--first_seed=7") == ["7", "8", "9"]
    rung = {"seeds": 3, "updates": 1000, "without": ["saddle"]}
    plan = {"first_seed": 5, "rung": rung, "minutes": 5.0}
    records.write_json(tmp_path / "plan.json", plan)
    assert dry() == ["5", "6", "7"]
    assert dry("--minutes=5") == ["5", "6", "7"]
    assert dry("--minutes=4") != ["5", "6", "7"]
    assert dry("--seeds=2") == ["3000", "3001"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--minutes=0",), "--minutes=0.0: expected 0.5 or more"),
        (("--minutes=3", "--seeds=2"), "--minutes=3 with --seeds: "),
        (("--minutes=3", "--window=9"), "window 9 instead of 10; give --seeds and"),
    ],
)
def test_minutes_that_cannot_decide_the_size_are_refused(
    refused, tmp_path, flags, message
):
    refused(message, "compare_backends.py", f"--workdir={tmp_path}/out", *flags)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("batch", [1, 2])
def test_the_last_line_of_a_benchmark_is_an_object(forked, batch):
    sizes = ("--channels=2", "--height=4", "--width=4", "--window=2", "--repeats=1")
    done = forked("benchmark.py", "--suite=step", f"--batch={batch}", *sizes)
    found = json.loads(done.stdout.splitlines()[-1])
    frames = found["seconds_per_window"] * found["frames_per_second"]
    assert frames == pytest.approx(2 * batch)
    network = tasks.of(PredNetConfig(channels=(2,), height=4, width=4))
    assert found["parameters"] == network.weights


def test_weights_that_cannot_be_written_are_refused_and_nothing_is_touched(
    tmp_path, refused
):
    config, path = PredNetConfig(channels=(3, 4), height=8, width=12), "start.npz"
    params = prednet_jax.init_params(config, jax.random.key(0))
    weights.save_chainer(tmp_path / path, config, params)
    (tmp_path / "w.json").write_text("mine")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for source, target, message in (
        (path, path, "start.npz exists; expected a new"),
        (path, "w.pt", "suffix '.pt'"),
        (path, "v.hdf5", "v.hdf5: variant='watanabe': expected 'lotter'"),
        (path, "w.hdf5", "w.json exists;"),
        (path, "new/w.npz", "no directory"),
        (path, "start.npz/w", "start.npz is no directory that can be written"),
        (path, ".", "exists, and is a directory; expected a new path"),
        (path, "/dev/null", "exists, and is a pipe or a device; expected a new path"),
        ("missing.npz", "w", "missing.npz"),
    ):
        words = (f"--input={source}", f"--output={target}")
        refused(message, "convert_weights.py", *words, folder=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_cpu_repeats_bitwise_and_every_profile_overstates(forked, tmp_path):
    done = forked("calibrate_noise.py", "--repeats=2", f"--workdir={tmp_path}")
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

    # By hand: one of three results differs, in three of four elements.
    first = np.ones(4, np.float32)
    other = np.nextafter(first, np.float32(2)) * np.float32([1, 1, 1, 2])
    other[0] = 1
    found = calibration.variation([first, first, other])
    assert (found["outputs"], found["v_c"]) == (2, 0.375)
    assert calibration.variation([first, first])["v_c"] == 0


def test_each_calibration_holds_the_reduction_it_names():
    """And no other float reduction: its variation is that of one primitive."""
    for name, (function, operands) in calibration.reductions(small=True).items():
        # The backend of this process must not start before those of the others.
        assert all(isinstance(x, np.ndarray) for x in operands)
        (entry,) = coverage(function, ReductionOrder())(*operands).perturbed
        primitive = name.split(" ")[0].replace("conv", "conv_general_dilated")
        assert primitive in entry.path


PROBE = ("--steps=6", "--starts=1", "--windows=2", "--images=4", "--hidden=4")
PROBE += ("--channels=3", "--height=4", "--width=4", "--window=2", "--updates=3,1")


# Hessian products of PredNet take long to compile (tests/models/test_unroll.py).
@pytest.mark.parametrize(
    "model", ["autoencoder", pytest.param("prednet", marks=pytest.mark.slow)]
)
def test_the_curvature_of_a_network_is_probed(forked, tmp_path, model):
    words = (f"--models={model}", f"--workdir={tmp_path}")
    done = forked("probe_curvature.py", *words, *PROBE)
    rows = json.loads((tmp_path / "probe_curvature.json").read_text())["rows"]
    assert [(row["model"], row["update"]) for row in rows] == [(model, 1), (model, 3)]
    for row in rows:
        for found in (row["raw"], row["preconditioned"]):
            proved = found["negative_curvature_proved"]
            assert proved == (found["lowest"] + found["rounding"] < 0)
        state = row["escape"]
        assert (state is not None) == row["preconditioned"]["negative_curvature_proved"]
        if state:
            assert state["growth_per_update"] > 1
            # The two answers are one formula: noise as asked, and noise for an update.
            ratio = (state["noise"] / state["noise_for_one_update"]) ** 2
            r = state["growth_per_update"]
            saved = 0.5 * math.log1p(ratio * (r * r - 1)) / math.log(r)
            assert state["updates_saved"] == pytest.approx(saved, rel=1e-6)
    # The untrained autoencoder stands at a saddle (measured here and in the notes).
    saddle = rows[0]["preconditioned"]["negative_curvature_proved"]
    assert saddle or model == "prednet"
    assert "proves nothing" in done.stdout
    shown = [line.split()[:2] for line in done.stdout.splitlines()]
    assert [model, "3"] in shown


def test_the_table_of_escapes_shows_who_leaves(forked, tmp_path):
    words = ("--functions=quadratic_quartic", "--precision=float32", "--keys=8")
    words += ("--optimizers=gradient_descent,heavy_ball", "--steps=150")
    words += ("--noise=gradient_gaussian:scale=1e-3", f"--workdir={tmp_path}")
    done = forked("saddle_escape.py", *words)
    groups = json.loads((tmp_path / "saddle_escape.json").read_text())["groups"]
    found = {(g["optimizer"], g["form"], g["noise"][:8]): g for g in groups}
    assert len(found) == len(groups) == 8
    assert not any(found["gradient_descent", "aligned", "none"]["escaped"])
    assert all(found["gradient_descent", "rotated", "none"]["escaped"])
    noisy = found["heavy_ball", "aligned", "gradient"]
    assert all(noisy["arrived"])
    assert noisy["arrival_p_holm"] < 0.05
    assert "left after" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if "aligned" in line]
    assert any("never" in row for row in rows)
    # Corrected over the whole table; without noise there is nothing to compare.
    keys = [(g, event) for g in groups if g["noise"] != "none" for event in EVENTS]
    raw = [g[f"{event}_p"] for g, event in keys]
    corrected = [g[f"{event}_p_holm"] for g, event in keys]
    assert corrected == pytest.approx(statistics.holm_p_values(raw))
    assert found["gradient_descent", "aligned", "none"]["escape_p"] is None


@pytest.mark.fault
def test_a_path_of_any_characters_is_used_as_it_is(train, forked, tmp_path):
    """Train, go on, start from it, predict and convert; no library reads a pattern."""
    folder = tmp_path / "a[1]*?{b,c}%20~$HOME\\d\ne é日 gs:" / "-run"
    trace = f"--profile={folder}/trace"
    train(*TINY, f"--workdir={folder}", trace)
    train(f"--workdir={folder}", "--resume", "--updates=8", trace)
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["6", "8"]
    assert list((folder / "trace").rglob("*.trace.json.gz"))
    words = (f"--init_weights={folder}/checkpoints/8", "--updates=1", "--window=4")
    train(*words, f"--workdir={folder}/next")
    for output in ("orbax[0]", "w[0].npz"):
        place = folder / output
        forked("convert_weights.py", f"--input={folder}", f"--output={place}")
        assert weights.load(place)[0].channels == (3, 4)
    words = (f"--weights={folder}/orbax[0]", "--frames=3")
    forked("predict.py", *words, f"--workdir={folder}/shown")
    assert (folder / "shown" / "scores.json").exists()


@pytest.mark.fault
def test_a_run_in_a_directory_named_as_a_checkpoint_is_read(train, forked, tmp_path):
    """It was announced, and then sought in the parent's parent."""
    folder = tmp_path / "checkpoints" / "6"
    train(*TINY, f"--workdir={folder}")
    words = (f"--weights={folder}", "--frames=3", f"--workdir={tmp_path}/shown")
    forked("predict.py", *words)
    assert weights.load(folder / "checkpoints" / "6")[0].channels == (3, 4)


@pytest.mark.fault
def test_a_path_that_is_no_text_is_used_as_it_is(train, tmp_path):
    folder = tmp_path / "\udcff"
    assert r"\udcff" in train(*TINY, f"--workdir={folder}").stdout
    train(f"--workdir={folder}", "--resume", "--updates=8")


@pytest.mark.fault
def test_a_file_whose_name_starts_with_a_tilde_is_no_home(train, tmp_path):
    """A run that was trained on it ended in a traceback when it was to go on."""
    np.save(tmp_path / "~frames.npy", np.zeros((9, 8, 8, 3), np.uint8))
    folder = tmp_path / "run"
    flags = ("--data=./~frames.npy", f"--workdir={folder}", "--channels=3,4")
    size = ("--height=8", "--width=8", "--window=4", "--updates=2")
    train(*flags, *size, folder=tmp_path)
    # A file of somebody's own beside the run, and one that an interruption left.
    (folder / ".mine.tmp").touch()
    (leftover := files.aside(folder / "weights.npz")).touch()
    train(flags[1], "--resume", "--updates=3", folder=tmp_path)
    assert (folder / ".mine.tmp").exists()
    assert not leftover.exists()


@pytest.mark.fault
def test_a_path_that_cannot_be_is_refused_before_the_first_update(refused, tmp_path):
    long = "x" * 256
    # The training ended well, and its path led nowhere.
    gone = f"--workdir={tmp_path}/never/../x"
    for flag in ("--workdir=/proc/x", f"--workdir={tmp_path}/{long}", gone):
        refused(flag[:25], "train.py", *TINY, flag)
    never = f"--workdir={tmp_path}/never"
    for flags in ("--profile=/proc/x", f"--profile={tmp_path}/{long}"):
        refused("--profile=", "train.py", *TINY, never, flags)
    refused("name too long", "train.py", "--updates=5", never, f"--init_weights={long}")
    widths = "--channels=" + ",".join(["1"] * 20_001)
    refused("20001 layers", "train.py", never, widths)
    refused("data=", "train.py", *TINY, never, f"--data={tmp_path}/{long}")
    refused(
        "--output=/proc/x", "convert_weights.py", "--input=walk", "--output=/proc/x"
    )
    refused("--workdir=/sys/x", "sweep.py", "--workdir=/sys/x", "--dry_run")
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_result_is_not_replaced(refused, tmp_path):
    """The scores of weights took the place of the weights."""
    for script, flag in {"evaluate.py": "output", "gpu.py": "record"}.items():
        path = tmp_path / "w.safetensors"
        path.write_bytes(b"weights")
        message = f"--{flag}={path}: exists, and is no JSON file; expected a new path"
        for written in (path, f"{path}/"):  # Without the slash it would be replaced.
            refused(message, script, f"--{flag}={written}")
        assert path.read_bytes() == b"weights"
    refused("--directory=: expected a path", "report.py", "--directory=")
    home = f"--directory={Path.home()}/never: no verdict.json"
    refused(home, "report.py", "--directory=~/never")


def test_what_is_no_directory_is_refused(refused, tmp_path):
    """It trained into the current directory, and made a directory named ~."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for workdir, message in (
        ("", "--workdir=: expected a directory"),
        ("~/../dev/null/x", f"--workdir={Path.home()}/../dev/null/x: "),
        (f"{tmp_path}/link/run", "link is no directory"),
    ):
        words = ("train.py", "--updates=1", f"--workdir={workdir}")
        refused(message, *words, folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


@pytest.mark.parametrize("early", [True, False])
def test_an_interrupt_while_a_script_imports_is_one_line(tmp_path, early):
    """Early: while absl is imported, which is the first that takes long."""
    code = "import _cli; raise KeyboardInterrupt()"
    if early:
        (tmp_path / "absl.py").write_text("raise KeyboardInterrupt()")
    path = f"{SCRIPTS}:{tmp_path}"
    done = python("-c", code, status=130, PYTHONPATH=path)
    assert done.stderr == "-c: interrupted\n"


def test_an_interrupt_in_a_callback_is_not_lost():
    """Python printed the traceback of one in a callback of JAX, and ran on."""
    code = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell may ignore it.
import _cli, gc, time
gc.callbacks.append(lambda *_: signal.raise_signal(signal.SIGINT))
gc.collect()
gc.callbacks.clear()
time.sleep(60)
"""
    done = python("-c", code, status=130, PYTHONPATH=str(SCRIPTS))
    assert done.stderr == "-c: interrupted\n"


def test_a_platform_that_is_not_here_is_one_line(tmp_path):
    words = ("--input=walk", f"--output={tmp_path}/w.h5")
    script = str(SCRIPTS / "convert_weights.py")
    done = python(script, *words, status=2, JAX_PLATFORMS="nope")
    assert done.stderr.count("\n") == 1
    assert "JAX_PLATFORMS=nope: Unable to initialize backend" in done.stderr


def test_control_codes_of_a_name_do_not_reach_the_terminal(refused, tmp_path):
    folder = tmp_path / "\x1b[31mred\x07"
    folder.mkdir()
    words = ("train.py", f"--workdir={tmp_path}/run", f"--data={folder}")
    done = refused(r"\x1b[31mred\x07", *words)
    assert "\x1b" not in done.stderr


@pytest.mark.fault
def test_a_gpu_that_fails_in_a_run_is_one_line(monkeypatch):
    """Status 1, and how to continue; another error of JAX keeps its traceback."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import _cli

    lost = jax.errors.JaxRuntimeError("INTERNAL: CUDA error: device lost\nBacktrace")
    line, status = _cli._ending(lost)
    assert status == 1
    assert "(INTERNAL: CUDA error: device lost)" in line
    assert "--resume" in line
    assert _cli._ending(jax.errors.JaxRuntimeError("INTERNAL: a fault")) is None


@pytest.mark.fault
def test_a_full_disk_is_one_line(monkeypatch):
    """Status 1 and a line that names the file and says what to make fewer."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import _cli

    full = OSError(errno.ENOSPC, "No space left on device", "runs/x")
    monkeypatch.setattr(_cli, "FLAGS", ["keep_checkpoints"])
    said, status = _cli._ending(full)
    assert status == 1
    assert said.startswith("the disk is full (runs/x): expected room, or fewer --keep_")


@pytest.mark.fault
@pytest.mark.parametrize(
    ("number", "status"), [(errno.EIO, 1), (errno.EFBIG, 1), (errno.EEXIST, 2)]
)
def test_what_a_system_cannot_do_is_one_line(monkeypatch, number, status):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import _cli

    line, ended = _cli._ending(OSError(number, "", "runs/x"))
    assert (ended, line.partition("; ")[0].split(": exp")[0]) == (
        status,
        f"runs/x: {os.strerror(number)}",
    )
    assert _cli._ending(OSError(errno.EBADF, "", "runs/x")) is None
    # A file that was open when its disk became read-only.
    line, ended = _cli._ending(OSError(errno.EROFS, ""))
    assert (ended, line.partition(": ")[0]) == (1, "Read-only file system")


def test_a_pipe_instead_of_a_manifest_is_refused(refused, tmp_path):
    os.mkfifo(tmp_path / "manifest.json")
    (tmp_path / "weights.npz").write_bytes(b"")
    words = (f"--weights={tmp_path}", f"--workdir={tmp_path}/out")
    refused("manifest.json: is a pipe", "predict.py", *words)
