import pandas as pd

from prednet_jax.report import tables


def test_markdown():
    frame = pd.json_normalize(
        [{"x": {"y": 1}, "p": 0.01234, "n": [3, 1, 8]}, {"x": {"y": 2}, "n": [4]}]
    )
    cells = [
        ("a", "`{x.y}`"),
        ("b", "{p:sig2}, {p:+sig}, {p:prob}"),
        ("b", lambda row: "known" if row["p"] > 0 else "**not**"),
        ("n", lambda row: str(max(row["n"]))),
    ]
    assert tables.markdown(frame, cells).splitlines() == [
        "| a | b | b | n |",
        "| --- | --- | --- | --- |",
        "| `1` | 0.012, +0.0123, 0.012 | known | 8 |",
        "| `2` | - | **not** | 4 |",
    ]
    plain = tables.markdown(pd.DataFrame({"a: b": [1], "c": [None]}))
    assert plain == "| a: b | c |\n| --- | --- |\n| 1 | - |"
