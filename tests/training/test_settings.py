"""Settings come from layers of values, of which the last one wins."""

import dataclasses
import json
import re

import numpy as np
import pytest

from prednet_jax import PredNetConfig, tasks
from prednet_jax.errors import UserError
from prednet_jax.training.settings import (
    DataSettings,
    NetworkSettings,
    Settings,
    TrainingSettings,
    fill,
)
from tests.processes import SCRIPTS


def test_the_last_layer_wins():
    preset = {"channels": [3, 24], "updates": 1000, "learning_rate": 2e-3}
    recorded = {"channels": ["3", "48"], "data": "a.mp4", "unknown": 1}
    asked = Settings.layered(preset, recorded, {"updates": 7})
    assert asked.network.channels == (3, 48)
    assert (asked.training.updates, asked.training.learning_rate) == (7, 2e-3)
    assert asked.data == DataSettings(data="a.mp4")


def test_what_a_manifest_holds_gives_the_same_settings():
    asked = Settings.layered(
        {"channels": (3, 4), "r_filters": [3], "a_filters": (5,), "offset": [1, -2]},
        {"layer_weights": [1.0, 0.5], "seeds": [3, 4], "noise": "ulp", "hidden": [8]},
    )
    values = json.loads(json.dumps(asked.values()))
    assert values["channels"] == ["3", "4"]
    assert Settings.layered(values) == asked
    assert asked.network.r_filters == 3


@pytest.mark.parametrize(
    ("record", "values", "message"),
    [
        (NetworkSettings, {"channels": ["3", "x"]}, "--channels=3,x: expected whole"),
        (DataSettings, {"window": "20"}, "--window='20': expected"),
        (DataSettings, {"allow_outside": 1}, "--allow_outside=1: expected"),
        (TrainingSettings, {"updates": True}, "--updates=True: expected"),
        (TrainingSettings, {"noise": "fog"}, "--noise: .*fog"),
        (TrainingSettings, {"schedule": "cosine"}, "expected learning_rate too"),
    ],
)
def test_values_of_another_kind_are_named(record, values, message):
    with pytest.raises(UserError, match=message):
        fill(record, values)


def test_no_field_has_two_meanings():
    """Flags and manifests name fields alone, so no two parts share one."""
    names = [f.name for part in Settings() for f in dataclasses.fields(part)]
    assert len(set(names)) == len(names)


def test_scripts_read_flags_and_do_not_write_them():
    """Except the door itself, which expands ~ in paths."""
    for path in sorted(SCRIPTS.glob("*.py")):
        written = re.findall(
            r"FLAGS(?:\[\w+\]\.value|\.\w+) = |setattr\(FLAGS", path.read_text()
        )
        assert len(written) == (path.name == "_cli.py"), path


def test_a_folder_of_splits_as_validation_data_is_its_validation_part(tmp_path):
    """Its train part was scored, also where this is trained on."""
    for name, length in (("train", 6), ("val", 5)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "a.npy", np.zeros((length, 8, 8), np.uint8))
    task = tasks.of(PredNetConfig(channels=(1,), height=8, width=8))
    for path in (tmp_path, tmp_path / "train"):
        own = DataSettings(data=str(path), validation_data=str(tmp_path))
        assert own.open_validation(task).length == 5
