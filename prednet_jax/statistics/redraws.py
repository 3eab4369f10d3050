"""Measures how a random order of sums changes the loss, and judges whether it helps.

study/pages/rule.md defines redraws, groups and the rule. With y_sr the loss of run r of
seed s:

    d_s    = mean over the treatment's runs of log y_sr
           - mean over the control's runs of log y_sr
    effect = exp(mean over the seeds of d_s) - 1

An effect of 0.02 is a loss that is 2 % higher. The p-value and the intervals come from
the exact sign-flip test over the seeds (`sign_flip`).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from prednet_jax import errors
from prednet_jax.records.verdict import SEPARATED, Answer, Arms, Contrast, Estimate
from prednet_jax.statistics.contrasts import MARGIN_FRACTION, paired, seed_order
from prednet_jax.statistics.sign_flip import Floats

LOWERS, RAISES = Answer.LOWERS, Answer.RAISES
NO_EFFECT, CANNOT_TELL = Answer.NO_EFFECT, Answer.CANNOT_TELL
_WORDS: Mapping[str, str] = {
    LOWERS: "supported",
    RAISES: "refuted",
    NO_EFFECT: "refuted",
}


@dataclasses.dataclass(frozen=True)
class Group:
    """Several arms that serve as one control, and the group's name.

    All runs of all arms have equal weight. Losses may lack some of the arms.
    """

    name: str
    arms: tuple[str, ...]

    @classmethod
    def of(cls, control: "str | Group") -> "Group":
        """Returns a group unchanged, and an arm as a group of one."""
        return control if isinstance(control, Group) else cls(control, (control,))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Redraws:
    """The losses of two groups of runs, one array `[runs]` per seed, seeds ascending.

    `excluded` are seeds that were left out because one of their runs diverged.
    """

    seeds: tuple[str, ...]
    treatment: tuple[Floats, ...]
    control: tuple[Floats, ...]
    excluded: tuple[str, ...] = ()

    @property
    def logs(self) -> tuple[Floats, Floats]:
        """Mean log loss of each seed in the two groups, `[seeds]` each."""
        return tuple(  # type: ignore[return-value]
            np.asarray([np.log(runs).mean() for runs in group])
            for group in (self.treatment, self.control)
        )

    @property
    def scatter(self) -> float:
        """Standard deviation of the log loss within seeds and groups, pooled.

        It is NaN if every group has one run.
        """
        logs = [np.log(runs) for runs in (*self.treatment, *self.control)]
        freedom = sum(len(runs) - 1 for runs in logs)
        squares = sum(float(((runs - runs.mean()) ** 2).sum()) for runs in logs)
        return math.sqrt(squares / freedom) if freedom else math.nan


def collect_redraws(arms: Arms, treatment: str, control: str | Group) -> Redraws:
    """Returns the runs of two groups, from the losses of one model.

    A seed counts if both groups have a run of it; an arm of the control that only some
    seeds have counts on those. A seed with a run that diverged (None, NaN) is left out
    of both groups. The treatment is not a part of its control. An unknown name, a loss
    that is not positive, or a lack of seeds is a UserError.
    """
    errors.one_of("treatment", treatment, tuple(arms))
    group = Group.of(control)
    names = [name for name in arms if name in group.arms and name != treatment]
    if not names:
        errors.one_of("control", group.name, tuple(arms))

    def runs(group: Sequence[str], seed: str) -> Floats:
        # None becomes NaN.
        losses = [value for name in group for value in arms[name].get(seed, ())]
        return np.asarray(losses, np.float64)

    kept, excluded = {}, []
    for seed in sorted(arms[treatment], key=seed_order):
        both = runs([treatment], seed), runs(names, seed)
        if not all(group.size for group in both):
            continue
        if all(np.isfinite(group).all() for group in both):
            lowest = min(float(group.min()) for group in both)
            errors.positive(f"loss of seed {seed}", lowest)
            kept[seed] = both
        else:
            excluded.append(seed)
    if not kept:
        raise errors.UserError(
            f"{treatment} - {control}: no seed with finite losses in both groups; "
            "expected at least one"
        )
    return Redraws(
        seeds=tuple(kept),
        treatment=tuple(both[0] for both in kept.values()),
        control=tuple(both[1] for both in kept.values()),
        excluded=tuple(excluded),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect of a treatment; all changes of the loss are relative (0.02 is 2 %).

    `contrast` compares the mean log losses, in units of the log loss, and `margin` is
    the largest negligible change.
    """

    runs: Redraws
    contrast: Contrast
    margin: float

    @property
    def estimate(self) -> float:
        """The effect."""
        return math.expm1(self.contrast.mean_difference)

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval; -1 if there are too few seeds."""
        return math.expm1(self.contrast.ci_low)

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval; infinite if there are too few seeds."""
        return math.expm1(self.contrast.ci_high)

    @property
    def measured(self) -> Estimate:
        """The estimate with its interval, None with too few seeds, and the seeds."""
        bounded = math.isfinite(self.high)
        low, high = (self.low, self.high) if bounded else (None, None)
        return Estimate(self.estimate, low, high, self.contrast.n)


def effect(runs: Redraws, margin: float = MARGIN_FRACTION) -> Effect:
    """Returns the effect of a treatment on the loss, with intervals as in `paired`.

    `margin`, in (0, 1), is the largest negligible relative change, fixed before the
    results exist.
    """
    errors.open_unit("margin", margin)
    # The lower margin, 1 - 0.02, is a little further away on the scale of logarithms.
    contrast = paired(*runs.logs, margin=math.log1p(margin), below=-math.log1p(-margin))
    return Effect(runs=runs, contrast=contrast, margin=margin)


def answer(effect: Effect, separation: float | None) -> Answer:
    """Returns the answer about a noise, as study/pages/rule.md defines it.

    `separation` is the distance between runs of the two groups divided by the distance
    travelled, median over the seeds, or None if it was not measured.
    """
    lost, kept = len(effect.runs.excluded), len(effect.runs.seeds)
    separated = (separation or 0) >= SEPARATED
    if not separated or effect.runs.scatter == 0 or lost > (kept + lost) / 20:
        return CANNOT_TELL
    if effect.high < -effect.margin:
        return LOWERS
    if effect.low > effect.margin:
        return RAISES
    return NO_EFFECT if effect.contrast.tost_p < effect.contrast.alpha else CANNOT_TELL


def word(of: str) -> str:
    """Returns the verdict of an answer: `supported`, `refuted` or `inconclusive`."""
    return _WORDS.get(of, "inconclusive")
