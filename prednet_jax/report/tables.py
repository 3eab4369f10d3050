"""The tables of a verdict: plain text for the terminal, rows for the page."""

import html
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prednet_jax.report.numbers import (
    MISSING,
    interval,
    percent,
    probability,
    significant,
    typeset,
)
from prednet_jax.report.results import contrasts, identical, label, relative

WIDTH = 100
_HEAD = (
    "treatment",
    "n",
    "mean loss",
    "difference [95 % interval]",
    "p Holm",
    "TOST p",
    "verdict",
    "same",
)


def text_table(verdict: Mapping[str, Any]) -> str:
    """The verdict as text, at most 100 columns wide.

    Args:
      verdict: the content of verdict.json.

    Returns:
      For each model a line with the verdict, one row a contrast and the rule's own
      sentence. `n` counts the pairs of seeds, `same` those whose final weights equal
      the control's byte for byte.
    """
    return "\n\n".join(
        _text_of_model(verdict, model, str(word))
        for model, word in verdict["verdict"].items()
    )


def _text_of_model(verdict: Mapping[str, Any], model: str, word: str) -> str:
    chosen = contrasts(verdict, model)
    lines = [f"{model}: {word.upper()}"]
    if chosen:
        first = chosen[0]
        lines.append(
            f"{_metric(first)}; margin {significant(first.get('margin'))}; control "
            f"{first['control']}: mean loss {significant(first.get('control_mean'), 4)}"
        )
        rows = [list(_HEAD)] + [text_row(one) for one in chosen]
        rows[0][3] = f"difference [{_level(first)} interval]"
        lines += _align(rows)
        if note := family(chosen):
            lines.append(note)
    left_out = [
        one
        for one in verdict.get("excluded") or ()
        if isinstance(one, Mapping) and one.get("model") == model
    ]
    lines += [
        f"left out: seed {one.get('seed')} of {one.get('treatment')} - "
        f"{one.get('control')} ({one.get('reason')})"
        for one in left_out
    ]
    sentence = (verdict.get("details") or {}).get(model, {}).get("sentence")
    if sentence:
        lines.append(str(sentence))
    return "\n".join(part for line in lines for part in _fit(line))


def _fit(line: str) -> list[str]:
    # Rows keep their spacing; only a line that is too long is broken, between words.
    if len(line) <= WIDTH:
        return [line]
    return textwrap.wrap(line, WIDTH, break_on_hyphens=False)


def text_row(one: Mapping[str, Any]) -> list[str]:
    """A contrast as cells of plain text, in the order of the terminal's table."""
    difference = significant(one.get("mean_difference"), sign=True)
    ends = interval(one.get("ci_low"), one.get("ci_high"))
    return [
        label(one),
        str(one.get("n", MISSING)),
        significant(one.get("treatment_mean"), 4),
        f"{difference} {ends}",
        probability(one.get("p_holm")),
        probability(one.get("tost_p")),
        one["verdict"],
        _same(one),
    ]


def _align(rows: list[list[str]]) -> list[str]:
    """Pads the columns; a name too long for the line gets one of its own above."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= WIDTH else " "
    spare = WIDTH - sum(widths[1:]) - len(gap) * (len(widths) - 1)
    widths[0] = max(8, min(widths[0], spare))
    lines = []
    for row in rows:
        first = row[0]
        if len(first) > widths[0]:
            lines.append(first)
            first = ""
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(w) for cell, w in zip(row[1:3], widths[1:3], strict=True)]
        cells += [cell.ljust(w) for cell, w in zip(row[3:], widths[3:], strict=True)]
        lines.append(gap.join(cells).rstrip())
    lines.insert(1, gap.join("-" * width for width in widths))
    return lines


def _metric(one: Mapping[str, Any]) -> str:
    return str(one.get("metric") or "metric not recorded")


def _level(one: Mapping[str, Any]) -> str:
    return percent(one.get("confidence") or 0.95, sign=False)


def _same(one: Mapping[str, Any]) -> str:
    if one.get("bitwise_equal") is None:
        return MISSING
    return f"{one['bitwise_equal']}/{one.get('n', MISSING)}"


def family(chosen: Sequence[Mapping[str, Any]]) -> str:
    """What the column of Holm's p is corrected over; empty where it is not recorded."""
    found = dict.fromkeys(str(f) for one in chosen if (f := one.get("p_holm_family")))
    return f"p Holm: over {', '.join(found)}" if found else ""


def verdict_table(chosen: Sequence[Mapping[str, Any]]) -> str:
    """The contrasts of one model as an HTML table."""
    head = (
        "Treatment",
        "n",
        "Mean loss",
        f"Difference [{_level(chosen[0])} interval]",
        "Relative",
        "p, sign flip",
        "p, Holm",
        "p, TOST",
        "Same bits",
        "Verdict",
    )
    rows = [(_verdict_cells(one), one["verdict"]) for one in chosen]
    return table(
        head,
        [cells for cells, _ in rows],
        classes=[word.replace(" ", "-") for _, word in rows],
    )


def _verdict_cells(one: Mapping[str, Any]) -> list[str]:
    difference = significant(one.get("mean_difference"), sign=True)
    ends = interval(one.get("ci_low"), one.get("ci_high"))
    if identical(one):
        difference, ends = "0,", "bit for bit"
    return [
        f"<code>{html.escape(label(one))}</code>",
        html.escape(str(one.get("n", MISSING))),
        typeset(significant(one.get("treatment_mean"), 4)),
        f'{typeset(difference)} <span class="ends">{typeset(ends)}</span>',
        typeset(percent(relative(one, "mean_difference"))),
        typeset(probability(one.get("p_value"))),
        typeset(probability(one.get("p_holm"))),
        typeset(probability(one.get("tost_p"))),
        html.escape(_same(one)),
        f'<span class="word">{html.escape(one["verdict"])}</span>',
    ]


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    classes: Sequence[str] | None = None,
) -> str:
    """An HTML table whose cells know their column's name, for narrow screens.

    Args:
      head: column names, plain text.
      rows: cells, HTML already.
      classes: a class a row, or None.
    """
    cells = "".join(f'<th scope="col">{typeset(name)}</th>' for name in head)
    lines = [f"<table><thead><tr>{cells}</tr></thead><tbody>"]
    for number, row in enumerate(rows):
        name = f' class="{html.escape(classes[number])}"' if classes else ""
        first = f'<th scope="row">{row[0]}</th>'
        rest = "".join(
            f'<td data-label="{html.escape(title)}"><span>{cell}</span></td>'
            for title, cell in zip(head[1:], row[1:], strict=True)
        )
        lines.append(f"<tr{name}>{first}{rest}</tr>")
    return "\n".join([*lines, "</tbody></table>"])


def arms_list(arms: Sequence[Mapping[str, Any]]) -> str:
    """The arms of one model: what each is, how it went, and its exact command."""
    return f'<div class="columns arms">{"".join(map(_arm, arms))}</div>'


def _arm(arm: Mapping[str, Any]) -> str:
    status = str(arm.get("status") or "status not recorded")
    facts = [status]
    if arm.get("noise") not in (None, "none"):
        facts.append(f"noise {arm['noise']}")
    if arm.get("gpu"):
        facts.append(f"on {arm['gpu']}")
    if arm.get("threads"):
        facts.append(f"{arm['threads']} thread{'s' if arm['threads'] != 1 else ''}")
    if arm.get("measured_parallelism"):
        busy = significant(arm["measured_parallelism"], 2)
        facts.append(f"{busy} processors busy, measured")
    if arm.get("seconds_per_update"):
        pace = significant(1000 * arm["seconds_per_update"])
        facts.append(f"{pace} ms an update")
    kind = "arm skipped" if status.startswith("skip") else "arm"
    name = html.escape(str(arm.get("name")))
    meaning = html.escape(str(arm.get("meaning") or ""))
    command = arm.get("command")
    # Each word keeps together: a line must not break inside "--flag".
    words = [f"<span>{html.escape(w)}</span>" for w in str(command).split(" ")]
    return (
        f'<div class="{kind}"><h4><code>{name}</code> {meaning}</h4>'
        f'<p class="facts">{typeset(" · ".join(facts))}</p>'
        + (f"<pre>{' '.join(words)}</pre>" if command else "")
        + "</div>"
    )


def nested(value: Any) -> str:
    """Any JSON value as HTML: objects as lists, lists of objects as tables."""
    if isinstance(value, Mapping):
        entries = "".join(
            f"<div><dt>{html.escape(_words(key))}</dt><dd>{nested(one)}</dd></div>"
            for key, one in value.items()
        )
        return f"<dl>{entries}</dl>"
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(one, Mapping) for one in value):
            names = list(dict.fromkeys(name for one in value for name in one))
            rows = [[nested(one.get(name)) for name in names] for one in value]
            return table([_words(name) for name in names], rows)
        return ", ".join(nested(one) for one in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return MISSING
    if isinstance(value, float):
        return typeset(significant(value, 4))
    if isinstance(value, int):
        return str(value)
    return html.escape(str(value))


def _words(name: object) -> str:
    return str(name).replace("_", " ")
