"""prepare_data.py as a user runs it, and a training on what it made."""

import re
import shlex

import numpy as np
import pytest

from prednet_jax import data

SCRIPT = "prepare_data.py"


def test_its_last_line_is_a_command_that_trains(tmp_path, forked, train):
    video = np.random.default_rng(0).integers(0, 256, (9, 9, 11, 3), np.uint8)
    np.savez(tmp_path / "own.npz", frames=video)
    done = forked(
        SCRIPT,
        "--dataset=image_sequence",
        f"--source={tmp_path / 'own.npz'}",
        f"--data_dir={tmp_path / 'kept'}",
        "--height=9",
        "--width=11",
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert done.stderr == ""
    command = re.search(r"; python experiments/train\.py (.*) trains on it$", line)[1]
    flags = shlex.split(command.replace("DIR", str(tmp_path / "run")))
    train(*flags, "--updates=1")
    folder = flags[0].removeprefix("--data=")
    found = data.open_source(folder, height=9, width=11)
    np.testing.assert_array_equal(found.read(0, 9), video)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dataset=mnist"], "--dataset=mnist: expected --source"),
        (["--dataset=mnist", "--source=nowhere"], "--source=nowhere: no such folder"),
        (["--dataset=kitti"], "kitti_raw"),
        (["--dataset=kitti_raw", "--source=EMPTY"], "cvlibs.net"),
        (["--dataset=fpsi", "--source=EMPTY", "--width=64"], "--width: expected none"),
    ],
)
def test_what_is_missing_is_said_in_one_line(tmp_path, refused, flags, message):
    empty = tmp_path / "empty"
    empty.mkdir()
    flags = [flag.replace("EMPTY", str(empty)) for flag in flags]
    refused(message, SCRIPT, *flags, f"--data_dir={tmp_path / 'kept'}")
