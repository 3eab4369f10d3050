"""The tables of faults that were tried, from the record of `experiments/faults.py`."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from prednet_jax.report.documents import markdown


def faults(tests: Mapping[str, Mapping[str, Any]]) -> str:
    """One row per fault: what happened, what was done, what must hold, what did.

    Args:
        tests: a part of what `experiments/faults.py` writes.
    """
    rows = [
        (row["fault"], row["done"], row["holds"], _result(row["cases"].values()))
        for row in tests.values()
    ]
    return markdown(("fault", "what was done", "what must hold", "held in"), rows)


def _result(cases: Iterable[Mapping[str, Any]]) -> str:
    """How many cases held, how many were not tried, and what the tests have counted."""
    cases = list(cases)
    ended = Counter(case["outcome"] for case in cases)
    tried = ended["passed"] + ended["failed"]
    words = [f"{ended['passed']} of {tried}"] if tried else []
    if ended["failed"]:
        words = [f"**{words[0]}**"]
    if ended["skipped"]:
        words.append(f"{ended['skipped']} not tried here")
    seen = Counter[str]()
    for case in cases:
        seen.update(case.get("seen", {}))
    words += [f"{count} {name}" for name, count in seen.items()]
    return ", ".join(words)
