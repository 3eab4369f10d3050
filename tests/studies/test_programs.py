"""The programs of the study's arms are those whose records are published.

Lowered text has everything that decides a training's bits beside versions, flags and
the machine, so this holds trainings fixed without training. It does not depend on
threads, on XLA's flags or on the processor.
"""

import jax
import pytest

from prednet_jax import records
from prednet_jax.studies import seed_records, seed_trainings
from prednet_jax.studies.parts import PARTS
from tests.processes import ROOT

# Of each kind of program one: plain, noise, one order per run, amplified noise with
# another optimiser.
QUICK = (
    ("C", "float32"),
    ("C", "reduction_order"),
    ("C", "reduction_order_run"),
    ("B", "order_1e+06_momentum"),
)


RECORDS = {
    name: seed_records.finished(part, ROOT / "results" / "study" / name)
    for name, part in PARTS.items()
}
ARMS = [
    pytest.param(name, arm, marks=() if (name, arm) in QUICK else pytest.mark.slow)
    for name, part in PARTS.items()
    # Records of random windows are of commits whose batches had another program.
    if RECORDS[name] and part.random_windows is None
    for arm in dict.fromkeys(treatment.arm for treatment in part.treatments)
]


def published(name):
    return records.read_json(RECORDS[name][PARTS[name].seeds[0]])


@pytest.mark.parametrize(("name", "arm"), ARMS)
def test_the_program_is_the_published_one(name, arm):
    record = published(name)
    if jax.__version__ != record["versions"]["jax"]:
        pytest.skip(f"recorded with jax {record['versions']['jax']}")
    part = PARTS[name]
    treatment = next(t for t in part.treatments if t.arm == arm)
    # As scripts have it: `process.set_precision`, and promotion that is not strict,
    # which optax's schedule of a late rate needs.
    promotion = jax.numpy_dtype_promotion("standard")
    with jax.default_matmul_precision("highest"), promotion:
        found = seed_trainings.program(part, treatment)
    assert found == record["programs"][arm]


def test_every_seed_of_a_part_has_the_programs_of_the_first():
    assert set("BCDE") <= {name for name, paths in RECORDS.items() if paths}
    for name, paths in RECORDS.items():
        for path in paths.values():
            programs = records.read_json(path)["programs"]
            first = published(name)["programs"]
            assert programs == {arm: first[arm] for arm in programs}, path
