"""The detector of overwritten inputs, with NumPy only and with Chainer and PyTorch."""

import os
import subprocess
from pathlib import Path

import numpy as np
import overwritten_inputs as detector
import pytest

FILE = Path(detector.__file__)


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


def test_a_ledger_finds_what_was_overwritten_through_another_name():
    buffer = np.zeros((2, 3), np.float32)
    kept = np.asarray(buffer)  # shares its memory
    copied = buffer.copy()
    ledger = detector.Ledger()
    entries = [ledger.keep(kept), ledger.keep(copied)]
    buffer[...] = 1
    ledger.compare(entries[0], kept, "shared", 1)
    ledger.compare(entries[1], copied, "copied", 1)
    [finding] = ledger.found
    assert (finding.operation, finding.position) == ("shared", 1)
    assert finding.shape == (2, 3)
    assert finding.where.startswith("test_overwritten_inputs.py:")
    assert "overwritten before backward (1 times)" in detector.report(ledger.found)


def test_stop_raises_at_the_first():
    array = np.zeros(3)
    ledger = detector.Ledger(stop=True)
    entry = ledger.keep(array)
    ledger.compare(entry, array, "still")
    array[0] = 1
    with pytest.raises(detector.OverwrittenError, match=r"changed of shape \(3,\)"):
        ledger.compare(entry, array, "changed")


def test_nothing_found_is_said():
    assert detector.report([]) == "no kept array was overwritten"


@pytest.mark.parametrize("library", ["chainer", "torch"])
def test_the_mistake_is_found_and_a_correct_loop_is_not_accused(environment, library):
    done = subprocess.run(
        [environment(library), "-W", "ignore", FILE, library],
        capture_output=True,
        text=True,
        check=False,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stderr
    wrong, found, right, clean = done.stdout.splitlines()
    # Targets 0, 1, 2 against a weight of 1: by hand 0, and -1.5 if all are 2.
    assert wrong.endswith("gradient -1.5")
    assert found.endswith("was overwritten before backward (2 times)")
    assert right.endswith("gradient 0.0")
    assert clean == "no kept array was overwritten"


def test_an_unknown_library_is_refused(capsys):
    assert detector.main(["jax"]) == 2
    assert "usage" in capsys.readouterr().err
