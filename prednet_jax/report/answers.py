"""The verdict in plain language, each sentence derived from the records."""

import html
from collections.abc import Mapping
from typing import Any

from prednet_jax.report.numbers import (
    MISSING,
    percent,
    probability,
    significant,
    typeset,
)
from prednet_jax.report.results import Results, identical, relative

_KICKERS = {"refuted": "hypothesis refuted", "supported": "hypothesis supported"}
ANSWERS = {"refuted": "No.", "supported": "Yes.", "inconclusive": "Not settled."}
_NAMES = {"prednet": "PredNet", "autoencoder": "Autoencoder"}


def display_name(model: str) -> str:
    """A model's name as a heading has it."""
    return _NAMES.get(model, model)


def question(results: Results) -> str:
    """What the comparison asks."""
    if "prednet" in results.models:
        return "Does numerical noise make PredNet train better?"
    return "Does numerical noise make a network train better?"


def details(results: Results, model: str) -> dict[str, Any]:
    """What the decision rule recorded about a model; empty where it did not."""
    found = results.section("details").get(model) or {}
    return dict(found) if isinstance(found, Mapping) else {}


def sentence(results: Results, model: str) -> str:
    """One sentence under the answer."""
    word = str(results.verdict["verdict"][model])
    record = details(results, model)
    noise = results.contrast(model, "treatment")
    if word == "supported":
        return (
            "Noise lowers the loss beyond the margin on most seeds, reproduced by an "
            "independent draw of the noise."
        )
    if word == "refuted":
        if identical(noise):
            return "Sums in a fresh random order change no bit of the weights."
        where = "" if record.get("emulated_only", True) else ", emulated and on a GPU,"
        return (
            f"Sums in a fresh random order{where} change the final loss by less than "
            "the margin, at this horizon and for this network."
        )
    unmet = record.get("unmet_for_refuted") or []
    missing = record.get("seeds_still_needed")
    parts = [f"No answer yet: {unmet[0]}."] if unmet else []
    if missing:
        parts.append(f"With this spread, {missing} more seeds are needed.")
    return " ".join(parts) or "The records decide neither way."


def card(results: Results, model: str) -> str:
    """The answer for one model, with the few numbers behind it, as HTML."""
    word = str(results.verdict["verdict"][model])
    kicker = _KICKERS.get(word, word)
    record = details(results, model)
    facts = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{value}</dd></div>"
        for name, value in _facts(results, model)
    )
    tag = ""
    if record.get("emulated_only"):
        tag = '<p class="tag">about emulated noise only: no GPU was used</p>'
    return (
        f'<article class="card {html.escape(word)}">'
        f'<p class="kicker">{html.escape(f"{display_name(model)}: {kicker}")}</p>'
        f'<p class="answer">{html.escape(ANSWERS.get(word, word))}</p>'
        f"<p>{html.escape(sentence(results, model))}</p>"
        f"<dl>{facts}</dl>{tag}</article>"
    )


def _facts(results: Results, model: str) -> list[tuple[str, str]]:
    """Names, and values as HTML."""
    facts = []
    for role, name in (
        ("treatment", "Random order of every sum"),
        ("gpu", "GPU"),
        ("stale", "Stale targets"),
    ):
        contrast = results.contrast(model, role)
        if contrast is not None:
            facts.append((name, effect(contrast)))
    for contrast in results.contrasts(model):
        if contrast.get("role") == "gpu_deterministic":
            name = f"GPU, deterministic against {contrast['control']}"
            facts.append((name, effect(contrast)))
    if results.contrasts(model):
        first = results.contrasts(model)[0]
        margin = relative(first, "margin")
        if margin is None:
            margin_text = significant(first.get("margin"))
        else:
            margin_text = percent(margin, sign=False)
        if margin_text != MISSING:
            facts.append(("Counts as none", f"within ±{typeset(margin_text)}"))
        seeds = f"{first.get('n', MISSING)} seeds"
        power = details(results, model).get("achieved_power")
        if power is not None:
            seeds += f", power {probability(power)}"
        facts.append(("Sample", typeset(seeds)))
    return facts


def effect(contrast: Mapping[str, Any]) -> str:
    """A difference relative to the control's loss, with its interval, as HTML."""
    if identical(contrast):
        return "0, bit for bit"
    gap = relative(contrast, "mean_difference")
    if gap is None:
        return typeset(significant(contrast.get("mean_difference"), sign=True))
    low, high = (relative(contrast, name) for name in ("ci_low", "ci_high"))
    if 0 < abs(gap) < 1e-5:
        return "under 0.001&nbsp;%"
    number = significant(100 * gap, 2, sign=True)
    text = typeset(f"{number} %")
    if low is not None and high is not None and "e" not in number:
        places = len(number.partition(".")[2])
        ends = f"[{100 * low:+.{places}f}, {100 * high:+.{places}f}]"
        text += f' <span class="ends">{typeset(ends)}</span>'
    return text


def gap(contrast: Mapping[str, Any] | None) -> str:
    """The difference from the control in a few words; empty where it is not known."""
    if identical(contrast):
        return "same bits"
    change = relative(contrast, "mean_difference")
    if change is None:
        return ""
    if 0 < abs(change) < 1e-5:
        return "under 0.001 %"
    return percent(change).replace("-", "−")


def limits(results: Results) -> list[str]:
    """What the verdict does not say, as plain text."""
    found = []
    records = {model: details(results, model) for model in results.models}
    if any(record.get("emulated_only") for record in records.values()):
        found.append(
            "The verdict is about emulated noise only: no GPU was used. It says what "
            "random summation orders do, not what one GPU does."
        )
    found += [
        "It holds for the networks, data, optimiser and number of updates listed "
        "above, and for no others.",
        "Equivalent means: within the margin that was fixed beforehand. It does not "
        "mean no difference at all.",
        "Bands in the figures are the spread between initial weights. The comparison "
        "is paired over seeds and far finer than the bands.",
    ]
    for model, record in records.items():
        scales = record.get("more_noise_helps") or []
        if scales:
            listed = ", ".join(f"{scale:g}" for scale in scales)
            found.append(
                f"{display_name(model)}: Gaussian noise of {listed} times the gradient "
                "lowers the loss. That is reported on its own and supports nothing "
                "about noise of rounding's size."
            )
    return found
