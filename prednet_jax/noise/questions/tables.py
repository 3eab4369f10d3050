"""Tables of plain text."""

from collections.abc import Sequence
from typing import Any


def format_cell(x: Any) -> str:
    """Returns a cell's text: a float with two digits, and `-` for None."""
    if isinstance(x, float):
        return f"{x:.2g}"
    return "-" if x is None else str(x)


def format_table(
    head: Sequence[str], rows: Sequence[Sequence[Any]], align: str
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
