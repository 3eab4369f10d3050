"""Puts the folder of the detector on the path."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))


@pytest.fixture
def environment():
    """`environment(name)`: the interpreter of .venv-NAME, or the test is skipped."""

    def python(name):
        found = ROOT / f".venv-{name}" / "bin" / "python"
        if not found.is_file():
            pytest.skip(f"no .venv-{name}: made by make chainer or make transplant")
        return found

    return python
