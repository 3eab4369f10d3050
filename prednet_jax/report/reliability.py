"""The table of faults that were tried, from the record of `experiments/faults.py`."""

from collections.abc import Mapping
from typing import Any

from prednet_jax.report.documents import markdown


def faults(record: Mapping[str, Any]) -> str:
    """One row per fault: what happened, what was done, what must hold, what did.

    Args:
        record: a part of what `experiments/faults.py` writes.
    """
    rows = [
        (row["fault"], row["done"], row["holds"], _result(row))
        for row in record["rows"]
    ]
    return markdown(("fault", "what was done", "what must hold", "held in"), rows)


def _result(row: Mapping[str, Any]) -> str:
    """How many cases held, how many were not tried, and what the test has counted."""
    tried = row["passed"] + row["failed"]
    words = [f"{row['passed']} of {tried}" if tried else ""]
    if row["failed"]:
        words = [f"**{words[0]}**"]
    if row["skipped"]:
        words.append(f"{row['skipped']} not tried here")
    words += [f"{count} {name}" for name, count in row["seen"].items()]
    return ", ".join(word for word in words if word)
