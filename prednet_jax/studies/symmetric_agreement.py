"""Compares trainings from a symmetric start, made again, with the published ones.

They may differ as much as trainings with another rounding differ.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prednet_jax import errors
from prednet_jax.studies.symmetric_findings import CONTROL, NULL, Row, runs

#: Pairs of arms that differ in rounding only: both keep twins equal, or both separate
#: them. The second pair has runs at delta 0 alone.
ROUNDING = ((NULL, CONTROL), ("tile", "run"))


class Agreement(NamedTuple):
    """A run that was made again, and the published one.

    Attributes:
        again: the new run.
        published: the published run that it repeats.
        error: factor, at least 1, by which the loss may differ: the largest ratio, in
            either direction, that another rounding made of any published seed (see
            `ROUNDING`).
        holds: whether the bits are the same; or else, whether both runs separated or
            neither did, and the losses agree within `error`.
    """

    again: Row
    published: Row
    error: float
    holds: bool


def agreement(again: Iterable[Row], published: Sequence[Row]) -> list[Agreement]:
    """Compares each run with the published one.

    Equal bits can be expected on the same kind of processor only. On another one sums
    are rounded differently, and trajectories separate.

    Raises:
        UserError: a run was not published, or there are no published runs from which to
            take the error.
    """
    found = []
    for row in again:
        old = [one for one in published if one[:4] == row[:4]]
        error = _rounding(published, row)
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


def _rounding(rows: Sequence[Row], row: Row) -> float | None:
    """Largest factor between the losses of two arms that differ in rounding only."""
    # The pair that the arm belongs to, or the first where that pair was not run.
    for pair in sorted(ROUNDING, key=lambda pair: row.arm not in pair):
        both = [runs(rows, row.program, arm, row.delta) for arm in pair]
        ratios = [a.loss / b.loss for a, b in zip(*both, strict=False)]
        if ratios:
            return max(max(ratio, 1 / ratio) for ratio in ratios)
    return None
