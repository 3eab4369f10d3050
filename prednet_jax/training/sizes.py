"""Sizes that cannot fit, refused before anything is allocated.

What a training needs at least is counted from shapes; no array is made. What passes may
still run out of memory, which ends in one line too (`experiments/_cli.py`).
"""

import math
import resource
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from prednet_jax import device
from prednet_jax.errors import UserError
from prednet_jax.tasks import Task

# Bytes of an update in the plan of a run: where it starts, whether it opens a sequence,
# and the arrays that this is computed from (`data.schedule`); of a line of metrics.
_PLAN_BYTES, _LINE_BYTES = 40, 150
# Open files: of a run its metrics and its lock, and what Python, JAX and the data have.
_RUN_FILES, _OTHER_FILES = 2, 200


def check(
    task: Task,
    *,
    updates: int,
    window: int,
    dtype: Any,
    batch: int = 1,
    seeds: int = 1,
    together: bool = False,
    examples: int = 0,
) -> None:
    """Refuses a training that cannot fit into this machine's memory.

    Its `seeds` are `together` where they are replicas of one program, each of `batch`
    streams; `examples` are frames predicted together after training.

    Raises:
        UserError: a size is too large; the one is named that decides.
    """
    _allow_open_files(seeds)
    size = np.dtype(dtype).itemsize
    height, width, _ = task.frame
    pixels = math.prod(task.frame)
    carry = _bytes(jax.eval_shape(lambda: task.initial_carry(batch, dtype)))
    steps = 1 + (window if task.windowed else 1)
    frames = steps * batch * pixels * (1 + size)
    weights = task.weights * size
    # Weights, gradient and Adam's two moments; the state of each step of the window is
    # kept for the backward pass. Examples: as bytes, as pixels, and predicted.
    update = 4 * weights + steps * carry + frames
    together_bytes = together * seeds * (3 * weights + carry + frames)
    needs = (
        (
            f"updates={updates}",
            updates * seeds * _PLAN_BYTES,
            "the plan of the updates",
        ),
        (
            f"height={height}, width={width}, window={window}, batch={batch}",
            update,
            f"one update of {task.name}",
        ),
        (
            f"examples={examples}",
            examples * pixels * (1 + 2 * size),
            "their prediction",
        ),
        (
            f"replicas={seeds}",
            together_bytes,
            "the sum of their weights and frames",
        ),
    )
    memory = device.memory_bytes()
    for name, needed, what in needs:
        if memory is not None and needed > memory:
            raise UserError(
                f"{name}: {what} takes at least {_shown(needed)}; expected sizes that "
                f"fit into the {_shown(memory)} of this machine"
            )


def check_disk(
    folder: Path,
    state: Any,
    *,
    updates: int,
    every: int,
    kept: int,
    saved: Sequence[int] = (0,),
) -> None:
    """Refuses checkpoints and metrics that cannot fit on the disk.

    Args:
        folder: where the runs are written.
        state: of one run, for its shapes.
        updates: of each run.
        every: updates between checkpoints; 0: one by the clock, and the last.
        kept: checkpoints that stay; 0: all.
        saved: of each run, how many checkpoints it has on the disk already.
    """
    made = updates // every + 1 if every else 2
    # A new one is whole before an old one goes.
    count = min(made, kept + 1) if kept else made
    new = sum(max(0, count - there) for there in saved)
    needed = new * _bytes(state) + len(saved) * updates * _LINE_BYTES
    nearest = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(nearest).free
    if needed > free:
        raise UserError(
            f"checkpoint_every={every}, updates={updates}: {new} more checkpoints need "
            f"at least {_shown(needed)}, {folder} has {_shown(free)} free; expected "
            "fewer (--keep_checkpoints=3 keeps the last three)"
        )


def _allow_open_files(seeds: int) -> None:
    """Raises the soft limit of open files as far as the runs need it."""
    needed = _RUN_FILES * seeds + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (soft, hard) and needed > hard:
        raise UserError(
            f"replicas={seeds}: need {needed} open files; expected at most "
            f"{(hard - _OTHER_FILES) // _RUN_FILES}, as the system allows {hard}"
        )
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _bytes(tree: Any) -> int:
    """Of all arrays of a tree of arrays or shapes."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def _shown(count: int) -> str:
    """Bytes as people read them."""
    power = min(4, (len(str(count)) - 1) // 3)
    return f"{count / 1000**power:.4g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
