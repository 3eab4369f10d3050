"""The decision rule: does numerical noise make this model train better?

The bounds (`Rule`) are fixed before the runs; docs/study/plan.md lists what changed in
the conditions. Each answer has to convince those who expect the opposite. Missing
evidence never counts as a condition met.

supported: "noise helps". At least one contrast in question meets all of these:
  1. The improvement is beyond the margin: the whole interval is, and the p-value after
     Holm's correction over the contrasts in question is below alpha. An effect too
     small to matter, or found only because many were tested, is no support. A contrast
     with another noisy arm counts only if its treatment improves on the arm without
     noise too: the other noise may do harm.
  2. The noise acted: bits differ on every seed, and the trajectories separated.
     Otherwise the improvement has another cause.
  3. The improvement is beyond the A/A nulls, at least one of which differs in bits: its
     interval does not touch theirs. If another fixed order improves the loss as much,
     then any change does, or the control was unlucky. A null that is bitwise equal
     shows nothing.
  4. Most seeds gain more than the margin: the lower bound of their share is above one
     half. Otherwise a few seeds may make the mean.
  5. It is reproduced: at least two independent draws of the noise each lower the mean
     loss by more than the margin, significantly.
  Curvature is reported but is no condition. That noise helps is one claim; that it
  helps by leaving saddles is another.

refuted: "noise does not matter here, and this study would have detected it".
  Every contrast in question meets all of these:
  1. The noise acted, as above. Equivalence before the trajectories separate says only
     that the trainings were too short.
  2. The arms are equivalent at the margin, in a test with enough power at the observed
     standard deviation.
  3. The margin is a small enough fraction of the control's loss (with ten per cent of
     slack, since one margin serves several controls with slightly different means).
  4. Not many more seeds gain than lose: the share that gain more than the margin minus
     the share that lose as much has an upper bound, which is below a number fixed
     beforehand. A mean can be equivalent while a few seeds gain a lot. Once the
     trajectories have separated, chaos moves single seeds up and down equally often;
     help would move more of them down. Gains that are rarer than this number are not
     excluded.
  The study meets all of these:
  5. No A/A null shows a difference, and at least one differs in bits. A null shows one
     if its own p-value, without Holm's correction, is below alpha and it is not
     equivalent at the margin.
  6. Controls with a known direction: stale targets raise the loss (if they can have an
     effect on the network), and so does the largest Gaussian noise. A pipeline in which
     harm looks like help, or like nothing, cannot refute anything.
  7. A control in which noise can help: from an exactly symmetric start of a small
     PredNet, noise separates what otherwise stays together, and lowers the loss.
  8. Escape times match theory, and identical units separate as they should.

inconclusive: anything else, with the unmet conditions and the number of seeds needed.
  A proven harm is inconclusive too; its contrast says "higher loss".

If a run diverged, the answer is `inconclusive`, since the noise may affect whether a
run diverges. A network whose trajectories cannot separate within the
training (the autoencoder of the small job) is `inconclusive` by condition 1. If its
contrasts are equivalent, the verdict says "equivalent at this horizon", and no more is
shown. Gaussian noise that lowers the loss is reported separately and is no support.
"""

import functools
import math

from prednet_jax.statistics.evidence import Evidence, Question, Rule
from prednet_jax.statistics.paired import PairedResult
from prednet_jax.statistics.power import tost_power
from prednet_jax.statistics.proportions import excess_upper, share_lower

_SLACK = 1.1
_tost_power = functools.lru_cache(tost_power)


def unmet(
    evidence: Evidence, questions: tuple[Question, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The unmet conditions of `supported` and of `refuted`, in words.

    Those of `supported` are for the question with the fewest.

    Args:
        evidence: the evidence about one model.
        questions: `corrected(evidence)`.
    """
    lacking = [_against_support(q, questions, evidence) for q in questions]
    supported = min(lacking, key=len)
    refuted = _against_study(evidence)
    for question in questions:
        refuted = _against_refutation(question, evidence.rule) + refuted
    if evidence.diverged:
        lost = f"a run diverged on {evidence.diverged} of the seeds"
        supported, refuted = [*supported, lost], [*refuted, lost]
    return tuple(supported), tuple(refuted)


def supporting(
    evidence: Evidence, questions: tuple[Question, ...]
) -> tuple[Question, ...]:
    """The questions that meet all conditions of `supported`.

    Args:
        evidence: the evidence about one model.
        questions: `corrected(evidence)`.
    """
    return tuple(q for q in questions if not _against_support(q, questions, evidence))


def _against_support(
    question: Question, questions: tuple[Question, ...], evidence: Evidence
) -> list[str]:
    result, name, found = question.result, question.name, []
    if not _improves(result):
        found.append(f"{name} does not improve the loss beyond the margin")
    # Arms with noise: a contrast between two of them says nothing about no noise.
    noisy = {q.result.treatment for q in questions} - {None}
    if result.control in noisy and not any(
        _improves(q.result)
        for q in questions
        if q.result.treatment == result.treatment and q.result.control not in noisy
    ):
        found.append(f"{result.treatment} does not improve on the arm without noise")
    found += _not_acted(question, evidence.rule)
    real = [null for null in evidence.nulls if not null.bitwise_equal]
    reach = max((max(abs(r.ci_low), abs(r.ci_high)) for r in real), default=math.inf)
    if not real:
        found.append("no A/A null that differs in bits was run")
    elif not -result.ci_high > reach:
        found.append(f"the effect of {name} does not clear the interval of an A/A null")
    gaining = result.seeds_gaining
    if not share_lower(gaining, result.n, alpha=evidence.rule.alpha) > 0.5:
        found.append(
            f"{gaining} of {result.n} seeds gain more than the margin under {name}, "
            "too few to show that most do"
        )
    if len(question.draws) < 2:
        found.append(f"no second independent draw of the noise of {name} was run")
    elif not all(
        draw.p_value < draw.alpha and draw.mean_difference < -draw.margin
        for draw in question.draws
    ):
        found.append(f"not every independent draw of the noise reproduces {name}")
    return found


def _against_refutation(question: Question, rule: Rule) -> list[str]:
    result, name = question.result, question.name
    found = _not_acted(question, rule)
    if not result.tost_p < result.alpha:
        found.append(f"{name} is not shown to be equivalent within the margin")
    power = power_of(result)
    if not power >= rule.power:
        found.append(
            f"the equivalence test of {name} has a power of {power:.2f}, below "
            f"{rule.power:g}"
        )
    fraction = result.margin / abs(result.control_mean or math.nan)
    if not fraction <= _SLACK * rule.largest_margin:
        found.append(
            f"the margin of {name} is {100 * fraction:.2g} % of the control's loss, "
            f"above {100 * rule.largest_margin:g} %"
        )
    excess = gain_excess(result, rule)
    if not excess < rule.largest_gain_excess:
        found.append(
            f"{result.seeds_gaining} of {result.n} seeds gain more than the margin "
            f"under {name} and {result.seeds_losing} lose as much, so the excess may "
            f"be {excess:.2f}, not below {rule.largest_gain_excess:g}"
        )
    return found


def _against_study(evidence: Evidence) -> list[str]:
    found = []
    if all(null.bitwise_equal for null in evidence.nulls):
        found.append("no A/A null that differs in bits was run")
    if any(_differs(null) for null in evidence.nulls):
        found.append("an A/A null shows a difference")
    rungs = sorted(evidence.gaussian_ladder, key=lambda rung: rung[0])
    help_seen = evidence.noise_can_help
    controls = [
        (_raised(rungs[-1][1] if rungs else None), "largest Gaussian rung raises loss"),
        (help_seen and help_seen.passed, "noise separates an exactly symmetric start"),
        (evidence.theory_matched, "escape-time theory"),
        (evidence.units_separated, "separation of identical units"),
    ]
    if evidence.stale_applies:
        controls.insert(0, (_raised(evidence.stale), "stale targets raise the loss"))
    for passed, what in controls:
        if not passed:
            outcome = "not run" if passed is None else "failed"
            found.append(f"positive control {outcome}: {what}")
    return found


def _not_acted(question: Question, rule: Rule) -> list[str]:
    check, name = question.manipulation, question.name
    if check is None:
        return [f"whether {name} changed the trajectories was not measured"]
    if not check.bits_differ:
        return [f"{name} changed no bit on at least one seed"]
    if not separated(question, rule):
        return [
            f"the trajectories of {name} have not separated: distance / travelled "
            f"{check.distance_over_travelled:.2g}, below {rule.least_distance:g}"
        ]
    return []


def separated(question: Question, rule: Rule) -> bool:
    """Whether the two trajectories are as far apart as the rule requires."""
    check = question.manipulation
    return check is not None and check.distance_over_travelled >= rule.least_distance


def _improves(result: PairedResult) -> bool:
    p = result.p_value if result.p_holm is None else result.p_holm
    return p < result.alpha and result.ci_high < -result.margin


def _differs(null: PairedResult) -> bool:
    # Holm's correction would make it easier for a null to show nothing.
    return null.p_value < null.alpha and not null.tost_p < null.alpha


def _raised(result: PairedResult | None) -> bool | None:
    return None if result is None else result.verdict == "higher loss"


def gain_excess(result: PairedResult, rule: Rule) -> float:
    """Upper bound of the share of seeds that gain minus the share that lose."""
    counts = result.seeds_gaining, result.seeds_losing
    return excess_upper(*counts, result.n, alpha=rule.alpha)


def power_of(result: PairedResult) -> float:
    """Power if there is no difference, at the observed standard deviation; or nan."""
    if math.isnan(result.sd_difference):
        return math.nan
    return _tost_power(
        result.n, margin=result.margin, sd=result.sd_difference, alpha=result.alpha
    )
