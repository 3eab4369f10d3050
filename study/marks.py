"""Tables and numbers of the documents, made from committed records.

A document holds each table, and each number in a sentence, between two marks that a
reader of the page does not see (CONTRIBUTING.md has both kinds). `renew` replaces the
text between the marks; `make_tables` knows which name is made from which record.
"""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from prednet_jax import records
from prednet_jax.errors import UserError

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


def fill(document: str, made: Mapping[str, str]) -> str:
    """Returns a document with its tables and numbers made from their texts by name.

    Other marks are not changed. Errors of `names` are raised too.
    """
    names(document)

    def table(match: re.Match[str]) -> str:
        if match["name"] not in made:
            return match[0]
        return f"{match['open']}\n{made[match['name']].strip()}\n\n{match['close']}"

    def value(match: re.Match[str]) -> str:
        new = made.get(match["name"], match["body"])
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
        new = fill(old, {name: made[name] for name in chosen})
        if new != old:
            records.write_bytes(page, new.encode())
            changed.append(page)
    return changed
