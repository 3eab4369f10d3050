from prednet_jax.report import document_tables


def test_each_fault_is_a_row_and_a_failure_shows():
    row = {"fault": "SIGKILL", "done": "at once", "holds": "Nothing changes."}

    def test(*outcomes, **case):
        cases = {str(i): {"outcome": x} | case for i, x in enumerate(outcomes)}
        return row | {"cases": cases}

    tests = {
        "a": test("passed", "failed", "passed"),
        "b": test("skipped"),
        "c": test("passed", "passed", seen={"killed early": 9}),
    }
    start = "| SIGKILL | at once | Nothing changes. | "
    assert document_tables.faults(tests).splitlines()[2:] == [
        f"{start}**2 of 3** |",
        f"{start}1 not tried here |",
        f"{start}2 of 2, 18 killed early |",
    ]
