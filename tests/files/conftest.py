"""The files of experiments/hostile_files.py, made once per session."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEIGHTS = ROOT / "tests" / "golden" / "chainer_tiny" / "initial.model.npz"


def load_script(name):
    """A file of experiments/ as a module."""
    path = ROOT / "experiments" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Where dataclasses look for it.
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def hostile_files():
    return load_script("hostile_files")


@pytest.fixture(scope="session")
def hostile(hostile_files, tmp_path_factory):
    """The folder, and every case by its name."""
    root = tmp_path_factory.mktemp("hostile")
    return root, {case.name: case for case in hostile_files.make(root, WEIGHTS)}
