from prednet_jax.report import reliability


def test_each_fault_is_a_row_and_a_failure_shows():
    row = {"fault": "SIGKILL", "done": "at once", "holds": "Nothing changes."}
    rows = [
        row | {"passed": 2, "failed": 1, "skipped": 0, "seen": {}},
        row | {"passed": 0, "failed": 0, "skipped": 1, "seen": {}},
        row | {"passed": 6, "failed": 0, "skipped": 0, "seen": {"killed early": 9}},
    ]
    lines = reliability.faults({"rows": rows}).splitlines()[2:]
    start = "| SIGKILL | at once | Nothing changes. | "
    assert lines == [
        f"{start}**2 of 3** |",
        f"{start}1 not tried here |",
        f"{start}6 of 6, 9 killed early |",
    ]
