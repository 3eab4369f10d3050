"""What the rule of the verdict looks at, and the bounds that it fixes beforehand."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from prednet_jax import errors
from prednet_jax.statistics.margins import MARGIN_FRACTION
from prednet_jax.statistics.paired import PairedResult


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """Bounds of the rule. A plan may change them before its first run, never after.

    Attributes:
        least_distance: median over the seeds of distance / distance travelled from
            which two trajectories count as separated. 0.1: the noise has moved the
            weights by a tenth of what training moved them. Runs of 200 updates reach
            1e-2 to 2e-5, decorrelated ones 0.2 to 0.5.
        power: power that an equivalence test needs. 0.9, as is customary.
        largest_gain_excess: bound on the share of seeds that gain more than the margin,
            less the share that loses as much. 0.11: a mean can be equivalent while one
            seed in ten gains a lot, and who trains a handful of networks would call
            that help. It takes 26 seeds of which none gains
            or loses.
        largest_margin: largest margin, as a fraction of the control's loss.
        alpha: level of the bounds on shares of seeds.
    """

    least_distance: float = 0.1
    power: float = 0.9
    largest_gain_excess: float = 0.11
    largest_margin: float = MARGIN_FRACTION
    alpha: float = 0.05

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            errors.open_unit(field.name, getattr(self, field.name))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manipulation:
    """Whether the noise did anything to the trajectories that are compared.

    Attributes:
        bits_differ: the final weights of the two arms differ on every seed.
        distance_over_travelled: distance between the two final weight vectors over the
            distance of the control's from its initial one, median over the seeds.
    """

    bits_differ: bool
    distance_over_travelled: float


def manipulation(
    bits_differ: Sequence[bool], distance_over_travelled: Sequence[float]
) -> Manipulation:
    """The check from one entry per seed.

    Raises:
        UserError: no seed, two lengths, or a distance that is negative or no number.
    """
    ratios = np.asarray(distance_over_travelled, np.float64)
    if ratios.ndim != 1 or not ratios.size or len(bits_differ) != ratios.size:
        raise errors.UserError(
            f"{len(bits_differ)} entries of bits, distances of shape {ratios.shape}; "
            "expected one of each per seed"
        )
    if not (ratios >= 0).all():
        raise errors.UserError(
            f"distance_over_travelled={ratios.tolist()}: expected numbers, 0 or more"
        )
    return Manipulation(
        bits_differ=all(map(bool, bits_differ)),
        distance_over_travelled=float(np.median(ratios)),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """The outcome of a control experiment.

    Attributes:
        passed: whether it came out as it had to.
        figure: what was measured, in words with units.
    """

    passed: bool
    figure: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """One contrast that asks whether noise helps.

    Attributes:
        result: noisy arm minus quiet arm, so that a negative difference means "noise
            lowers the loss"; `reversed()` turns one that was recorded the other way.
        manipulation: what the noise did to the trajectories of these two arms; None if
            it was not measured.
        draws: the same contrast for each independent draw of the noise alone
            (`contrasts_of_draws`).
        gpu: the noise is that of a GPU; else it is emulated.
    """

    result: PairedResult
    manipulation: Manipulation | None
    draws: tuple[PairedResult, ...] = ()
    gpu: bool = False

    @property
    def name(self) -> str:
        """The two arms, or which noise it is where they have no names."""
        if self.result.treatment and self.result.control:
            return f"{self.result.treatment} - {self.result.control}"
        return "GPU noise" if self.gpu else "emulated noise"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that the rule looks at, for one model; None and () mean "was not run".

    Attributes:
        model: name of the model.
        questions: the contrasts in question, at least one; Holm corrects over them.
        nulls: A/A contrasts: other fixed orders or thread counts minus the control.
        gaussian_ladder: (relative scale, contrast with the control) per rung.
        stale: `stale_targets` minus the control.
        stale_applies: whether stale targets can move this model at all. They cannot
            where each update sees one image.
        theory_matched: measured escape times agree with theory.
        units_separated: identical units separate under tile and element order and stay
            together under a shared one.
        noise_can_help: from an exactly symmetric start of the network itself noise
            separates what stays together without it: this pipeline sees noise help
            where noise can help.
        diverged: seeds left out of a question because a loss was not finite.
        rule: the bounds.
    """

    model: str
    questions: tuple[Question, ...]
    nulls: tuple[PairedResult, ...] = ()
    gaussian_ladder: tuple[tuple[float, PairedResult], ...] = ()
    stale: PairedResult | None = None
    stale_applies: bool = True
    theory_matched: bool | None = None
    units_separated: bool | None = None
    noise_can_help: Check | None = None
    diverged: int = 0
    rule: Rule = dataclasses.field(default_factory=Rule)

    def __post_init__(self) -> None:
        if not self.questions:
            raise errors.UserError(
                f"model {self.model!r} has no contrast in question; expected at least "
                "one for a verdict"
            )
