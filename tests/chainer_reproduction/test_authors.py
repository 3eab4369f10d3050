"""The check for the authors, as its page has it, on recorded trainings of Chainer."""

import re
import shutil
import subprocess
import sys

import pytest

from tests.test_imports import ROOT

PAGE = (ROOT / "docs" / "authors.md").read_text()
TINY = ROOT / "tests" / "golden" / "chainer_tiny"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The two trainings of the page, from the recorded start, at its small size."""
    folder = tmp_path_factory.mktemp("authors")
    (folder / "models").mkdir()
    shutil.copy(TINY / "initial.model.npz", folder / "models" / "initial.model")
    shutil.copy(TINY / "frames.npz", folder / "frames.npz")
    commands = re.findall(r"^python (experiments/train.py (?:.|\\\n)*)$", PAGE, re.M)
    assert len(commands) == 2
    for command in commands:
        words = command.replace("\\\n", " ").split()
        small = {"--data": "frames.npz", "--window": "5", "--updates": "8"}
        chosen = [small.get(w.partition("=")[0], None) for w in words]
        words = [
            w if value is None else f"{w.partition('=')[0]}={value}"
            for w, value in zip(words, chosen, strict=True)
        ]
        done = subprocess.run(
            [sys.executable, ROOT / words[0], *words[1:], "--noprogress"],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
        )
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    ("model", "right", "wrong"),
    [("copied", "true", "stale"), ("aliased", "stale", "true")],
)
def test_a_saved_model_says_which_targets_it_had(trained, model, right, wrong):
    shutil.copy(TINY / f"final.{model}.model.npz", trained / "models" / "1000.model")
    snippet = PAGE.partition("```python\n")[2].partition("```")[0]
    done = subprocess.run(
        [sys.executable, "-c", snippet],
        capture_output=True,
        text=True,
        check=False,
        cwd=trained,
    )
    assert done.returncode == 0, done.stderr
    lines = map(str.split, done.stdout.splitlines())
    apart = {name: float(number) for name, number in lines}
    assert apart[right] < 1e-4
    assert apart[wrong] > 0.1
