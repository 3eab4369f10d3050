from prednet_jax.report import reliability


def test_each_fault_is_a_row_and_a_failure_shows():
    row = {"test": "tests/a.py::test_a_kill_changes_nothing", "asked": "SIGKILL."}
    record = {
        "rows": [
            row | {"passed": 2, "failed": 1, "skipped": 0},
            row | {"passed": 0, "failed": 0, "skipped": 1},
        ]
    }
    lines = reliability.faults(record).splitlines()
    assert lines[2] == "| a kill changes nothing | SIGKILL. | 2 of 3 | `a.py` |"
    assert "not tried here" in lines[3]
