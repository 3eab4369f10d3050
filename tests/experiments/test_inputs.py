"""Inputs of train.py: weights and flags agree, messages have names, files open once."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SCRIPTS = Path(__file__).parents[2] / "experiments"
WEIGHTS = Path(__file__).parents[1] / "golden" / "chainer_tiny" / "initial.model.npz"


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--channels=3,4,6,16", "channels=3,4,6,16"),
        ("--r_channels=3,4,6,16", "r_channels=3,4,6,16"),
        ("--r_filters=5", "r_filters=5"),
        ("--height=48", "height=48"),
        ("--variant=lotter", "variant=lotter"),
        ("--model=autoencoder", "--model=autoencoder"),
    ],
)
def test_flags_that_contradict_the_weights(refused, tmp_path, flag, message):
    workdir = tmp_path / "run"
    words = (f"--workdir={workdir}", f"--init_weights={WEIGHTS}", flag)
    done = refused(message, "train.py", *words)
    assert str(WEIGHTS) in done.stderr
    assert not workdir.exists()


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
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    for workdir in (link, link / "run"):
        refused("link is no directory", "train.py", f"--workdir={workdir}")


@pytest.mark.parametrize("wrapped", ["raise", "raise ImportError('numpy') from"])
def test_an_interrupt_while_a_script_imports_is_one_line(wrapped):
    code = f"import _cli; {wrapped} KeyboardInterrupt()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(SCRIPTS), *sys.path])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 130
    assert done.stderr == "-c: interrupted\n"


def test_control_codes_of_a_name_do_not_reach_the_terminal(refused, tmp_path):
    folder = tmp_path / "\x1b[31mred\x07"
    folder.mkdir()
    done = refused(
        r"\x1b[31mred\x07", "train.py", f"--workdir={tmp_path}/run", f"--data={folder}"
    )
    assert "\x1b" not in done.stderr


def test_a_pipe_instead_of_a_manifest_is_refused(refused, tmp_path):
    os.mkfifo(tmp_path / "manifest.json")
    (tmp_path / "weights.npz").write_bytes(b"")
    refused(
        "manifest.json: is a pipe",
        "predict.py",
        f"--weights={tmp_path}",
        f"--workdir={tmp_path}/out",
    )


COUNT = """
import sys
sys.path.insert(0, sys.argv[1])
import _flags
from absl import flags
from prednet_jax import data
from prednet_jax.data import pictures
_flags.define_model_flags()
_flags.define_data_flags()
flags.FLAGS(["x", f"--data={sys.argv[2]}", "--channels=3,4", "--height=8", "--width=8"])
looked = 0
original = pictures.read_header
def counted(*args):
    global looked
    looked += 1
    return original(*args)
pictures.read_header = counted
found = [_flags.open_source(_flags.task(), seed) for seed in range(3)]
assert len({source.fingerprint for source in found}) == 1
assert (found[0].read(0, 2) == found[2].read(0, 2)).all()
print(looked)
"""


def test_pictures_are_looked_at_once_for_all_seeds(tmp_path):
    for i in range(4):
        pixels = np.full((8, 8, 3), i, np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    done = subprocess.run(
        [sys.executable, "-c", COUNT, str(SCRIPTS), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The first once more, before all: its size decides whether pictures are cut.
    assert done.stdout.split() == ["5"]
