"""A small synthetic comparison in the layout that compare_backends writes.

Two networks, eight arms, six seeds, sixty updates. Stale targets raise the loss of
PredNet by a third and leave the bits of the autoencoder; noise scatters, and threads
change nothing. The program that drew it is this file at commit 082794f.
"""

import json
import shutil
from pathlib import Path

import pytest

from prednet_jax import report
from tests.processes import ROOT

GOLDEN = ROOT / "tests" / "golden" / "comparison"


@pytest.fixture(name="verdict")
def a_verdict():
    """A fresh verdict, free to be changed."""
    return json.loads((GOLDEN / "verdict.json").read_text())


@pytest.fixture
def broken(comparison, tmp_path):
    """A copy of the comparison, free to be damaged."""
    return Path(shutil.copytree(comparison, tmp_path / "copy"))


@pytest.fixture(scope="session")
def built(comparison, tmp_path_factory):
    """A comparison with its report."""
    folder = tmp_path_factory.mktemp("built") / "comparison"
    shutil.copytree(comparison, folder)
    report.build(folder)
    return folder


@pytest.fixture(scope="session")
def comparison(tmp_path_factory):
    """A complete comparison; not to be changed."""
    folder = tmp_path_factory.mktemp("comparison")
    shutil.unpack_archive(GOLDEN / "runs.zip", folder)
    shutil.copy(GOLDEN / "verdict.json", folder)
    return folder
