"""Tables as text: in Markdown, and in plain text for the terminal."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prednet_jax.records.verdict import Record
from prednet_jax.report.numbers import text

if TYPE_CHECKING:
    import pandas as pd

#: A function that makes a cell from the fields of its row.
Cell = Callable[[Record], str]
#: How the cells of each column are made, as `rows` takes it.
Cells = Record | Iterable[tuple[str, Any]] | None


def markdown(frame: "pd.DataFrame", cells: Cells = None) -> str:
    """Returns a table in Markdown, with `cells` as in `rows`."""
    heading, *lines = rows(frame, cells)
    ruled = (heading, ["---"] * len(heading), *lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in ruled)


def rows(frame: "pd.DataFrame", cells: Cells = None) -> list[list[str]]:
    """Returns the headings of a table, and its cells by row.

    `cells` maps a column's heading to the maker of the column's cells: a template of
    `numbers.text` over the fields of the row, or a `Cell`. It may also be a list of
    such pairs, since two columns may have the same heading. It defaults to all columns
    of the frame, unchanged.
    """
    if cells is None:
        cells = [(name, f"{{{i}}}") for i, name in enumerate(frame.columns)]
        frame = frame.set_axis(list(map(str, range(len(frame.columns)))), axis=1)
    makers = list(cells.items() if isinstance(cells, Mapping) else cells)
    return [[heading for heading, _ in makers]] + [
        [text(cell, row) if isinstance(cell, str) else cell(row) for _, cell in makers]
        for row in frame.to_dict("records")
    ]


def columns(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Returns a table in plain text, its columns as wide as they need.

    The names of the columns are the first row; `right` are the numbers of the columns
    that are aligned right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    layout = [f"{'><'[i not in right]}{width}" for i, width in enumerate(widths)]
    return "\n".join("  ".join(map(format, row, layout)).rstrip() for row in rows)
