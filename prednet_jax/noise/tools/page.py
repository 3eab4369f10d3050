"""A report as JSON or as one HTML page: no scripts, no links, all text escaped."""

from __future__ import annotations

import dataclasses
import html
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem;
       padding: 0 1rem; color: #222; background: #fff; }
pre { background: #f6f6f4; padding: .8rem; white-space: pre-wrap; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem .8rem;
       border-bottom: 1px solid #ddd; vertical-align: top; }
td.line { font-family: ui-monospace, monospace; white-space: pre; }
tr.marked td { background: #fff3c4; } td.number { color: #888; text-align: right; }
"""

# Lines shown before and after a line that is named.
_AROUND = 2


def plain_data(value: Any) -> Any:
    """A report as JSON has it: lists, dictionaries, texts and finite numbers.

    Named tuples and dataclasses become dictionaries; NaN and infinities become None.
    """
    if hasattr(value, "to_json"):
        return plain_data(value.to_json())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value))
        return {name: plain_data(getattr(value, name)) for name in fields}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain_data(x) for name, x in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(name): plain_data(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(x) for x in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return plain_data(np.asarray(value).tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool | int | str | None) else str(value)


def html_page(head: Mapping[str, str], text: str, report: Any) -> str:
    """One self-contained page: what was asked, the answer, and the lines it names.

    Args:
        head: title and value of what was asked.
        text: the answer as text.
        report: the answer; what in it has a `source` marks a line.
    """
    title = f"{head['command']} of {head['function']}"
    asked = "".join(
        f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>"
        for name, value in head.items()
    )
    marks: dict[str, list[str]] = {}
    for entry in _entries(report):
        marks.setdefault(entry.source, []).append(
            f"{entry.path} {_note(entry)}".strip()
        )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{_text(title)}</h1><table>{asked}</table>"
        f"<pre>{_text(text)}</pre>{''.join(_listings(marks))}</body></html>\n"
    )


def _entries(report: Any) -> Iterator[Any]:
    """Everything in a report that names a line, once."""
    seen = set()

    def walk(value: Any) -> Iterator[Any]:
        if getattr(value, "source", ""):
            if value.path not in seen:
                seen.add(value.path)
                yield value
        elif isinstance(value, Mapping):
            for item in value.values():
                yield from walk(item)
        elif isinstance(value, list | tuple):
            for item in value:
                yield from walk(item)

    return walk(report)


def _note(entry: Any) -> str:
    """What is said about a line."""
    if hasattr(entry, "flipped"):
        return f"flipped in {entry.flipped:.0%} of draws"
    if hasattr(entry, "effect"):
        return f"effect {entry.effect:.3g}"
    if getattr(entry, "partials", None):
        return f"{entry.partials} pieces"
    return str(getattr(entry, "reason", ""))


def _listings(marks: Mapping[str, list[str]]) -> Iterator[str]:
    """The lines that are named, with those around, file by file."""
    files: dict[str, dict[int, list[str]]] = {}
    for source, notes in marks.items():
        place = source.partition(" in ")[0]
        name, _, line = place.rpartition(":")
        files.setdefault(name, {}).setdefault(int(line), []).extend(notes)
    for name, lines in files.items():
        yield f"<h2>{_text(name)}</h2><table>"
        path = _path(name)
        code = path.read_text(errors="replace").splitlines() if path else []
        last = 0
        for number in _shown(lines, len(code)):
            if last and number > last + 1:
                yield "<tr><td class=number>...</td><td></td><td></td></tr>"
            last = number
            content = code[number - 1] if number <= len(code) else ""
            said = "<br>".join(map(_text, lines.get(number, [])))
            kind = ' class="marked"' if number in lines else ""
            yield (
                f'<tr{kind}><td class="number">{number}</td>'
                f'<td class="line">{_text(content)}</td><td>{said}</td></tr>'
            )
        yield "</table>"


def _shown(lines: Mapping[int, Any], length: int) -> list[int]:
    """Numbers of the marked lines and of those around."""
    near = {n + d for n in lines for d in range(-_AROUND, _AROUND + 1)}
    return sorted(n for n in near if n in lines or 1 <= n <= length)


def _path(name: str) -> Path | None:
    """The file of a loaded module that has this name, the user's before libraries'."""
    found = [
        Path(file)
        for module in list(sys.modules.values())
        if (file := getattr(module, "__file__", None)) and Path(file).name == name
    ]
    found = [path for path in found if path.is_file()]
    found.sort(key=lambda path: "site-packages" in path.parts)
    return found[0] if found else None


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)
