"""Whether trainings from a symmetric start that were made again agree.

Compared with the published ones, within what another rounding does to them.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prednet_jax import errors
from prednet_jax.studies.symmetric_findings import CONTROL, NULL, Row, runs


class Agreement(NamedTuple):
    """A run that was made again, beside the published one.

    Attributes:
        again: the new run.
        published: the one that it repeats.
        error: by which factor its loss may differ, at least 1: what another rounding
            did at most to the loss of any published seed (shared order over float32, in
            either direction).
        holds: same bits; or the same separation, yes or no, and a loss within `error`.
    """

    again: Row
    published: Row
    error: float
    holds: bool


def agreement(again: Iterable[Row], published: Sequence[Row]) -> list[Agreement]:
    """Runs made again beside the published ones.

    The same bits are to be expected on the same kind of processor alone. Elsewhere sums
    are rounded in other ways, and trajectories separate.

    Raises:
        UserError: a run that was never published, or one without published runs of
            float32 and shared order, from which the error is taken.
    """
    found = []
    for row in again:
        old = [one for one in published if one[:4] == row[:4]]
        error = _rounding(published, row.program, row.delta)
        if not old or error is None:
            raise errors.UserError(
                f"{row.program} {row.arm}, delta {row.delta:g}, seed {row.seed}: not "
                "among the published runs"
            )
        ratio = max(row.loss / old[0].loss, old[0].loss / row.loss)
        left = [one.separated_at <= one.updates for one in (row, old[0])]
        holds = row.sha256 == old[0].sha256 or (left[0] == left[1] and ratio <= error)
        found.append(Agreement(row, old[0], error, holds))
    return found


def _rounding(rows: Sequence[Row], program: str, delta: float) -> float | None:
    """Largest factor between the losses of two arms that differ in rounding alone."""
    ratios = [
        a.loss / b.loss
        for a, b in zip(
            runs(rows, program, NULL, delta),
            runs(rows, program, CONTROL, delta),
            strict=False,
        )
    ]
    return max((max(r, 1 / r) for r in ratios), default=None)
