"""Applies the rule of `statistics.verdict` to one model, and puts it into words."""

import dataclasses
import math
from typing import Any

from prednet_jax.statistics.evidence import Check, Evidence, Question, Rule
from prednet_jax.statistics.multiplicity import holm
from prednet_jax.statistics.paired import PairedResult
from prednet_jax.statistics.power import sign_flip_floor, tost_seeds
from prednet_jax.statistics.proportions import excess_seeds
from prednet_jax.statistics.verdict import (
    gain_excess,
    power_of,
    separated,
    supporting,
    unmet,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer for one model.

    Attributes:
        model: name of the model.
        verdict: "supported", "refuted" or "inconclusive".
        sentence: the answer and its limits in plain language.
        unmet_for_supported: the conditions of `supported` that are not met, in words.
        unmet_for_refuted: the conditions of `refuted` that are not met.
        supported_by: names of the contrasts that meet all conditions of `supported`.
        fresh_noise_helps: whether one of them is about noise that changes from call to
            call.
        questions: the contrasts in question after Holm's correction, each with its
            manipulation check.
        equivalent_at_this_horizon: whether every contrast in question is equivalent
            although the trajectories did not separate.
        n: fewest seeds of any contrast in question.
        achieved_power: least power of the equivalence tests if there is no difference,
            at the observed standard deviation; nan for one seed.
        gain_excess_upper: largest upper bound, over the contrasts, of the share of
            seeds that gain more than the margin minus the share that lose as much.
        seeds_needed: fewest seeds with which a study with this standard deviation could
            be `refuted`. It is the largest of the numbers needed for the power, for the
            sign-flip test, and for the bound on gaining seeds if no further seed gains
            or loses more than the margin; None for one seed.
        seeds_still_needed: how many of these are still to be run.
        more_noise_helps: scales of the Gaussian noise that lowered the loss, in
            `ladder_unit`.
        ladder_unit: what these scales multiply.
        noise_can_help: outcome of the control in which noise can help.
        emulated_only: whether no contrast in question is about a GPU.
        rule: the bounds that were applied.
    """

    model: str
    verdict: str
    sentence: str
    unmet_for_supported: tuple[str, ...]
    unmet_for_refuted: tuple[str, ...]
    supported_by: tuple[str, ...]
    fresh_noise_helps: bool
    questions: tuple[Question, ...]
    equivalent_at_this_horizon: bool
    n: int
    achieved_power: float
    gain_excess_upper: float
    seeds_needed: int | None
    seeds_still_needed: int | None
    more_noise_helps: tuple[float, ...]
    ladder_unit: str
    noise_can_help: Check | None
    emulated_only: bool
    rule: Rule

    def as_dict(self) -> dict[str, Any]:
        """A JSON object; nan and infinity become null."""
        record = dataclasses.asdict(self)
        for entry, question in zip(record["questions"], self.questions, strict=True):
            entry["result"] = question.result.as_dict()
            entry["draws"] = [draw.as_dict() for draw in question.draws]
        if math.isnan(self.achieved_power):
            record["achieved_power"] = None
        return record


def decide(evidence: Evidence) -> Verdict:
    """Applies the rule of `statistics.verdict`.

    Args:
        evidence: the evidence about one model.

    Returns:
        The verdict, with the unmet conditions of `supported` and `refuted`.
    """
    questions = corrected(evidence)
    supported, refuted = unmet(evidence, questions)
    helping = supporting(evidence, questions) if not supported else ()
    results = [question.result for question in questions]
    n = min(result.n for result in results)
    needed = _seeds_needed(results, evidence.rule)
    verdict = Verdict(
        model=evidence.model,
        verdict=word(supported, refuted),
        sentence="",
        unmet_for_supported=supported,
        unmet_for_refuted=refuted,
        supported_by=tuple(question.name for question in helping),
        fresh_noise_helps=any(question.fresh for question in helping),
        questions=questions,
        equivalent_at_this_horizon=all(r.verdict == "equivalent" for r in results)
        and not any(separated(question, evidence.rule) for question in questions),
        n=n,
        achieved_power=min(power_of(r) for r in results),
        gain_excess_upper=max(gain_excess(r, evidence.rule) for r in results),
        seeds_needed=needed,
        seeds_still_needed=None if needed is None else max(0, needed - n),
        more_noise_helps=tuple(
            scale
            for scale, rung in sorted(evidence.gaussian_ladder, key=lambda r: r[0])
            if rung.verdict == "lower loss"
        ),
        ladder_unit=evidence.ladder_unit,
        noise_can_help=evidence.noise_can_help,
        emulated_only=not any(question.gpu for question in questions),
        rule=evidence.rule,
    )
    return dataclasses.replace(verdict, sentence=sentence(verdict))


def corrected(evidence: Evidence) -> tuple[Question, ...]:
    """The contrasts in question, with Holm's correction over all of them."""
    count = len(evidence.questions)
    family = f"the {count} contrast{'s' * (count > 1)} in question"
    results = holm([question.result for question in evidence.questions], family)
    return tuple(
        dataclasses.replace(question, result=result)
        for question, result in zip(evidence.questions, results, strict=True)
    )


def word(supported: tuple[str, ...], refuted: tuple[str, ...]) -> str:
    """The verdict in one word, from the unmet conditions of the two firm answers."""
    if not supported:
        return "supported"
    return "inconclusive" if refuted else "refuted"


def _seeds_needed(results: list[PairedResult], rule: Rule) -> int | None:
    if any(result.n < 2 for result in results):
        return None
    wanted = [sign_flip_floor(results[0].alpha, len(results))]
    wanted += [
        excess_seeds(
            rule.largest_gain_excess,
            gained=result.seeds_gaining,
            lost=result.seeds_losing,
            alpha=rule.alpha,
        )
        for result in results
    ]
    wanted += [
        tost_seeds(margin=r.margin, sd=r.sd_difference, power=rule.power, alpha=r.alpha)
        for r in results
    ]
    return max(wanted)


def sentence(verdict: Verdict) -> str:
    """The verdict in sentences: its numbers, unmet conditions, and limits."""
    figures = "; ".join(_figures(question) for question in verdict.questions)
    model = verdict.model
    if verdict.verdict == "supported":
        what = "Supported: noise"
        if not verdict.fresh_noise_helps:
            what = (
                "Supported for another order of sums, not for noise that changes from "
                "call to call: this order"
            )
        helping = ", ".join(verdict.supported_by)
        parts = [f"{what} makes {model} train better, shown by {helping}. {figures}."]
    elif verdict.verdict == "refuted":
        parts = [
            f"Refuted: noise changes the loss of {model} by less than the margin, in a "
            f"study that would have seen more ({figures}; power "
            f"{verdict.achieved_power:.2f}; the share of seeds that gain more than the "
            f"margin, minus the share that lose as much, is below "
            f"{verdict.gain_excess_upper:.2f})."
        ]
    else:
        parts = [f"Inconclusive for {model} ({figures})."]
        if verdict.equivalent_at_this_horizon:
            parts.append(
                "The arms are equivalent at this horizon, which ends before the "
                "trajectories separate; it says nothing about a longer one."
            )
        parts += [
            f"Not refuted because {', '.join(verdict.unmet_for_refuted)}.",
            f"Not supported because {', '.join(verdict.unmet_for_supported)}.",
            _more_seeds(verdict),
        ]
    if verdict.emulated_only:
        parts.append("This is about emulated noise only: no GPU was used.")
    if verdict.more_noise_helps:
        scales = ", ".join(f"{scale:g}" for scale in verdict.more_noise_helps)
        parts.append(
            f"Apart from this, more noise helps: Gaussian noise of {scales} times "
            f"{verdict.ladder_unit} lowers the loss, which does not support the "
            "hypothesis."
        )
    return " ".join(parts)


def _figures(question: Question) -> str:
    r, check = question.result, question.manipulation
    distance = "not measured"
    if check is not None:
        distance = f"{check.distance_over_travelled:.2g}"
    return (
        f"{question.name}: {r.mean_difference:+.3g} [{r.ci_low:.3g}, {r.ci_high:.3g}], "
        f"largest {r.max_abs_difference:.3g}, margin {r.margin:.3g}, sign-flip p "
        f"{r.p_holm:.3g} (Holm over {r.p_holm_family}), equivalence p {r.tost_p:.3g}, "
        f"n {r.n}, distance / travelled {distance}"
    )


def _more_seeds(verdict: Verdict) -> str:
    if verdict.seeds_needed is None:
        return "From one seed the number of seeds needed cannot be estimated."
    if verdict.seeds_still_needed:
        return (
            f"With this spread {verdict.seeds_needed} seeds would be needed, "
            f"{verdict.seeds_still_needed} more than were run, if no further one gains "
            "or loses more than the margin."
        )
    return "There are enough seeds; the evidence above is missing."
