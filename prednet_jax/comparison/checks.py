"""What the runs of a comparison would refuse, refused before the first one starts."""

import numpy as np

from prednet_jax import data, process
from prednet_jax.comparison.design import Design, Plan
from prednet_jax.errors import UserError
from prednet_jax.tasks import Task
from prednet_jax.training import loop, sizes


def check(design: Design) -> None:
    """Checks a design against this machine; the constructor has checked it by itself.

    Nothing is written. An earlier comparison is removed only after this has passed.

    Args:
        design: the comparison.

    Raises:
        UserError: the root is no directory, an arm wants more processors than there
            are, a size cannot fit into memory, or the frames of a network cannot be
            opened or do not fill one window.
    """
    for arm in design.chosen:
        check_threads(arm.name, arm.threads)
    check_sources(design)


def check_threads(arm: str, threads: int | None) -> None:
    """Refuses an arm that wants more processors than this machine has.

    Args:
        arm: its name.
        threads: processors that its runs are confined to; None: all.

    Raises:
        UserError: there are not so many.
    """
    if threads is None:
        return
    try:
        process.check_threads(threads)
    except UserError as error:
        raise UserError(f"arm={arm!r}: {error}") from None


def check_sources(plan: Plan) -> None:
    """Refuses a root that is no directory, and frames that no network can be shown.

    Raises:
        UserError: as `check`.
    """
    if plan.root.exists() and not plan.root.is_dir():
        raise UserError(f"workdir={plan.root}: a file; expected a directory")
    for task in plan.tasks:
        _check_source(plan, task)


def _check_source(plan: Plan, task: Task) -> None:
    """Opens a network's frames and plans its updates, as `train.py` does."""
    height, width, channels = task.frame
    sizes.check(
        task,
        updates=plan.updates_of(task),
        window=plan.window,
        dtype=np.float32,
    )
    try:
        source = data.open_source(
            plan.data_of(task),
            height=height,
            width=width,
            channels=channels,
            allow_outside=plan.allow_outside,
        )
        loop.frame_schedule(
            task, source, window=plan.window, updates=plan.updates_of(task)
        )
    except UserError as error:
        field = "data" if task.windowed else "images"
        raise UserError(f"{field}: {error}") from None
