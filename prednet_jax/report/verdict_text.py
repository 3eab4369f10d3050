"""The text of a verdict: its table for the terminal, and its claims in sentences.

All functions take a `Verdict`, or a part of it.
"""

import math
import textwrap

from prednet_jax.records.verdict import (
    SEPARATED,
    Answer,
    Claim,
    Contrast,
    Estimate,
    Kind,
    Margin,
    Verdict,
)
from prednet_jax.report import numbers
from prednet_jax.report.numbers import MISSING, significant
from prednet_jax.report.tables import columns

WIDTH = 100


def display_name(model: str) -> str:
    """Returns a model's name as a heading has it."""
    return {"prednet": "PredNet", "autoencoder": "Autoencoder"}.get(model, model)


def text_table(verdict: Verdict) -> str:
    """Returns the verdict as plain text, a row per contrast.

    `n` counts the pairs of seeds, `same` those whose final weights equal the control's
    byte for byte.
    """
    texts = [_text_of_model(verdict, *item) for item in verdict.verdict.items()]
    if verdict.emulated_only:
        texts.append("This is about emulated noise only: no GPU was used.")
    return "\n\n".join(texts)


def _text_of_model(verdict: Verdict, model: str, word: str) -> str:
    chosen = verdict.of_model(model)
    lines = [f"{model}, by the rule for these seeds: {word}"]
    if chosen:
        first = chosen[0]
        lines.append(
            f"{first.metric or 'metric not recorded'}; margin "
            f"{significant(first.margin)}; control {first.control}: mean "
            f"loss {significant(first.control_mean, 4)}"
        )
        level = f"{100 * first.confidence:g} %"
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
        families = dict.fromkeys(contrast.p_holm_family for contrast in chosen)
        if said := ", ".join(filter(None, families)):
            lines.append(f"p Holm: over {said}")
    lines += [
        f"left out: seed {row.seed} of {row.treatment} - {row.control} ({row.reason})"
        for row in verdict.excluded or ()
        if row.model == model
    ]
    return "\n".join(lines)


def text_row(contrast: Contrast) -> list[str]:
    """Returns a contrast as cells of plain text, in the table's order."""
    n, same = contrast.n or MISSING, contrast.bitwise_equal
    return [
        contrast.label,
        str(n),
        significant(contrast.treatment_mean, 4),
        difference(contrast),
        numbers.probability(contrast.p_holm),
        numbers.probability(contrast.tost_p),
        contrast.verdict,
        MISSING if same is None else f"{same}/{n}",
    ]


def difference(contrast: Contrast) -> str:
    """Returns a difference in units of the loss, of logarithms in percent.

    With its interval, if seeds give one.
    """
    if contrast.scale == "log":
        return effect(contrast)
    said = significant(contrast.mean_difference, sign=True)
    ends = numbers.interval(contrast.ci_low, contrast.ci_high)
    return said if ends == MISSING else f"{said} {ends}"


def claim_lines(verdict: Verdict) -> str:
    """Returns the claims of a verdict for the terminal, a paragraph each."""
    sentences = claim_sentences(verdict)
    wrapped = (textwrap.wrap(s, WIDTH, break_on_hyphens=False) for s in sentences)
    return "\n\n".join("\n".join(lines) for lines in wrapped)


def claim_sentences(verdict: Verdict) -> list[str]:
    """Returns each claim in sentences: its answer, its effect, the published one."""
    return [
        f"{_answer(claim, verdict.margins.get(claim.model))} {_numbers(claim)}"
        for claim in verdict.claims
    ]


def unpublished(verdict: Verdict) -> list[str]:
    """Returns why claims have no published numbers, a sentence each."""
    differs = verdict.design.get("differs_from_study") or {}
    reasons = []
    for claim in verdict.claims:
        if claim.published is not None:
            continue
        name = display_name(claim.model)
        why = "the study published no numbers that this comparison repeats"
        if differences := differs.get(claim.model):
            why = f"this comparison has {', '.join(differences)}"
        reasons.append(f"Nothing is published or predicted for {name}: {why}.")
    return list(dict.fromkeys(reasons))


def _answer(claim: Claim, margin: Margin | None) -> str:
    """Summarizes a claim in one sentence, or in two."""
    name = display_name(claim.model)
    if claim.kind is Kind.STALE:
        mistake = "the mistake of the article's script (stale targets)"
        said = {
            Answer.YES: f"{mistake} raises the loss, the error of the predictions",
            Answer.NO: f"{mistake} lowers the loss, the error of the predictions",
        }.get(claim.answer, f"these runs cannot tell whether {mistake} raises the loss")
        return f"{name}: {said}."
    if claim.kind is Kind.SADDLE:
        said = {
            Answer.YES: "a training that starts exactly on a saddle point, where units "
            "are identical and training cannot tell them apart, leaves it once their "
            "sums are added in different orders; the ordinary float32 program stays",
            Answer.NO: "a training that starts exactly on a saddle point does not "
            "leave it to a lower loss, whatever the order of its sums",
        }.get(claim.answer, "these runs are too short to leave an exact saddle point")
        remark = claim.remark and f" {claim.remark[0].upper()}{claim.remark[1:]}."
        return f"{name}: {said}.{remark}"
    cause = {
        Kind.NOISE: "adding sums in a random order",
        Kind.GPU: "a GPU's own noise",
        Kind.FLOAT32: "float32's own order of sums",
    }[claim.kind]
    size = "the margin"
    if margin is not None and math.isfinite(margin.fraction):
        size += f" of {100 * margin.fraction:g} %"
    nothing = f"{cause} changes the loss by less than {size}"
    said = {
        Answer.LOWERS: f"{cause} lowers the loss",
        Answer.RAISES: f"{cause} raises the loss",
        Answer.NO_EFFECT: nothing,
        Answer.SAME_BITS: f"{cause} leaves the same bits",
        Answer.YES: f"{cause} changes the loss",
        Answer.NO: nothing,
    }.get(claim.answer, f"these runs cannot tell whether {cause} changes the loss")
    if claim.together is not None and claim.answer is not Answer.CANNOT_TELL:
        seeds = f"{claim.together.seeds} seeds of " * (claim.together.seeds is not None)
        said += f" ({seeds}the study and these runs together: {_three(claim.together)})"
    distance = math.inf if claim.distance is None else claim.distance
    if claim.answer is Answer.CANNOT_TELL and distance < SEPARATED:
        said += (
            ", because they are too short: their final weights differ by only "
            f"{significant(100 * distance, 1)} % of the distance that training moved "
            "them"
        )
    return f"{name}: {said}."


def _numbers(claim: Claim) -> str:
    """Returns the numbers of a claim: here, published, predicted."""
    said = f"In these runs the loss changes by {_three(claim.found)}."
    if claim.answer is Answer.SAME_BITS:
        said = "Here the losses are equal."
    if claim.published is None:
        return said
    said += f" After as many updates the study found {_three(claim.published)}"
    if claim.predicted is None:
        return f"{said}."
    low, high = (signed_percent(end) for end in claim.predicted)
    said += f", and expects {low} % to {high} % from a repetition of this size"
    if not claim.holds:
        return f"{said}. This one lies outside, as 1 honest repetition in 14 does."
    return f"{said}."


def signed_percent(fraction: float) -> str:
    """Returns a change of the loss: whole percents from 10 on, else one decimal."""
    value = 100 * fraction
    places = 0 if abs(value) >= 10 else 1
    return f"{value:+.{places}f}" if round(value, places) else "0.0"


def _three(estimate: Estimate) -> str:
    """Returns an estimate with its interval, in percent."""
    said = f"{signed_percent(estimate.estimate)} %"
    if estimate.low is None or estimate.high is None:
        return said
    low, high = signed_percent(estimate.low), signed_percent(estimate.high)
    return f"{said} [{low}, {high}]"


def effect(contrast: Contrast) -> str:
    """Returns a difference in percent of the control's loss, with its interval."""
    if contrast.identical:
        return "0, bit for bit"
    mean, low, high = (
        None if (value := contrast.relative(name)) is None else 100 * value
        for name in ("mean_difference", "ci_low", "ci_high")
    )
    return "not recorded" if mean is None else numbers.change(mean, low, high)
