"""The evidence that the rule of the verdict uses, and the bounds of the rule."""

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
        least_distance: two trajectories count as separated if their distance over the
            distance travelled, median over the seeds, is at least this. 0.1 means that
            the noise has moved the weights by a tenth of what training moved them. Runs
            of 200 updates reach 2e-5 to 1e-2, decorrelated ones 0.2 to 0.5.
        power: power that an equivalence test needs; 0.9 is customary.
        largest_gain_excess: bound on the share of seeds that gain more than the margin
            minus the share that lose as much. A mean can be equivalent while one seed
            in ten gains a lot; to a user who trains a few networks that would be help.
            With 0.11 the bound needs 26 seeds if none gains or loses.
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
    """The manipulation check: whether the noise changed the trajectories.

    Attributes:
        bits_differ: whether the final weights of the two arms differ on every seed.
        distance_over_travelled: distance between the final weights of the two arms,
            over the distance of the control's final weights from its initial ones;
            median over the seeds.
    """

    bits_differ: bool
    distance_over_travelled: float


def manipulation(
    bits_differ: Sequence[bool], distance_over_travelled: Sequence[float]
) -> Manipulation:
    """The manipulation check, from one entry per seed.

    Raises:
        UserError: there is no seed, the lengths differ, or a distance is negative or
            NaN.
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
        passed: whether it had the expected outcome.
        figure: what was measured, in words with units.
    """

    passed: bool
    figure: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """One contrast in question: does this noise help?

    Attributes:
        result: arm with noise minus arm without, so that a negative difference means
            that noise lowers the loss. Use `PairedResult.reversed` if it was recorded
            the other way round.
        manipulation: the manipulation check of these two arms; None: not measured.
        draws: the same contrast, separately for each independent draw of the noise
            (`contrasts_of_draws`).
        gpu: whether the noise is that of a GPU; False: it is emulated.
        fresh: whether the contrast is about noise that changes from call to call.
            False: a fixed order of sums, as another machine has, could give it too.
    """

    result: PairedResult
    manipulation: Manipulation | None
    draws: tuple[PairedResult, ...] = ()
    gpu: bool = False
    fresh: bool = True

    @property
    def name(self) -> str:
        """The names of the two arms, or the kind of noise if they have none."""
        if self.result.treatment and self.result.control:
            return f"{self.result.treatment} - {self.result.control}"
        return "GPU noise" if self.gpu else "emulated noise"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """The evidence about one model; None and () mean "was not run".

    Attributes:
        model: name of the model.
        questions: the contrasts in question, at least one; Holm corrects over them.
        nulls: A/A contrasts: other fixed orders or thread counts minus the control.
        gaussian_ladder: (relative scale, contrast with the control), one pair per scale
            of Gaussian noise ("rung").
        ladder_unit: what the scales of the ladder multiply.
        stale: `stale_targets` minus the control.
        stale_applies: whether stale targets can have an effect on this model. They
            cannot if each update sees one image.
        theory_matched: whether measured escape times agree with theory.
        units_separated: whether identical units separate under tile and element order
            and stay together under a shared order.
        noise_can_help: from an exactly symmetric start of the network, noise separates
            what otherwise stays together. It shows that this pipeline can see noise
            help.
        diverged: number of seeds with a run whose loss was not finite.
        rule: the bounds.
    """

    model: str
    questions: tuple[Question, ...]
    nulls: tuple[PairedResult, ...] = ()
    gaussian_ladder: tuple[tuple[float, PairedResult], ...] = ()
    ladder_unit: str = "the gradient"
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
