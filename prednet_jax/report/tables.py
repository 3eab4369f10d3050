"""The table of a verdict, in plain text for the terminal."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from prednet_jax.report.numbers import (
    MISSING,
    interval,
    percent,
    probability,
    significant,
)
from prednet_jax.report.results import contrasts, label

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


_SAID = {
    "noise lowers the loss": "yes, it lowers it",
    "noise raises the loss": "yes, it raises it",
    "no effect within the margin": "no",
    "same bits": "no, same bits",
}


def claim_lines(verdict: Mapping[str, Any]) -> str:
    """The claims of a verdict, a sentence each.

    Args:
      verdict: the content of verdict.json.
    """
    return "\n".join(part for line in claim_sentences(verdict) for part in _fit(line))


def claim_sentences(verdict: Mapping[str, Any]) -> list[str]:
    """The same, each in one line."""
    both = {(c["claim"], c["model"]): c for c in verdict.get("together") or ()}
    return [
        _sentence(
            claim,
            both.get((claim["claim"], claim["model"])),
            (verdict.get("manipulation") or {}).get(claim["model"]),
        )
        for claim in verdict.get("claims") or ()
    ]


def _sentence(
    claim: Mapping[str, Any],
    both: Mapping[str, Any] | None,
    check: Mapping[str, Any] | None,
) -> str:
    """A claim with its answer, what was measured, predicted and published.

    Args:
      claim: an entry of `claims`.
      both: the entry of `together` with the same claim.
      check: the entry of `manipulation` of its model.
    """
    answer = _SAID.get(claim["answer"], claim["answer"])
    said = f"{claim['model']}: {claim['claim']}: {answer}"
    apart = check["distance_over_travelled"] if check else None
    about_order = claim["claim"].startswith("random order")
    if about_order and answer == "cannot tell" and apart is not None and apart < 0.1:
        return (
            f"{claim['model']}: {claim['claim']}: not in this length, {_three(claim)}; "
            f"the runs are {significant(apart, 1)} of the way apart, too little to say "
            "more"
        )
    predicted, published = claim.get("predicted"), claim.get("published")
    if not claim["estimate"]:
        return said
    if predicted is None:
        said += f", {_three(claim)}"
        few = None in (claim["low"], claim["high"])
        return said + " (too few seeds for an interval)" * few
    ends = " to ".join(signed_percent(end) for end in predicted)
    said += f", {_three(claim)} here, predicted {ends}"
    said += "" if claim["holds"] else ", outside, as one honest run in 20 is"
    beside = {"published": published, "together": both}
    known = [f"{name} {_three(one)}" for name, one in beside.items() if one is not None]
    return f"{said} ({'; '.join(known)})" if known else said


def signed_percent(fraction: float) -> str:
    """A change of the loss: whole percents from 10 on, else one decimal."""
    value = 100 * fraction
    places = 0 if abs(value) >= 10 else 1
    return f"{value:+.{places}f}" if round(value, places) else "0.0"


def _three(record: Mapping[str, Any]) -> str:
    """An estimate with its interval, in percent."""
    ends = [record["low"], record["high"]]
    said = f"{signed_percent(record['estimate'])} %"
    if None in ends:
        return said
    low, high = map(signed_percent, ends)
    return f"{said} [{low}, {high}]"


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
