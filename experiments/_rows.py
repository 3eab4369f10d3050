"""Tidy tables as CSV files, and the command line of scripts that use no absl."""

import argparse
import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from prednet_jax import records

Rows = Sequence[Mapping[str, object]]


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a table; none where there is no file."""
    if not path.is_file():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def by(rows: Rows, *columns: str, value: str | None = None) -> dict:
    """Rows in nested dictionaries, by what they hold in some columns, in their order.

    Args:
        rows: of a table; of rows that agree in all these columns the last one counts.
        columns: outermost first.
        value: the column to keep; None: the whole row.
    """
    found: dict = {}
    for row in rows:
        place = found
        for column in columns[:-1]:
            place = place.setdefault(row[column], {})
        place[row[columns[-1]]] = row if value is None else row[value]
    return found


def write(path: Path, rows: Rows, fields: Iterable[str] | None = None) -> None:
    """Writes a table, whole or not at all.

    Args:
        path: its file; missing folders are made.
        rows: what each row holds, by column.
        fields: the columns in order; None: those of the first row.
    """
    text = io.StringIO()
    names = list(rows[0] if fields is None else fields)
    out = csv.DictWriter(text, names, lineterminator="\n")
    out.writeheader()
    out.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    records.write_bytes(path, text.getvalue().encode())


def came_true(found: Iterable[tuple[str, bool]]) -> bool:
    """Prints each prediction and its verdict; whether all came true."""
    found = list(found)
    for text, held in found:
        print(f"{text}: {'came true' if held else 'FAILED'}")
    return all(held for _, held in found)


def parser(description: str | None) -> argparse.ArgumentParser:
    """A command line whose help is a module's docstring as it stands."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
