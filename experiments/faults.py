"""Tries what may happen to a training, as the tests do, and records what did happen.

    python experiments/faults.py              (minutes)
    python experiments/faults.py --slow       (with kills at random moments: longer)

Each fault is a test; what was asked of the program is its first line. Writes one JSON
record, of which `report.reliability` makes a table. Ends with status 1 if a fault was
not met as it should be.
"""

import inspect
import sys
from pathlib import Path
from typing import Any

import _cli
from absl import flags

from prednet_jax import device, records

FLAGS = flags.FLAGS
ROOT = Path(__file__).resolve().parent.parent
FILES = (
    "tests/experiments/test_train_resume.py",
    "tests/experiments/test_train_faults.py",
    "tests/training/test_checkpoints.py",
    "tests/training/test_guards.py",
    "tests/test_locks.py",
)
flags.DEFINE_list("tests", FILES, "Files of tests, one table after the other.")
flags.DEFINE_bool("slow", False, "Also those that `make soak` runs.")
flags.DEFINE_string(
    "output", str(ROOT / "results" / "published" / "reliability.json"), "The record."
)


class Collector:
    """A pytest plugin: what each test says of itself, and how its cases ended."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    def pytest_collection_modifyitems(self, items: list) -> None:
        """Makes a row for each test function."""
        for item in items:
            said = inspect.getdoc(item.function) or ""
            self.rows.setdefault(
                _function(item.nodeid),
                {
                    "test": _function(item.nodeid),
                    "asked": " ".join(said.split("\n\n")[0].split()),
                    "slow": item.get_closest_marker("slow") is not None,
                    "passed": 0,
                    "failed": 0,
                    "skipped": 0,
                },
            )

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Counts a case: as called, or where its set-up ended it."""
        if report.when == "call" or not report.passed:
            self.rows[_function(report.nodeid)][report.outcome] += 1


def _function(node: str) -> str:
    return node.split("[")[0]


def main(argv: list[str]) -> None:
    """Runs the tests, writes the record."""
    del argv
    import pytest

    collector = Collector()
    chosen = [] if FLAGS.slow else ["-m", "not slow"]
    # The tests import each other's helpers from the root.
    sys.path.insert(0, str(ROOT))
    places = [str(ROOT / name) for name in FLAGS.tests]
    pytest.main([*places, *chosen, "-q", f"--rootdir={ROOT}"], plugins=[collector])
    ran = [
        r for r in collector.rows.values() if r["passed"] + r["failed"] + r["skipped"]
    ]
    record = _cli.provenance() | {"device": device.description(), "rows": ran}
    records.write_json(FLAGS.output, record)
    failed = [row["test"] for row in ran if row["failed"]]
    print(f"{FLAGS.output}: {len(ran)} faults, {len(failed)} not met as they should be")
    raise SystemExit(1 if failed or not ran else 0)


if __name__ == "__main__":
    _cli.run(main)
