"""What a verdict says: its table for the terminal, its claims in words.

All functions take the content of verdict.json, or an entry of it.
"""

import textwrap

from prednet_jax.report import numbers
from prednet_jax.report.documents import columns
from prednet_jax.report.numbers import MISSING, significant
from prednet_jax.report.results import Record, contrasts, identical, label, relative

WIDTH = 100
_ANSWERS = {
    "noise lowers the loss": "yes, it lowers it",
    "noise raises the loss": "yes, it raises it",
    "no effect within the margin": "no",
    "same bits": "no, same bits",
}


def display_name(model: str) -> str:
    """A model's name as a heading has it."""
    return {"prednet": "PredNet", "autoencoder": "Autoencoder"}.get(model, model)


def text_table(verdict: Record) -> str:
    """The verdict as plain text: per model a line, a row per contrast and a sentence.

    `n` counts the pairs of seeds, `same` those whose final weights equal the control's
    byte for byte.
    """
    return "\n\n".join(
        _text_of_model(verdict, model, str(word))
        for model, word in verdict["verdict"].items()
    )


def _text_of_model(verdict: Record, model: str, word: str) -> str:
    chosen = contrasts(verdict, model)
    lines = [f"{model}, these seeds alone: {word}"]
    if chosen:
        first = chosen[0]
        lines.append(
            f"{first.get('metric') or 'metric not recorded'}; margin "
            f"{significant(first.get('margin'))}; control {first['control']}: mean "
            f"loss {significant(first.get('control_mean'), 4)}"
        )
        level = numbers.percent(first.get("confidence") or 0.95, sign=False)
        head = ["treatment", "n", "mean loss", f"difference [{level} interval]"]
        rows = [[*head, "p Holm", "TOST p", "verdict", "same"]]
        for contrast in chosen:
            name, *cells = text_row(contrast)
            treatment, _, control = name.partition(" - ")
            rows.append([treatment, *cells])
            if control:
                rows.append([f"- {control}", *[""] * len(cells)])
        table = columns(rows, right=(1, 2)).splitlines()
        lines += [table[0], "-" * max(map(len, table)), *table[1:]]
        families = dict.fromkeys(contrast.get("p_holm_family") for contrast in chosen)
        if said := ", ".join(filter(None, families)):
            lines.append(f"p Holm: over {said}")
    for exclusion in verdict.get("excluded") or ():
        if isinstance(exclusion, dict) and exclusion.get("model") == model:
            names = ("seed", "treatment", "control", "reason")
            seed, *pair, reason = map(exclusion.get, names)
            lines.append(f"left out: seed {seed} of {pair[0]} - {pair[1]} ({reason})")
    if sentence := (verdict.get("details") or {}).get(model, {}).get("sentence"):
        lines += textwrap.wrap(str(sentence), WIDTH, break_on_hyphens=False)
    return "\n".join(lines)


def text_row(contrast: Record) -> list[str]:
    """A contrast as cells of plain text, in the order of the terminal's table."""
    n, same = contrast.get("n", MISSING), contrast.get("bitwise_equal")
    return [
        label(contrast),
        str(n),
        significant(contrast.get("treatment_mean"), 4),
        difference(contrast),
        numbers.probability(contrast.get("p_holm")),
        numbers.probability(contrast.get("tost_p")),
        contrast["verdict"],
        MISSING if same is None else f"{same}/{n}",
    ]


def difference(contrast: Record) -> str:
    """A difference in units of the loss, of logarithms in percent.

    With its interval, if seeds give one.
    """
    if contrast.get("scale") == "log":
        return effect(contrast)
    said = significant(contrast.get("mean_difference"), sign=True)
    ends = numbers.interval(contrast.get("ci_low"), contrast.get("ci_high"))
    return said if ends == MISSING else f"{said} {ends}"


def claim_lines(verdict: Record) -> str:
    """The claims of a verdict for the terminal, a sentence each."""
    sentences = claim_sentences(verdict)
    wrapped = (textwrap.wrap(s, WIDTH, break_on_hyphens=False) for s in sentences)
    return "\n".join(line for lines in wrapped for line in lines)


def claim_sentences(verdict: Record) -> list[str]:
    """Each claim with its answer, what was measured, predicted and published."""
    together = {(c["claim"], c["model"]): c for c in verdict.get("together") or ()}
    checks = verdict.get("manipulation") or {}
    sentences = []
    for claim in verdict.get("claims") or ():
        name, model = claim["claim"], claim["model"]
        check = checks.get(model) or {}
        sentences.append(_sentence(claim, together.get((name, model)), check))
    return sentences


def _sentence(claim: Record, together: Record | None, check: Record) -> str:
    answer = _ANSWERS.get(claim["answer"], claim["answer"])
    said = f"{claim['model']}: {claim['claim']}"
    apart = check.get("distance_over_travelled", 1.0)
    about_order = claim["claim"].startswith("random order")
    if about_order and answer == "cannot tell" and apart < 0.1:
        return (
            f"{said}: not in this length, {_three(claim)}; the runs are "
            f"{significant(apart, 1)} of the way apart, too little to say more"
        )
    said += f": {answer}"
    if not claim["estimate"]:
        return said
    if claim.get("predicted") is None:
        few = None in (claim["low"], claim["high"])
        note = " (too few seeds for an interval)" * few
        return f"{said}, {_three(claim)}{note}"
    ends = " to ".join(signed_percent(end) for end in claim["predicted"])
    said += f", {_three(claim)} here, predicted {ends}"
    said += "" if claim["holds"] else ", outside, as one honest run in 14 is"
    others = {"published": claim.get("published"), "together": together}
    known = [
        f"{name} {_three(record)}"
        for name, record in others.items()
        if record is not None
    ]
    return f"{said} ({'; '.join(known)})" if known else said


def signed_percent(fraction: float) -> str:
    """A change of the loss: whole percents from 10 on, else one decimal."""
    value = 100 * fraction
    places = 0 if abs(value) >= 10 else 1
    return f"{value:+.{places}f}" if round(value, places) else "0.0"


def _three(record: Record) -> str:
    """An estimate with its interval, in percent."""
    said = f"{signed_percent(record['estimate'])} %"
    if None in (record["low"], record["high"]):
        return said
    low, high = signed_percent(record["low"]), signed_percent(record["high"])
    return f"{said} [{low}, {high}]"


def effect(contrast: Record) -> str:
    """A difference in percent of the control's loss, with its interval."""
    if identical(contrast):
        return "0, bit for bit"
    mean, low, high = (
        None if (value := relative(contrast, name)) is None else 100 * value
        for name in ("mean_difference", "ci_low", "ci_high")
    )
    return "not recorded" if mean is None else numbers.change(mean, low, high)
