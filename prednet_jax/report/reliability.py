"""The table of faults that were tried, from the record of `experiments/faults.py`."""

from collections.abc import Mapping
from typing import Any

from prednet_jax.report.documents import markdown


def faults(record: Mapping[str, Any]) -> str:
    """One row per fault: what was tried, what is asked, and how many cases held.

    Args:
        record: what `experiments/faults.py` writes.
    """
    rows = []
    for row in record["rows"]:
        tried = row["passed"] + row["failed"]
        result = f"{row['passed']} of {tried}" if tried else "not tried here"
        if row["skipped"] and tried:
            result += f", {row['skipped']} not tried here"
        file, name = row["test"].split("::")
        sentence = name.removeprefix("test_").replace("_", " ")
        rows.append((sentence, row["asked"], result, f"`{file.split('/')[-1]}`"))
    return markdown(("it holds that", "tried, and asked", "cases", "in"), rows)
