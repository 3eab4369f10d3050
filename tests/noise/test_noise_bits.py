"""The bits of noise stay what they were; see `record_bits`."""

import json

import jax
import pytest

from tests.noise import record_bits
from tests.noise.bit_programs import PROGRAMS
from tests.processes import python

# Each of them takes another way through the code; together some ten seconds.
SAMPLE = ("dot", "scan", "shard_map", "only_every_other")


@pytest.fixture(scope="module")
def record():
    return json.loads(record_bits.RECORD.read_text())


def compare(record, names):
    """Digests of today's code against the record, in a process with the same flags."""
    if jax.__version__ != record["jax"]:
        pytest.skip(f"recorded with jax {record['jax']}, here is {jax.__version__}")
    done = python("-m", "tests.noise.record_bits", "--digests", *names)
    found = json.loads(done.stdout)["programs"]
    differ = []
    incomparable = []
    for name in names:
        recorded = record["programs"][name]
        if found[name][record_bits.CLEAN] != recorded[record_bits.CLEAN]:
            incomparable.append(name)
            continue
        differ += [
            f"{name} under {spec}"
            for spec, value in recorded.items()
            if found[name][spec] != value
        ]
    if record_bits.processor() == record["processor"]:
        assert not differ, differ
        assert not incomparable, f"without noise already: {incomparable}"
    elif differ or incomparable:
        # A routine of this processor's or a change of the code: nothing here can tell.
        pytest.skip(f"recorded on another processor: {differ or incomparable}")


def test_sample(record):
    compare(record, SAMPLE)


@pytest.mark.slow
def test_every_program(record):
    compare(record, list(record["programs"]))


def test_record_is_whole(record):
    assert set(record["programs"]) == set(PROGRAMS)
    assert record["specs"] == record_bits.SPECS
    assert record["environment"] == record_bits.ENVIRONMENT
    assert len(record["programs"]) >= 60
    assert len(record_bits.SPECS) >= 6


def test_noise_moves_what_it_should(record):
    """The record would be worthless if noise were off: floats move, integers do not."""
    for name, digests in record["programs"].items():
        moved = {s for s, d in digests.items() if d != digests[record_bits.CLEAN]}
        if name == "integers":
            assert not moved
        else:
            assert "ulp" in moved, name
