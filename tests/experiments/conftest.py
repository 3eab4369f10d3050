"""Trainings that several tests look at."""

import pytest
from runs_on_disk import TINY


@pytest.fixture(scope="session")
def whole(train, tmp_path_factory):
    """A run of six updates, with checkpoints at 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    done = train(*TINY, f"--workdir={folder}", "--checkpoint_every=2")
    assert f"experiments/predict.py --weights={folder}" in done.stdout
    return folder
