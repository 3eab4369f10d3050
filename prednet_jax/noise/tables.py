"""Writes reports: tables and lists of plain text, and JSON."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np


def format_cell(x: object) -> str:
    """Returns a cell's text: a float with two digits, and `-` for None."""
    if isinstance(x, float):
        return f"{x:.2g}"
    return "-" if x is None else str(x)


def format_table(
    head: Sequence[str], rows: Sequence[Sequence[object]], align: str
) -> list[str]:
    """Returns the lines of a table with aligned columns.

    Args:
        head: the first row.
        rows: the other rows, each as long as `head`; see `format_cell`.
        align: for each column `<` (left) or `>` (right).
    """
    every = [list(map(format_cell, row)) for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    columns = [f"{{:{a}{w}}}" for a, w in zip(align, widths, strict=True)]
    return ["  ".join(columns).format(*row).rstrip() for row in every]


def bracketed(source: str, before: str = "  ") -> str:
    """Returns a line of the user in brackets, after blanks; "" without a line."""
    return f"{before}[{source}]" if source else ""


def unmatched_lines(names: Sequence[Sequence[str]]) -> list[str]:
    """Returns lines of the names here, and there, that have no counterpart."""
    sides = zip(("here", "there"), names, strict=True)
    return [f"unmatched {where}: {', '.join(x)}" for where, x in sides if x]


def shortened(names: Sequence[str], most: int) -> str:
    """Returns the first names of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def joined(*notes: str) -> str:
    """Returns the notes that are not empty, as one text."""
    return "; ".join(filter(None, notes))


def plain_data(value: object) -> Any:
    """Converts a report to JSON's types; NaN and infinities become None."""
    if hasattr(value, "to_json"):
        value = value.to_json()
    elif hasattr(value, "_asdict"):
        kinds = vars(type(value)).items()
        computed = [name for name, kind in kinds if isinstance(kind, property)]
        value = value._asdict() | {name: getattr(value, name) for name in computed}
    elif isinstance(value, tuple) and hasattr(value, "__dict__"):
        value = {type(value).__name__.lower(): list(value)} | vars(value)
    elif dataclasses.is_dataclass(value):
        value = vars(value)
    elif isinstance(value, np.ndarray | np.generic | jax.Array):
        value = np.asarray(value).tolist()
    if isinstance(value, Mapping):
        return {str(name): plain_data(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(x) for x in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str | None) else str(value)
