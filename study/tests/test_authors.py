"""The check for the authors, as its page has it, on recorded trainings of Chainer."""

import re
import shutil

import numpy as np
import pytest

from tests.processes import ROOT, python

pytestmark = pytest.mark.slow
PAGE = (ROOT / "study" / "pages" / "authors.md").read_text()
TINY = ROOT / "tests" / "golden" / "chainer_tiny"
SMALL = {"data": "frames.npz", "window": "5", "updates": "8"}


@pytest.fixture(scope="module")
def trained(forked, tmp_path_factory):
    """The two trainings of the page, from the recorded start, at its small size."""
    folder = tmp_path_factory.mktemp("authors")
    (folder / "models").mkdir()
    shutil.copy(TINY / "initial.model.npz", folder / "models" / "initial.model")
    shutil.copy(TINY / "frames.npz", folder / "frames.npz")
    whole = r"^python (experiments/train.py (?:[^\\\n]|\\\n)*)$"
    commands = re.findall(whole, PAGE, re.MULTILINE)
    assert len(commands) == 2
    for printed in commands:
        command = printed
        for flag, value in SMALL.items():
            command = re.sub(rf"--{flag}=\S+", f"--{flag}={value}", command)
        words = command.replace("\\\n", " ").split()
        script = words[0].removeprefix("experiments/")
        forked(script, *words[1:], "--noprogress", folder=folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recorded", "right", "wrong"),
    [("copied", "true", "stale"), ("aliased", "stale", "true")],
)
def test_a_log_says_which_targets_a_run_had(trained, recorded, right, wrong):
    with np.load(TINY / f"trace.{recorded}.npz") as trace:
        # The script counts frames from 1 and logs after its updates.
        lines = [
            f"{frame}, {float(trace['frame_loss'][frame - 1])}\n"
            for frame in trace["update_after_frame"]
        ]
    (trained / "log.txt").write_text("".join(lines))
    snippet = PAGE.partition("```python\n")[2].partition("```")[0]
    done = python("-c", snippet, folder=trained)
    apart = {name: float(x) for name, x in map(str.split, done.stdout.splitlines())}
    assert apart[right] < 1e-5
    assert apart[wrong] > 1e-4
