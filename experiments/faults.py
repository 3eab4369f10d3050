"""Tries what may happen to a training, as the tests do, and records what did happen.

    python experiments/faults.py --of=training            (minutes)
    python experiments/faults.py --of=training --slow     (as published; longer)
    python experiments/faults.py --of=sweeps --slow

A fault is a test with the mark `fault`: what happened, and what was done. What must
hold is its docstring. Writes its part of a JSON record, of which
`experiments/tables.py` makes a table of docs/reliability.md. Ends with status 1 if
something did not hold.
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
# In the order of the tables.
FILES = {
    "training": (
        "tests/experiments/test_train_kills.py",
        "tests/experiments/test_train_resume.py",
        "tests/experiments/test_train_faults.py",
        "tests/training/test_checkpoints.py",
        "tests/training/test_guards.py",
        "tests/test_locks.py",
        "tests/files/test_big_inputs.py",
    ),
    "sweeps": (
        "tests/comparison/test_execution.py",
        "tests/comparison/test_receipts.py",
        "tests/experiments/test_compare_backends.py",
        "tests/comparison/test_on_ray.py",
        "tests/experiments/test_sweep.py",
    ),
}
flags.DEFINE_enum("of", "training", list(FILES), "What happens to what.")
flags.DEFINE_list("tests", None, "Files of tests; default: those of --of.")
flags.DEFINE_bool("slow", False, "Also those that `make soak` runs.")
flags.DEFINE_string(
    "output", str(ROOT / "results" / "published" / "reliability.json"), "The record."
)


class Collector:
    """A pytest plugin: each fault, what must hold, and how its cases ended."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    def pytest_collection_modifyitems(self, items: list) -> None:
        """Makes a row for each test function."""
        for item in items:
            mark = item.get_closest_marker("fault")
            if mark is None:
                continue
            fault, done = mark.args
            said = inspect.getdoc(item.function) or ""
            row = {"test": _function(item.nodeid), "fault": fault, "done": done}
            row["holds"] = " ".join(said.split("\n\n")[0].split())
            row |= {"passed": 0, "failed": 0, "skipped": 0, "seconds": 0.0, "seen": {}}
            self.rows.setdefault(row["test"], row)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Counts a case: as called, or where its set-up ended it."""
        row = self.rows[_function(report.nodeid)]
        row["seconds"] = round(row["seconds"] + report.duration, 1)
        if report.when == "call" or not report.passed:
            row[report.outcome] += 1
        if report.when == "call":
            for name, count in report.user_properties:
                row["seen"][name] = row["seen"].get(name, 0) + count


def _function(node: str) -> str:
    return node.split("[")[0]


def main(argv: list[str]) -> None:
    """Runs the tests, writes the record."""
    del argv
    import pytest

    collector = Collector()
    chosen = "fault" if FLAGS.slow else "fault and not slow"
    # The tests import each other's helpers from the root.
    sys.path.insert(0, str(ROOT))
    places = [str(ROOT / name) for name in FLAGS.tests or FILES[FLAGS.of]]
    # The package is imported already, by this script.
    quiet = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
    options = ["-m", chosen, "-q", f"--rootdir={ROOT}", "-W", quiet]
    status = pytest.main([*places, *options], plugins=[collector])
    ran = [
        r for r in collector.rows.values() if r["passed"] + r["failed"] + r["skipped"]
    ]
    failed = [row["test"] for row in ran if row["failed"]]
    part = _cli.provenance() | {"device": device.description(), "rows": ran}
    path = Path(FLAGS.output)
    before = records.read_json(path) if path.exists() else {}
    records.write_json(path, before | {FLAGS.of: part})
    print(f"{FLAGS.output}: {len(ran)} faults, {len(failed)} not met as they should be")
    raise SystemExit(1 if status or not ran else 0)


if __name__ == "__main__":
    _cli.run(main)
