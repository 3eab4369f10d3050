"""Inputs of train.py: weights and flags agree, messages have names, files open once."""

import errno
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runs_on_disk import TINY

from prednet_jax import PredNetConfig, tasks
from prednet_jax.data import images

SCRIPTS = Path(__file__).parents[2] / "experiments"
WEIGHTS = Path(__file__).parents[1] / "golden" / "chainer_tiny" / "initial.model.npz"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--nonsense"], "nonsense"),
        (["extra"], "extra"),
        (
            ["--updates=2", "--profile=trace"],
            "updates=2: expected at least 3 with profile",
        ),
        (["--height=9"], "height=9: expected a multiple of 2"),
        (["--init_weights=/no/such/file"], "/no/such/file: no such file"),
        (["--replicas=2", "--seeds=0,1"], "--seeds: expected --replicas=N"),
        (["--replicas=3", "--devices=2"], "replicas=3 with batch=1 on 2 devices"),
        (["--coordinator=x:1"], "--coordinator=x:1: expected --replicas or --batch"),
        (
            ["--model=tests.experiments.tiny_task:TINY"],
            "--channels: expected none; tests.experiments.tiny_task:TINY has its own",
        ),
        (["--model=resnet"], "model='resnet': expected prednet, autoencoder or mod"),
        (["--mode=finetune_rollout"], "expected --init_weights"),
        (["--extrapolate_from=3"], "expected --mode=finetune_rollout"),
        (["--sequences=3"], "--sequences=3: expected --sampling=windows"),
        (["--rate_floor=0.1"], "--rate_floor=0.1: expected --schedule=cosine"),
        (["--schedule=cosine"], "rate_schedule='cosine': expected learning_rate"),
        (["--sampling=windows", "--data=digits"], "data=digits: single pictures"),
        (
            ["--validate_every=2", "--data=film.mp4"],
            "--validate_every=2 with --data=film.mp4: expected --sampling=windows",
        ),
        (
            ["--validate_every=2", "--keep_best=1", "--checkpoint_every=3"],
            "checkpoint_every=3: expected a multiple of validate_every=2",
        ),
        (["--sampling=windows", "--window=301"], "window=301: the longest sequence"),
    ],
)
def test_mistakes_end_in_one_line_and_status_two(refused, tmp_path, flags, message):
    folder = tmp_path / "never"
    refused(message, "train.py", *TINY, f"--workdir={folder}", *flags)
    assert not folder.exists()


@pytest.mark.parametrize("flag", ["channels=3,4,6,16", "variant=lotter"])
def test_flags_that_contradict_the_weights(refused, tmp_path, flag):
    words = (f"--workdir={tmp_path}/run", f"--init_weights={WEIGHTS}", f"--{flag}")
    done = refused(f"--{flag}: expected ", "train.py", *words)
    assert str(WEIGHTS) in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("workdir", "message"),
    [
        # It trained into the current directory.
        ("", "--workdir=: expected a directory"),
        # It made a directory named ~.
        ("~/../dev/null/x", f"--workdir={Path.home()}/../dev/null/x: "),
    ],
)
def test_what_is_no_directory_is_refused(refused, tmp_path, workdir, message):
    words = ("train.py", "--updates=1", f"--workdir={workdir}")
    refused(message, *words, folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_link_that_leads_nowhere_is_refused(refused, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    refused("link is no directory", "train.py", f"--workdir={tmp_path}/link/run")


@pytest.mark.parametrize("early", [True, False])
def test_an_interrupt_while_a_script_imports_is_one_line(tmp_path, early):
    """Early: while absl is imported, which is the first that takes long."""
    code = "import _cli; raise KeyboardInterrupt()"
    if early:
        (tmp_path / "absl.py").write_text("raise KeyboardInterrupt()")
    path = os.pathsep.join([str(SCRIPTS), str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 130
    assert done.stderr == "-c: interrupted\n"


def test_control_codes_of_a_name_do_not_reach_the_terminal(refused, tmp_path):
    folder = tmp_path / "\x1b[31mred\x07"
    folder.mkdir()
    done = refused(
        r"\x1b[31mred\x07", "train.py", f"--workdir={tmp_path}/run", f"--data={folder}"
    )
    assert "\x1b" not in done.stderr


@pytest.mark.fault("the disk is full", "ENOSPC of a file that is written")
def test_a_full_disk_is_one_line(monkeypatch):
    """Status 1 and a line that names the file and says what to make fewer."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import _cli

    full = OSError(errno.ENOSPC, "No space left on device", "runs/x")
    monkeypatch.setattr(_cli, "FLAGS", ["keep_checkpoints"])
    said, status = _cli._ending(full)
    assert status == 1
    assert said.startswith("the disk is full (runs/x): expected room, or fewer --keep_")


def test_a_pipe_instead_of_a_manifest_is_refused(refused, tmp_path):
    os.mkfifo(tmp_path / "manifest.json")
    (tmp_path / "weights.npz").write_bytes(b"")
    refused(
        "manifest.json: is a pipe",
        "predict.py",
        f"--weights={tmp_path}",
        f"--workdir={tmp_path}/out",
    )


def test_pictures_are_looked_at_once_for_all_seeds(tmp_path, monkeypatch):
    for i in range(4):
        pixels = np.full((8, 8, 3), i, np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    looked = []
    original = images.read_header
    monkeypatch.setattr(
        images, "read_header", lambda *a: (looked.append(a), original(*a))[1]
    )
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import _flags

    values = {"data": str(tmp_path), "crop": "auto", "offset": ["0", "0"]}
    monkeypatch.setattr(
        _flags, "FLAGS", types.SimpleNamespace(allow_outside=False, **values)
    )
    task = tasks.of(PredNetConfig(channels=(3, 4), height=8, width=8))
    found = [_flags.open_source(task, seed) for seed in range(3)]
    assert len({source.fingerprint for source in found}) == 1
    assert (found[0].read(0, 2) == found[2].read(0, 2)).all()
    # The first once more, before all: its size decides whether pictures are cut.
    assert len(looked) == 5
