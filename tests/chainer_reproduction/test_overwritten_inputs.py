"""The detector of overwritten inputs, with NumPy only and with Chainer and PyTorch."""

import os
import subprocess
from pathlib import Path

import numpy as np
import overwritten_inputs as detector
import pytest


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.arange(6.0).reshape(2, 3).T,
        np.arange(12, dtype=np.int8)[::2],
        np.array(1.5),
        np.zeros((0, 3)),
    ],
)
def test_the_hash_sees_values_and_not_layout(array):
    assert detector.fingerprint(array) == detector.fingerprint(array.copy(order="C"))
    if array.size:
        changed = array.copy()
        changed[...] = array + 1
        assert detector.fingerprint(changed) != detector.fingerprint(array)


def test_what_was_overwritten_through_another_name_is_found():
    buffer = np.zeros((2, 3), np.float32)
    shared, copied, found = np.asarray(buffer), buffer.copy(), []
    entries = [detector.keep(shared), detector.keep(copied)]
    assert detector.report(found) == "no kept array was overwritten"
    buffer[...] = 1
    detector.compare(found, entries[0], shared, "shared", 1)
    detector.compare(found, entries[1], copied, "copied", 1)
    [finding] = found
    assert finding[:3] == ("shared", 1, (2, 3))
    assert finding.where.startswith("test_overwritten_inputs.py:")
    assert "overwritten before backward (1 times)" in detector.report(found)


@pytest.mark.parametrize("library", ["chainer", "torch"])
def test_the_mistake_is_found_and_a_correct_loop_is_not_accused(environment, library):
    script = Path(__file__).with_name("overwriting.py")
    tools = str(Path(detector.__file__).parent)
    done = subprocess.run(
        [environment(library), "-W", "ignore", script, library],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": tools},
    )
    assert done.returncode == 0, done.stderr
    wrong, found, right, clean = done.stdout.splitlines()
    # Targets 0, 1, 2 against a weight of 1: by hand 0, and -1.5 if all are 2.
    assert (wrong, right) == ("-1.5", "0.0")
    assert found.endswith("was overwritten before backward (2 times)")
    assert clean == "no kept array was overwritten"
