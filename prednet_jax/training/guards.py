"""What is looked at after every update: numbers that a training does not survive.

Nothing here computes on the device while all is well: the loss and the norm of the
gradient are on the host already.
"""

import math
from collections.abc import Callable

import jax
import numpy as np

from prednet_jax.errors import RunError
from prednet_jax.messages import say
from prednet_jax.training.loop import UpdateRecord
from prednet_jax.training.truncated import TrainState

#: Updates in a row with a gradient of exactly zero, after which it is said.
ZERO_UPDATES = 10
ADVICE = "try a lower --learning_rate, --clip_gradient=1 or --precision=float64"


class Guard:
    """Watches the updates of one run.

    Attributes:
        warnings: what was said so far, for the manifest.

    Args:
        name: of the run, in messages.
        updates: of the whole run; a run of few is warned of sooner.
    """

    def __init__(self, name: object, updates: int):
        self.warnings: list[str] = []
        self._still = 0
        self._name = name
        self._limit = min(ZERO_UPDATES, max(2, updates // 2))
        self._zeros = 0

    def see(self, record: UpdateRecord, state: Callable[[], TrainState]) -> None:
        """Looks at an update.

        Args:
            record: of the update.
            state: gives the state after it; only called where something is wrong.

        Raises:
            RunError: the loss or the gradient is not finite.
        """
        if not (math.isfinite(record.loss) and math.isfinite(record.grad_norm)):
            first = first_not_finite(state())
            tensor = "every tensor is finite, the norm overflowed"
            if first is not None:
                tensor = f"the first tensor that is not finite is {first}"
            raise RunError(
                f"{self._name}: update {record.update}: loss {record.loss}, norm of "
                f"the gradient {record.grad_norm}; {tensor}; {ADVICE}"
            )
        if record.grad_norm == 0:
            self._zeros += 1
            self._still += record.copy_last_frame_loss == 0
        else:
            self._zeros = self._still = 0
        if self._zeros == self._limit:
            reason, advice = "the network no longer learns", ADVICE
            if 2 * self._still >= self._limit:
                # A prediction is clipped at 0: that of black frames can be exact.
                black = "black" if record.loss == 0 else "black, or a still picture"
                reason = (
                    f"the frames of {self._still} of them do not change ({black}), and "
                    "teach nothing"
                )
                advice = "begin where the pictures move, or see what is cut (--crop)"
            self.warnings.append(
                f"the gradient was exactly zero in {self._limit} updates up to "
                f"{record.update}: {reason}"
            )
            say(f"{self._name}: {self.warnings[-1]}; {advice}")

    def end(self, state: TrainState) -> None:
        """Looks at the state after the last update, which no loss has seen.

        Raises:
            RunError: it is not finite.
        """
        first = first_not_finite(state)
        if first is not None:
            raise RunError(
                f"{self._name}: after update {int(state.update)} {first} is not "
                f"finite; {ADVICE}"
            )


def first_not_finite(state: TrainState) -> str | None:
    """Name of the first tensor with NaN or infinity, or None.

    In the order of the computation: the carried state shows the forward pass, the
    optimiser's moments the gradient, and the parameters come last.
    """
    for field in ("carry", "optimizer_state", "params"):
        leaves = jax.tree_util.tree_leaves_with_path(getattr(state, field))
        for path, leaf in leaves:
            if not np.isfinite(np.asarray(leaf)).all():
                name = jax.tree_util.keystr(path, simple=True, separator="/")
                return f"{field}/{name}"
    return None
