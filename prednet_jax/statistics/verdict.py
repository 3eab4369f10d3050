"""The decision rule: does numerical noise make this model train better?

Two contrasts carry the question, corrected by Holm as a family of their own, apart from
that of a table which shows them beside others: `reduction_order` - `float32`
(emulated noise) and, where a GPU was at hand, `gpu_deterministic` - `gpu`, which is
turned round so that a negative difference always means "noise lowers the loss".

supported     a contrast whose interval lies beyond the margin and whose corrected
              p-value is below alpha; beyond the A/A nulls; at a stall with measured
              negative curvature and a small projection on it; reproduced by Gaussian
              noise of the same size.
refuted       every contrast passes the equivalence test at the margin with a power of
              at least 0.9; the A/A nulls show no difference; every positive
              control passes: escape theory matched, identical units separated, stale
              targets detected, largest Gaussian rung detected.
inconclusive  anything else, with the number of seeds still needed.

The power is that of the plan: the number of seeds with the spread of the differences in
a pilot. Judged by the spread of the same data, a study planned at a power of 0.9 would
miss 0.9 about half of the time. Where no pilot was made the observed spread has to do.

A missing piece of evidence never counts as a pass. A rung of the Gaussian ladder that
lowers the loss is reported on its own and supports nothing.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from prednet_jax.statistics.multiplicity import holm
from prednet_jax.statistics.paired import PairedResult
from prednet_jax.statistics.power import sign_flip_floor, tost_power, tost_seeds

PLANNED_POWER = 0.9
_EMULATED, _GPU = "emulated noise", "GPU noise"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stall:
    """What the curvature probe found where training stalled.

    Attributes:
      stalled: the loss stopped falling for a while before it fell again.
      negative_curvature: a Ritz value below zero by more than its residual there.
      small_projection: the step's projection on that direction is small enough for
        noise to shorten the escape.
    """

    stalled: bool
    negative_curvature: bool
    small_projection: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that the rule looks at, for one model; None means "was not run".

    Attributes:
      model: name of the model.
      emulated: `reduction_order` minus `float32`.
      gpu: `gpu_deterministic` minus `gpu`, as recorded: the noisy arm is the control.
      emulated_pilot_sd: standard deviation of the differences of `emulated` in a pilot
        that shares no seed with it, in units of the loss.
      gpu_pilot_sd: the same for `gpu`.
      null: A/A contrasts, other fixed orders or thread counts minus `float32`.
      gaussian_matched: Gaussian noise of the size of `reduction_order`'s minus
        `float32`.
      gaussian_ladder: (relative scale, contrast with `float32`) a rung.
      stale: `stale_targets` minus `float32`.
      stale_applies: whether stale targets can move this model at all. They cannot
        where each update sees one image; the contrast is then one of the nulls, and no
        positive control.
      theory_matched: measured escape times agree with theory.
      units_separated: identical units separate under tile and element order and stay
        together under a shared one.
      stall: the curvature evidence.
      diverged: seeds left out of `emulated` or `gpu` because a loss was not finite.
        Whether a seed diverges may depend on the noise: with any left out, neither firm
        answer is given.
    """

    model: str
    emulated: PairedResult | None = None
    gpu: PairedResult | None = None
    emulated_pilot_sd: float | None = None
    gpu_pilot_sd: float | None = None
    null: tuple[PairedResult, ...] = ()
    gaussian_matched: PairedResult | None = None
    gaussian_ladder: tuple[tuple[float, PairedResult], ...] = ()
    stale: PairedResult | None = None
    stale_applies: bool = True
    theory_matched: bool | None = None
    units_separated: bool | None = None
    stall: Stall | None = None
    diverged: int = 0

    def __post_init__(self) -> None:
        if self.emulated is None and self.gpu is None:
            raise ValueError(
                f"model {self.model!r} has neither an emulated nor a gpu contrast; at "
                "least one is needed for a verdict"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer for one model.

    Attributes:
      model: name of the model.
      verdict: "supported", "refuted" or "inconclusive".
      sentence: the answer and its limits in plain language.
      unmet_for_supported: what `supported` lacked, each in words; empty if nothing.
      unmet_for_refuted: what `refuted` lacked.
      emulated: the emulated contrast after Holm, or None.
      gpu: the GPU contrast after Holm, as recorded (deterministic minus noisy).
      n: fewest seeds of the contrasts.
      planned_power: least power of the equivalence tests at no true difference, with
        the pilot's spread; nan where there was no pilot.
      achieved_power: the same with the observed spread; nan where a contrast has one
        seed.
      seeds_needed: seeds in all at which a study with this spread has the planned
        power, None where a contrast has one seed.
      seeds_still_needed: how many of these are still to be run.
      more_noise_helps: relative scales of the Gaussian rungs that lowered the loss.
      emulated_only: no GPU arm was run.
    """

    model: str
    verdict: str
    sentence: str
    unmet_for_supported: tuple[str, ...]
    unmet_for_refuted: tuple[str, ...]
    emulated: PairedResult | None
    gpu: PairedResult | None
    n: int
    planned_power: float
    achieved_power: float
    seeds_needed: int | None
    seeds_still_needed: int | None
    more_noise_helps: tuple[float, ...]
    emulated_only: bool

    def as_dict(self) -> dict[str, Any]:
        """A JSON object; nan becomes null."""
        record = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self)
        }
        for name in ("emulated", "gpu"):
            record[name] = record[name] and record[name].as_dict()
        for name in ("planned_power", "achieved_power"):
            record[name] = None if math.isnan(record[name]) else record[name]
        return record


def decide(evidence: Evidence) -> Verdict:
    """Applies the rule of the module's docstring.

    Args:
      evidence: everything known about one model.

    Returns:
      The verdict, with what each of the two firm answers lacked.
    """
    turned = {}  # negative = noise lowers the loss
    planned = {}
    if evidence.emulated is not None:
        turned[_EMULATED] = evidence.emulated
        planned[_EMULATED] = _power(evidence.emulated, evidence.emulated_pilot_sd)
    if evidence.gpu is not None:
        turned[_GPU] = evidence.gpu.reversed()
        planned[_GPU] = _power(evidence.gpu, evidence.gpu_pilot_sd)
    family = f"the {len(turned)} contrast{'s' * (len(turned) > 1)} in question"
    corrected = holm(list(turned.values()), family)
    contrasts = dict(zip(turned, corrected, strict=True))

    against_support = _against_support(contrasts, evidence)
    against_refutation = _against_refutation(contrasts, planned, evidence)
    if evidence.diverged:
        lost = f"{evidence.diverged} seeds diverged and were left out"
        against_support.append(lost)
        against_refutation.append(lost)
    word = "inconclusive"
    if not against_support:
        word = "supported"
    elif not against_refutation:
        word = "refuted"
    n = min(r.n for r in contrasts.values())
    needed = _seeds_needed(contrasts)
    gpu = contrasts.get(_GPU)
    verdict = Verdict(
        model=evidence.model,
        verdict=word,
        sentence="",
        unmet_for_supported=tuple(against_support),
        unmet_for_refuted=tuple(against_refutation),
        emulated=contrasts.get(_EMULATED),
        gpu=None if gpu is None else gpu.reversed(),
        n=n,
        planned_power=float(np.min(list(planned.values()))),
        achieved_power=min(_power(r, r.sd_difference) for r in contrasts.values()),
        seeds_needed=needed,
        seeds_still_needed=None if needed is None else max(0, needed - n),
        more_noise_helps=tuple(
            scale
            for scale, rung in sorted(evidence.gaussian_ladder, key=lambda r: r[0])
            if rung.verdict == "lower loss"
        ),
        emulated_only=evidence.gpu is None,
    )
    return dataclasses.replace(verdict, sentence=_sentence(verdict, contrasts))


def _against_support(
    contrasts: dict[str, PairedResult], evidence: Evidence
) -> list[str]:
    """What `supported` lacks, for the contrast that comes closest to it."""
    return min(
        (_against_one(name, r, evidence) for name, r in contrasts.items()), key=len
    )


def _against_one(name: str, result: PairedResult, evidence: Evidence) -> list[str]:
    unmet = []
    if not _improves(result):
        unmet.append(f"{name} does not improve the loss beyond the margin")
    if not evidence.null:
        unmet.append("no A/A null was run")
    elif not all(_beyond(result, null) for null in evidence.null):
        unmet.append(f"the effect of {name} lies within an A/A null")
    stall = evidence.stall
    if stall is None:
        unmet.append("curvature was not probed")
    else:
        if not stall.stalled:
            unmet.append("training does not stall")
        if not stall.negative_curvature:
            unmet.append("no negative curvature was measured at the stall")
        if not stall.small_projection:
            unmet.append("the projection on the escape direction is not small")
    matched = evidence.gaussian_matched
    if matched is None:
        unmet.append("Gaussian noise of the same size was not run")
    elif not _improves(matched):
        unmet.append("Gaussian noise of the same size does not reproduce it")
    return unmet


def _against_refutation(
    contrasts: dict[str, PairedResult], planned: dict[str, float], evidence: Evidence
) -> list[str]:
    unmet = []
    for name, result in contrasts.items():
        if not result.tost_p < result.alpha:
            unmet.append(f"{name} is not shown to be equivalent within the margin")
        power = planned[name]
        if math.isnan(power):
            power = _power(result, result.sd_difference)
        if not power >= PLANNED_POWER:
            unmet.append(
                f"the equivalence test of {name} has a power of {power:.2f}, below "
                f"{PLANNED_POWER}"
            )
    if not evidence.null:
        unmet.append("no A/A null was run")
    elif any(null.verdict in ("lower loss", "higher loss") for null in evidence.null):
        unmet.append("an A/A null shows a difference")
    controls = [
        (evidence.theory_matched, "escape-time theory"),
        (evidence.units_separated, "separation of identical units"),
        (_detected(_largest_rung(evidence)), "detection of the largest Gaussian rung"),
    ]
    if evidence.stale_applies:
        controls.append((_detected(evidence.stale), "detection of stale targets"))
    for passed, what in controls:
        if passed is None:
            unmet.append(f"positive control not run: {what}")
        elif not passed:
            unmet.append(f"positive control failed: {what}")
    return unmet


def _improves(result: PairedResult) -> bool:
    """Lower loss, significantly, by more than the margin at the interval's near end."""
    p = result.p_value if result.p_holm is None else result.p_holm
    return p < result.alpha and result.ci_high < -result.margin


def _beyond(result: PairedResult, null: PairedResult) -> bool:
    """Whether the effect lies outside the A/A interval, mirrored about zero."""
    return -result.mean_difference > max(abs(null.ci_low), abs(null.ci_high))


def _detected(result: PairedResult | None) -> bool | None:
    if result is None:
        return None
    return result.verdict in ("lower loss", "higher loss")


def _largest_rung(evidence: Evidence) -> PairedResult | None:
    if not evidence.gaussian_ladder:
        return None
    return max(evidence.gaussian_ladder, key=lambda rung: rung[0])[1]


def _power(result: PairedResult, sd: float | None) -> float:
    """Power at no true difference; nan where the spread is not known."""
    if sd is None or math.isnan(sd):
        return math.nan
    return tost_power(result.n, margin=result.margin, sd=sd, alpha=result.alpha)


def _seeds_needed(contrasts: dict[str, PairedResult]) -> int | None:
    """Seeds for the planned power and above the floor of the sign-flip test."""
    results = list(contrasts.values())
    if any(r.n < 2 for r in results):
        return None
    floor = sign_flip_floor(results[0].alpha, len(results))
    return max(
        floor,
        *(
            tost_seeds(
                margin=r.margin, sd=r.sd_difference, power=PLANNED_POWER, alpha=r.alpha
            )
            for r in results
        ),
    )


def _sentence(verdict: Verdict, contrasts: dict[str, PairedResult]) -> str:
    figures = "; ".join(
        f"{name}: {r.mean_difference:+.3g} [{r.ci_low:.3g}, {r.ci_high:.3g}], "
        f"margin {r.margin:.3g}, sign-flip p {r.p_holm:.3g} (Holm over "
        f"{r.p_holm_family}), TOST p {r.tost_p:.3g}, n {r.n}"
        for name, r in contrasts.items()
    )
    parts = []
    if verdict.verdict == "supported":
        parts.append(
            f"Supported: noise makes {verdict.model} train better ({figures})."
        )
    elif verdict.verdict == "refuted":
        parts.append(
            f"Refuted: noise changes the loss of {verdict.model} by less than the "
            f"margin, in a study that would have seen more ({figures}; power "
            f"{verdict.achieved_power:.2f})."
        )
    else:
        parts.append(
            f"Inconclusive for {verdict.model} ({figures}). Not refuted because "
            f"{', '.join(verdict.unmet_for_refuted)}. Not supported because "
            f"{', '.join(verdict.unmet_for_supported)}."
        )
        if verdict.seeds_needed is None:
            parts.append("One seed says nothing about how many are needed.")
        elif verdict.seeds_still_needed:
            parts.append(
                f"With this spread {verdict.seeds_needed} seeds are needed, "
                f"{verdict.seeds_still_needed} more than were run."
            )
        else:
            parts.append("The number of seeds is enough; the evidence above is not.")
    if verdict.emulated_only:
        parts.append("This is about emulated noise only: no GPU was used.")
    if verdict.more_noise_helps:
        scales = ", ".join(f"{scale:g}" for scale in verdict.more_noise_helps)
        parts.append(
            f"Apart from this, more noise helps: Gaussian noise of {scales} times the "
            "gradient lowers the loss, which does not support the hypothesis."
        )
    return " ".join(parts)
