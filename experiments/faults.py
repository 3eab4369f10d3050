"""Tries what may happen to a training, as the tests do, and records what did happen.

    python experiments/faults.py --of=training            (minutes)
    python experiments/faults.py --of=training --slow     (as published; longer)
    python experiments/faults.py --of=sweeps --slow

A fault is a test with the mark `fault`: what happened, and what was done. What must
hold is its docstring. Writes a JSON record with each case of each test, of which
`experiments/tables.py` makes the tables of docs/reliability.md. With --tests or --only
the cases that are run again take the place of what the record has of them, so that a
long run can be made in pieces. Ends with status 1 if something did not hold.
"""

import inspect
import sys
from pathlib import Path
from typing import Any

import _cli
from absl import flags

from prednet_jax import device, provenance, records

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
        "tests/runs/test_executor.py",
        "tests/runs/test_stored.py",
        "tests/experiments/test_compare_backends.py",
        "tests/runs/test_on_ray.py",
        "tests/experiments/test_sweep.py",
    ),
}
flags.DEFINE_enum("of", "training", list(FILES), "What happens to what.")
flags.DEFINE_list("tests", None, "Files of tests; default: those of --of.")
flags.DEFINE_string("only", None, "Cases whose name fits, as `pytest -k` reads it.")
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
            if mark is not None:
                fault, done = mark.args
                said = inspect.getdoc(item.function) or ""
                holds = " ".join(said.split("\n\n")[0].split())
                row = {"fault": fault, "done": done, "holds": holds, "cases": {}}
                self.rows.setdefault(_function(item.nodeid), row)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Writes down a case: as called, or where its set-up or clean-up ended it."""
        cases = self.rows[_function(report.nodeid)]["cases"]
        case = cases.setdefault(report.nodeid, {"seconds": 0.0})
        case["seconds"] = round(case["seconds"] + report.duration, 1)
        if report.when == "call" or not report.passed:
            case["outcome"] = report.outcome
        if report.when == "call" and report.user_properties:
            case["seen"] = dict(report.user_properties)


def _function(node: str) -> str:
    return node.split("[")[0]


def merged(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Rows by test: those of before, with the cases that have been run since."""
    found = dict(before)
    for test, row in now.items():
        old = before.get(test, {}).get("cases", {})
        found[test] = row | {"cases": old | row["cases"]}
    return found


def main(argv: list[str]) -> None:
    """Runs the tests, writes the record."""
    del argv
    import pytest

    collector = Collector()
    # The tests import each other's helpers from the root.
    sys.path.insert(0, str(ROOT))
    places = [str(ROOT / name) for name in FLAGS.tests or FILES[FLAGS.of]]
    # The package is imported already, by this script.
    quiet = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
    chosen = "fault" if FLAGS.slow else "fault and not slow"
    options = ["-q", f"--rootdir={ROOT}", "-W", quiet, "-m", chosen]
    options += ["-k", FLAGS.only] if FLAGS.only else []
    status = pytest.main([*places, *options], plugins=[collector])
    from_here = {"commit": provenance.git_commit(ROOT), "device": device.description()}
    now = {}
    for test, row in collector.rows.items():
        cases = {name: case | from_here for name, case in row["cases"].items()}
        if cases:
            now[test] = row | {"cases": cases}
    write(now)
    outcomes = [
        case["outcome"] for row in now.values() for case in row["cases"].values()
    ]
    failed = outcomes.count("failed")
    print(f"{FLAGS.output}: {len(outcomes)} cases, {failed} not met as they should be")
    raise SystemExit(1 if status else 0)


def write(now: dict[str, Any]) -> None:
    """Writes what was tried, in the order of the files, beside what is not of it."""
    path = Path(FLAGS.output)
    record = records.read_json(path) if path.exists() else {}
    before = record.get(FLAGS.of, {}) if FLAGS.tests or FLAGS.only else {}
    rows = merged(before, now)
    order = [*(FLAGS.tests or ()), *FILES[FLAGS.of]]
    names = sorted(rows, key=lambda test: order.index(test.split("::")[0]))
    record[FLAGS.of] = {test: rows[test] for test in names}
    records.write_json(path, {of: record[of] for of in FILES if of in record})


if __name__ == "__main__":
    _cli.run(main)
