"""Tables of the documents, remade from committed records.

A document holds each table between two marks that a reader of the page does not see:

    <!-- table: NAME -->
    | ... |
    <!-- end -->

`fill` replaces what stands between them. `experiments/tables.py` knows which name is
made from which record.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from prednet_jax.errors import UserError

_MARKED = re.compile(
    r"(?P<open><!-- table: (?P<name>[\w-]+) -->\n)"
    r"(?P<body>(?:(?!<!-- table:).)*?)"
    r"(?P<close><!-- end -->)",
    re.DOTALL,
)
_OPENED = re.compile(r"<!-- table:")


def names(text: str) -> list[str]:
    """Names of the tables that a document marks, in order.

    Raises:
        UserError: a mark is not closed, or has no proper name.
    """
    found = [match["name"] for match in _MARKED.finditer(text)]
    if len(found) != len(_OPENED.findall(text)):
        raise UserError(
            "a mark '<!-- table: NAME -->' has no proper name or is not closed; "
            "expected '<!-- end -->' after the table"
        )
    return found


def fill(text: str, tables: Mapping[str, str]) -> str:
    """A document with its tables made anew.

    Args:
        text: the document.
        tables: the text of each table, by name.

    Raises:
        UserError: a table is marked that nothing makes, or a mark is not closed.
    """
    for name in names(text):
        if name not in tables:
            raise UserError(
                f"table {name!r}: expected one of {', '.join(sorted(tables))}"
            )

    def made(match: re.Match[str]) -> str:
        return f"{match['open']}\n{tables[match['name']].strip()}\n\n{match['close']}"

    return _MARKED.sub(made, text)


def columns(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """A table in plain text, its columns as wide as they need.

    Args:
        rows: cells, the names of the columns first.
        right: numbers of the columns that are aligned right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["><"[i not in right] for i in range(len(widths))]
    lines = []
    for row in rows:
        cells = zip(row, sides, widths, strict=True)
        lines.append("  ".join(f"{c:{side}{w}}" for c, side, w in cells).rstrip())
    return "\n".join(lines)


def markdown(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int = 0
) -> str:
    """A table in Markdown.

    Args:
        head: names of the columns.
        rows: cells, as many as columns.
        numbers: how many of the last columns hold numbers, aligned right.
    """
    rule = ["---"] * (len(head) - numbers) + ["---:"] * numbers
    lines = [head, rule, *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
