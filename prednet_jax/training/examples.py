"""Frames predicted after training, kept beside a run to be shown and compared."""

import functools
import io
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from prednet_jax import data, records
from prednet_jax.tasks import Task
from prednet_jax.training import truncated

FILE = "examples.npz"
# Examples end here in an endless source: beyond what any run trains on, where the walk
# of seed 0 shows colours and moves.
_END = 10**8 + 400


def save_examples(
    folder: Path, task: Task, params: dict, source: data.FrameSource, count: int
) -> None:
    """Predicts frames that follow a warm-up and keeps them in `examples.npz`.

    Args:
        folder: the run's directory.
        task: the network.
        params: its trained weights.
        source: its frames; the last ones are shown, or some far beyond training in an
            endless source.
        count: frames to keep.
    """
    total = min(source.length, task.warm_up + count)
    start = min(source.length, _END) - total
    frames = source.read(start, start + total)
    dtype = jax.tree.leaves(params)[0].dtype
    x = truncated.to_pixels(jax.numpy.asarray(frames), dtype)
    predictions = _predictor(task)(params, x)
    buffer = io.BytesIO()
    arrays = {
        "frames": frames[-count:],
        "predictions": np.asarray(predictions[-count:], np.float32),
    }
    if task.windowed:  # images shown one by one have none before them
        arrays["before"] = frames[-count - 1 : -1]
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    records.write_bytes(folder / FILE, buffer.getvalue())


@functools.cache
def _predictor(task: Task) -> Callable:
    """Compiled once for all seeds of a network."""
    return jax.jit(task.predict)
