"""Tables and numbers of the documents, made from committed records.

A document holds each table, and each number in a sentence, between two marks that a
reader of the page does not see (CONTRIBUTING.md has both kinds).

`fill` replaces the text between the marks. `study/make_tables.py` knows which name is
made from which record.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prednet_jax import records
from prednet_jax.errors import UserError
from prednet_jax.report.numbers import text

if TYPE_CHECKING:
    import pandas as pd

#: A function that makes a cell from the fields of its row.
Cell = Callable[[Mapping[str, Any]], str]
#: How the cells of each column are made, as `rows` takes it.
Cells = Mapping[str, Any] | Iterable[tuple[str, Any]] | None

_TABLE = re.compile(
    r"(?P<open><!-- table: (?P<name>[\w-]+) -->\n)"
    r"(?P<body>(?:(?!<!-- table:).)*?)"
    r"(?P<close><!-- end -->)",
    re.DOTALL,
)
_VALUE = re.compile(
    r"(?P<open><!--=(?P<name>[\w.-]+)-->)"
    r"(?P<body>(?:(?!<!--|\n\n).)*)"
    r"(?P<close><!--/-->)",
    re.DOTALL,
)
# In Markdown a line that begins with a comment, after blanks or the mark of a list or
# quotation, is HTML as a whole: it would end its paragraph.
_BEGINS_A_LINE = re.compile(r"^(?:[\s>*+-]|\d+[.)])*(<!--[=/][\w.-]*-->)", re.MULTILINE)


def names(document: str) -> set[str]:
    """Returns the names of the tables and numbers that a document marks.

    A mark that is not closed, has an invalid name, or begins a line is a UserError.
    """
    found: list[str] = []
    for pattern, opens, closing in (
        (_TABLE, "<!-- table:", "'<!-- end -->' after the table"),
        (_VALUE, "<!--=", "'<!--/-->' after the number, in the same paragraph"),
    ):
        known = [match["name"] for match in pattern.finditer(document)]
        if len(known) != document.count(opens):
            raise UserError(
                f"a mark '{opens} NAME -->' has no proper name or is not closed; "
                f"expected {closing}"
            )
        found += known
    if match := _BEGINS_A_LINE.search(document):
        raise UserError(
            f"the mark {match[1]!r} begins a line, which Markdown takes for HTML; "
            "expected a word before it"
        )
    return set(found)


def tables(document: str) -> dict[str, str]:
    """Returns the text of each table that a document marks, by its name."""
    return {match["name"]: match["body"] for match in _TABLE.finditer(document)}


def fill(document: str, made: Mapping[str, str], *, others: bool = False) -> str:
    """Returns a document with its tables and numbers made from their texts by name.

    A marked name without a maker is a UserError, unless `others` is set: then its text
    is not changed. Errors of `names` are raised too.
    """
    unknown = sorted(names(document) - set(made))
    if unknown and not others:
        raise UserError(f"mark {unknown[0]!r}: expected one of {', '.join(made)}")

    def table(match: re.Match[str]) -> str:
        if match["name"] not in made:
            return match[0]
        return f"{match['open']}\n{made[match['name']].strip()}\n\n{match['close']}"

    def value(match: re.Match[str]) -> str:
        if match["name"] not in made:
            return match[0]
        new = made[match["name"]]
        # A line break inside the number stays where it is.
        same = match["body"].split() == new.split()
        return f"{match['open']}{match['body'] if same else new}{match['close']}"

    return _VALUE.sub(value, _TABLE.sub(table, document))


def check_names(chosen: Sequence[str], known: Sequence[str]) -> None:
    """Refuses a chosen name of a table or figure that nothing makes."""
    for name in chosen:
        if name not in known:
            close = difflib.get_close_matches(name, known, 3) or sorted(known)[:3]
            raise UserError(f"{name!r}: expected a name such as {', '.join(close)}")


def renew(
    pages: Sequence[Path],
    makers: Mapping[str, Callable[[], str]],
    *,
    only: Sequence[str] = (),
    root: Path,
) -> list[Path]:
    """Fills the marks of pages anew; returns the pages that changed.

    Before anything is made, all marks are checked: each has a maker, and each maker a
    mark, or a UserError names them. With `only`, other marks are not changed. One line
    is printed for each page below `root`.
    """
    marked = {}
    for page in pages:
        try:
            marked[page] = names(page.read_text())
        except UserError as error:
            raise UserError(f"{page.relative_to(root)}: {error}") from None
        if unknown := sorted(marked[page] - set(makers)):
            raise UserError(
                f"{page.relative_to(root)}: mark {unknown[0]!r}: expected one of "
                f"{', '.join(makers)}"
            )
    if unused := sorted(set(makers) - set().union(*marked.values())):
        raise UserError(f"made, and in no document: {', '.join(unused)}")
    changed: list[Path] = []
    made: dict[str, str] = {}
    for page, wanted in marked.items():
        chosen = wanted & set(only) if only else wanted
        if not chosen:
            continue
        print(f"{page.relative_to(root)}: {len(chosen)} texts", flush=True)
        made |= {name: makers[name]() for name in sorted(chosen - set(made))}
        old = page.read_text()
        new = fill(old, {name: made[name] for name in chosen}, others=True)
        if new != old:
            records.write_bytes(page, new.encode())
            changed.append(page)
    return changed


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
    made = list(cells.items() if isinstance(cells, Mapping) else cells)
    return [[heading for heading, _ in made]] + [
        [text(cell, row) if isinstance(cell, str) else cell(row) for _, cell in made]
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
