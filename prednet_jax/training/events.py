"""TensorBoard events of a run: its losses and its gradient's norm, by update."""

import math
from pathlib import Path

from prednet_jax.training.loop import UpdateRecord

#: What is written of each update; None and what is not finite are left out.
SCALARS = ("loss", "last_frame_loss", "copy_last_frame_loss", "grad_norm")


class EventWriter:
    """Writes events into a run's directory, for `tensorboard --logdir`.

    A file of its own for each part of a run: TensorBoard joins them, and forgets what
    an earlier part wrote of later updates.

    Args:
        directory: the run's directory.
        done: updates made before this part.
    """

    def __init__(self, directory: Path, *, done: int = 0):
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(directory), purge_step=done + 1)

    def write(self, record: UpdateRecord) -> None:
        """Adds the scalars of one update."""
        for name in SCALARS:
            value = getattr(record, name)
            if value is not None and math.isfinite(value):
                self._writer.add_scalar(name, value, record.update)

    def validated(self, update: int, **scores: float) -> None:
        """Adds the scores of frozen weights after an update."""
        for name, value in scores.items():
            if math.isfinite(value):
                self._writer.add_scalar(f"validation/{name}", value, update)

    def flush(self) -> None:
        """Writes what was added so far: an interrupted process does not close."""
        self._writer.flush()

    def close(self) -> None:
        """Writes what is left."""
        self._writer.close()
