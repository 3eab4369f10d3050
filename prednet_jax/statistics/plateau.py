"""When a run leaves its plateau: an endpoint that is fixed before any run.

Definition. The reference is the loss of copying the last frame, measured on the very
windows that the network is trained on. A run has left the plateau at the first update
at which the mean of its last `width` losses is below `factor` times the mean of the
last `width` reference losses. `factor` is 1 and `width` 100 unless a plan says
otherwise before its first run.

Both means end at the same update and cover the same windows, so a stretch of easy
frames moves both, and nothing depends on how the run ends or on another arm. A network
on this plateau predicts no change; below it, it has learned how things move. A run that
never gets there is censored at its last update: `logrank` and `survival_curve` take it
as it is.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prednet_jax import errors

WIDTH = 100


class Exit(NamedTuple):
    """When a run left its plateau.

    Attributes:
        update: first update, from 1, at which it had; the last update if it never had.
        left: False where the run is censored.
    """

    update: int
    left: bool


def plateau_exit(
    losses: ArrayLike,
    reference: ArrayLike,
    *,
    width: int = WIDTH,
    factor: float = 1.0,
) -> Exit:
    """The first update at which the trailing mean is below that of the reference.

    Args:
        losses: loss of each update, `[updates]`.
        reference: loss of copying the last frame on the same windows, `[updates]`, or
            one number for all of them, > 0.
        width: updates of the trailing mean, from 1 to the number of updates.
        factor: fraction of the reference that has to be undercut, > 0.

    Returns:
        The update and whether the plateau was left. A loss that is not finite never
        counts as below, nor does a mean that contains it.

    Raises:
        UserError: shapes that differ, or an argument out of range.
    """
    values = np.asarray(losses, np.float64)
    if values.ndim != 1 or values.size == 0:
        raise errors.UserError(f"losses has shape {values.shape}; expected [updates]")
    level = np.asarray(reference, np.float64)
    if level.shape not in ((), values.shape):
        raise errors.UserError(
            f"reference has shape {level.shape}; expected one number or {values.shape}"
        )
    errors.whole("width", width, 1, values.size)
    errors.positive("factor", factor)
    level = np.broadcast_to(level, values.shape)
    with np.errstate(invalid="ignore"):
        below = trailing_mean(values, width) < factor * trailing_mean(level, width)
    if not below.any():
        return Exit(values.size, False)
    return Exit(int(np.argmax(below)) + width, True)


def trailing_mean(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Means of the last `width` values, `[updates - width + 1]`."""
    windows = np.lib.stride_tricks.sliding_window_view(values, width)
    return windows.mean(axis=1)
