"""The findings of a comparison in verdict.json: contrasts, answers and claims.

The answer about a model compares its random orders with its fixed ones (`redraws`), and
where a GPU was used also of its default algorithms against deterministic ones. Claims
take losses as `{arm: {seed: [loss of each draw]}}`, of the runs at hand and of the
published study that they repeat, or None.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from prednet_jax.records.verdict import (
    Answer,
    Arms,
    Claim,
    Contrast,
    Kind,
    Manipulation,
)
from prednet_jax.statistics import redraws, scatter
from prednet_jax.statistics.contrasts import MARGIN_FRACTION
from prednet_jax.statistics.redraws import Effect, Group, Redraws


def manipulation(
    bits_differ: Sequence[bool], distance_over_travelled: Sequence[float]
) -> Manipulation:
    """Returns the manipulation check, from one entry per seed; at least one seed."""
    return Manipulation(
        all(map(bool, bits_differ)), float(np.median(distance_over_travelled))
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answered:
    """The answer about one noise, of the arm `treatment`, of one model.

    `control` are the arms without it. `check` is None if it was not measured whether
    the noise changed the trajectories.
    """

    model: str
    treatment: str
    control: Group
    effect: Effect
    check: Manipulation | None

    @property
    def answer(self) -> Answer:
        """One of the four answers of `redraws`."""
        distance = None if self.check is None else self.check.distance_over_travelled
        return redraws.answer(self.effect, distance)

    def contrast(self, metric: str | None = None) -> Contrast:
        """Returns the contrast as in verdict.json, in units of the log loss (`scale`).

        Its means are geometric means of the loss.
        """
        log_contrast = self.effect.contrast
        return dataclasses.replace(
            log_contrast,
            treatment_mean=math.exp(log_contrast.treatment_mean),
            control_mean=math.exp(log_contrast.control_mean),
            model=self.model,
            treatment=self.treatment,
            control=self.control.name,
            metric=metric,
            scale="log",
            p_holm=log_contrast.p_value,
        )


def evaluate_claim(
    model: str,
    arms: Arms,
    check: Manipulation | None,
    *,
    treatment: str,
    control: str | Group,
    margin: float = MARGIN_FRACTION,
) -> Answered:
    """Returns the answer about a noise by the losses of a model; see `Answered`."""
    group = Group.of(control)
    effect = redraws.effect(redraws.collect_redraws(arms, treatment, group), margin)
    return Answered(
        model=model, treatment=treatment, control=group, effect=effect, check=check
    )


def verdict(answers: Sequence[Answered]) -> str:
    """Returns a model's verdict: `supported` if one answer is, `refuted` if all are."""
    words = {redraws.word(answered.answer) for answered in answers}
    if "supported" in words:
        return "supported"
    return "refuted" if words == {"refuted"} else "inconclusive"


def noise_claim(
    answered: Answered, study: Arms | None = None, kind: Kind = Kind.NOISE
) -> Claim:
    """Returns the claim about a noise; `same bits` if all losses are equal."""
    effect = answered.effect
    runs = _gathered(study, answered.treatment, answered.control)
    claim, both = _claim(kind, answered.model, effect, runs)
    answer = dataclasses.replace(answered, effect=both).answer
    if effect.contrast.max_abs_difference == effect.runs.scatter == 0:
        answer = Answer.SAME_BITS
    distance = answered.check and answered.check.distance_over_travelled
    return dataclasses.replace(claim, answer=answer, distance=distance)


def stale_claim(
    model: str,
    arms: Arms,
    arm: str,
    control: str | Group,
    *,
    margin: float = MARGIN_FRACTION,
    study: Arms | None = None,
) -> Claim:
    """Returns the claim that the script's mistake, in `arm`, raises the loss."""
    effect = redraws.effect(redraws.collect_redraws(arms, arm, control), margin)
    runs = _gathered(study, arm, Group.of(control))
    claim, both = _claim(Kind.STALE, model, effect, runs)
    answer = Answer.CANNOT_TELL
    if both.contrast.p_value < both.contrast.alpha:
        answer = Answer.YES if both.estimate > 0 else Answer.NO
    return dataclasses.replace(claim, answer=answer)


def saddle_claim(
    model: str, effect: Effect, escaped: bool, study: Redraws | None, away: float
) -> Claim:
    """Returns the claim about an exact saddle, which float32 alone cannot leave.

    `effect` compares orders that differ between twins with float32. `escaped` is
    whether all runs with such an order left the saddle and float32 did not. `study` are
    the same runs of the published study, or None if their length differs. `away` is the
    orders of magnitude between ordinary weights and such a saddle.
    """
    remark = f"ordinary weights are {away:.0f} orders of magnitude away from one"
    answer = Answer.CANNOT_TELL if study is None else Answer.NO
    if escaped and effect.estimate < -effect.margin:
        answer = Answer.YES
    claim, _ = _claim(Kind.SADDLE, model, effect, study)
    return dataclasses.replace(claim, answer=answer, remark=remark)


def _claim(
    kind: Kind, model: str, effect: Effect, study: Redraws | None = None
) -> tuple[Claim, Effect]:
    """Returns a claim without its answer, and the effect on which the answer rests.

    If there is a study, that is the effect over the seeds of both.
    """
    unpublished = Claim(
        kind=kind, model=model, answer=Answer.CANNOT_TELL, found=effect.measured
    )
    if study is None:
        return unpublished, effect
    mine = effect.runs
    sizes = {"treatment": len(mine.treatment[0]), "control": len(mine.control[0])}
    low, high = scatter.predicted(study, seeds=len(mine.seeds), **sizes)
    # A seed that both have counts as one of the repetition.
    new = [i for i, seed in enumerate(study.seeds) if seed not in mine.seeds]
    both = redraws.effect(
        Redraws(
            seeds=(*(study.seeds[i] for i in new), *mine.seeds),
            treatment=(*(study.treatment[i] for i in new), *mine.treatment),
            control=(*(study.control[i] for i in new), *mine.control),
            excluded=(*study.excluded, *mine.excluded),
        ),
        effect.margin,
    )
    claim = dataclasses.replace(
        unpublished,
        published=redraws.effect(study, effect.margin).measured,
        predicted=(low, high),
        holds=low <= effect.estimate <= high,
        together=both.measured,
    )
    return claim, both


def _gathered(study: Arms | None, treatment: str, control: Group) -> Redraws | None:
    if not study or treatment not in study or not {*control.arms} & {*study}:
        return None
    return redraws.collect_redraws(study, treatment, control)
