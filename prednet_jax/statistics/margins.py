"""The margin of equivalence: a fraction of the control's loss, fixed beforehand.

Two arms whose mean losses differ by less than the margin count as equal. The margin
does not come from the size of another explanation, which would be circular. Nor does it
come from the standard deviation of the differences: then equivalence would depend on
the sample size only.
"""

import dataclasses
from typing import Any

from numpy.typing import ArrayLike

from prednet_jax import errors
from prednet_jax.statistics.paired import per_seed

#: A difference below this fraction of the control's loss counts as none; a study may
#: choose less.
MARGIN_FRACTION = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Margin:
    """A margin and where it came from.

    Attributes:
        value: the margin in units of the loss, > 0.
        fraction: the fraction of the control's loss that was fixed beforehand.
        control_mean: mean loss of the control over its seeds.
        n_control: seeds of the control.
    """

    value: float
    fraction: float
    control_mean: float
    n_control: int

    @property
    def origin(self) -> str:
        """Where the margin came from, in words."""
        return (
            f"{100 * self.fraction:g} % of the control's mean loss "
            f"({self.control_mean:.4g}, {self.n_control} seeds)"
        )

    def as_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return dataclasses.asdict(self) | {"origin": self.origin}


def margin(control: ArrayLike, fraction: float = MARGIN_FRACTION) -> Margin:
    """The margin for a control arm.

    Args:
        control: loss of the control, `[n]` or `[n, draws]`, n >= 1.
        fraction: fixed before the results exist, in (0, 1).

    Raises:
        UserError: a loss that is not finite, a mean loss of 0 or less, or a fraction
            out of range.
    """
    errors.open_unit("fraction", fraction)
    losses = per_seed("control", control)
    mean = float(losses.mean())
    errors.positive("mean loss of the control", mean)
    return Margin(
        value=fraction * mean,
        fraction=fraction,
        control_mean=mean,
        n_control=losses.size,
    )
