"""The equivalence margin: fixed from a pilot, before the results exist.

margin = min(half the between-seed standard deviation of the control,
             a fifth of the stale-target gap)

in units of the loss; the first alone where stale targets cannot move the network. Two
arms that differ by less cannot be told from a change of initial weights, nor from a
fraction of a defect whose effect is known. It never comes from the standard deviation
of the differences: a margin that shrinks with the noise of the study would make
equivalence a matter of sample size alone.
"""

import dataclasses
from typing import Any

from numpy.typing import ArrayLike

from prednet_jax.statistics import _checks
from prednet_jax.statistics.paired import per_seed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Margin:
    """A margin and where it came from, all in units of the loss.

    Attributes:
      value: the margin, finite and > 0.
      half_seed_sd: half the standard deviation over the seeds of the control pilot.
      fifth_stale_gap: a fifth of |mean(stale) - mean(control)| in the pilot; None where
        stale targets cannot move the network.
      n_control: seeds of the control pilot.
      n_stale: seeds of the stale-target pilot; 0 where there is none.
      origin: the same in words.

    Raises:
      ValueError: the value is not finite and above 0.
    """

    value: float
    half_seed_sd: float
    fifth_stale_gap: float | None
    n_control: int
    n_stale: int
    origin: str

    def __post_init__(self) -> None:
        _checks.positive("margin", self.value)

    def as_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return dataclasses.asdict(self)


def margin(control_pilot: ArrayLike, stale_pilot: ArrayLike | None) -> Margin:
    """The margin that a pilot fixes.

    Args:
      control_pilot: loss of the deterministic control, [n] or [n, replicates], n >= 2.
      stale_pilot: loss of the stale-target arm, [m] or [m, replicates], m >= 1; None
        where stale targets cannot move the network, so that their gap says nothing.

    Returns:
      The margin with its origin.

    Raises:
      ValueError: fewer than two control seeds, values that are not finite, or a pilot
        without spread or without a gap, which cannot fix a margin.
    """
    control = per_seed("control_pilot", control_pilot)
    if control.size < 2:
        raise ValueError(
            f"control_pilot has {control.size} seed; at least 2 are needed for the "
            "spread between seeds"
        )
    half_sd = float(control.std(ddof=1)) / 2
    spread = f"half the between-seed standard deviation ({2 * half_sd:.3g})"
    if stale_pilot is None:
        if not half_sd > 0:
            raise ValueError(
                f"the pilot has a between-seed sd of {2 * half_sd}; it must differ "
                "from 0 to fix a margin"
            )
        return Margin(
            value=half_sd,
            half_seed_sd=half_sd,
            fifth_stale_gap=None,
            n_control=control.size,
            n_stale=0,
            origin=f"{spread} of a pilot of {control.size} seeds; stale targets do not "
            "move this network",
        )
    stale = per_seed("stale_pilot", stale_pilot)
    gap = float(stale.mean() - control.mean())
    value = min(half_sd, abs(gap) / 5)
    if not value > 0:
        raise ValueError(
            f"the pilot has a between-seed sd of {2 * half_sd} and a stale-target gap "
            f"of {gap}; both must differ from 0 to fix a margin"
        )
    which = (
        spread
        if half_sd <= abs(gap) / 5
        else f"a fifth of the stale-target gap ({gap:+.3g})"
    )
    return Margin(
        value=value,
        half_seed_sd=half_sd,
        fifth_stale_gap=abs(gap) / 5,
        n_control=control.size,
        n_stale=stale.size,
        origin=f"{which} of a pilot of {control.size} control and {stale.size} stale "
        "seeds",
    )
