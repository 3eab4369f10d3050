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

# The plan of an update: where it starts, whether it opens a sequence, and the arrays
# that this is computed from (`data.schedule`).
_PLAN_BYTES = 40
# A line of metrics.jsonl.
_LINE_BYTES = 150
# Files that are open for a run: its metrics and its lock.
_FILES = 2
# What Python, JAX and the data have open beside them.
_OTHER_FILES = 200


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

    Args:
        task: the network.
        updates: of each run.
        window: transitions per update.
        dtype: of the parameters.
        batch: streams of a run.
        seeds: number of runs.
        together: whether they are replicas of one program.
        examples: frames predicted together after training.

    Raises:
        UserError: a size is too large; the one is named that decides.
    """
    _check_files(seeds)
    plan = updates * seeds * _PLAN_BYTES
    _compare(f"updates={updates}", plan, "the plan of the updates")
    size = np.dtype(dtype).itemsize
    carry = _bytes(jax.eval_shape(lambda: task.initial_carry(batch, dtype)))
    steps = window if task.windowed else 1
    frames = (steps + 1) * batch * math.prod(task.frame) * (1 + size)
    # Weights, gradient and Adam's two moments; the state of each step of the window is
    # kept for the backward pass.
    one = 4 * task.weights * size + (steps + 1) * carry + frames
    height, width, _ = task.frame
    shape = f"height={height}, width={width}, window={window}, batch={batch}"
    _compare(shape, one, f"one update of {task.name}")
    # As bytes, as pixels of this precision, and predicted.
    kept = examples * math.prod(task.frame) * (1 + 2 * size)
    _compare(f"examples={examples}", kept, "their prediction")
    if together:
        kept = 3 * task.weights * size + carry + frames
        _compare(
            f"replicas={seeds}", seeds * kept, "the sum of their weights and frames"
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
        every: updates between checkpoints; 0: only the last state is kept.
        kept: checkpoints that stay; 0: all.
        saved: of each run, how many checkpoints it has on the disk already.

    Raises:
        UserError: there is too little room.
    """
    made = updates // every + 1 if every else 1
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


def _check_files(seeds: int) -> None:
    needed = _FILES * seeds + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed <= soft or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise UserError(
            f"replicas={seeds}: need {needed} open files; expected at most "
            f"{(hard - _OTHER_FILES) // _FILES}, as the system allows {hard}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _compare(name: str, needed: int, what: str) -> None:
    there = device.memory_bytes()
    if there is not None and needed > there:
        raise UserError(
            f"{name}: {what} takes at least {_shown(needed)}; expected sizes that fit "
            f"into the {_shown(there)} of this machine"
        )


def _bytes(tree: Any) -> int:
    """Of all arrays of a tree of arrays or shapes."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def _shown(count: int) -> str:
    """Bytes as people read them."""
    units = ("B", "kB", "MB", "GB", "TB")
    power = min(len(units) - 1, (len(str(count)) - 1) // 3)
    return f"{count / 1000**power:.4g} {units[power]}"
