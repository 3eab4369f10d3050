"""Finds what the runs of a comparison would refuse, before the first run starts."""

import numpy as np

from prednet_jax import data, process
from prednet_jax.comparison.design import Design, Setup
from prednet_jax.errors import UserError
from prednet_jax.tasks import Task
from prednet_jax.training import loop, sizes


def check(design: Design) -> None:
    """Checks a design against this machine; its constructor has checked the values.

    Nothing is written. An earlier comparison is removed only after this has passed.

    Args:
        design: the comparison.

    Raises:
        UserError: the root is not a directory, an arm needs more processors than there
            are, a size cannot fit into memory, or the frames of a network cannot be
            opened or do not fill one window.
    """
    for arm in design.chosen:
        check_threads(arm.name, arm.threads)
    check_sources(design)


def check_threads(arm: str, threads: int | None) -> None:
    """Refuses an arm that needs more processors than this machine has.

    Args:
        arm: name of the arm.
        threads: number of processors for each of its runs; None: all.

    Raises:
        UserError: there are fewer.
    """
    if threads is None:
        return
    try:
        process.check_threads(threads)
    except UserError as error:
        raise UserError(f"arm={arm!r}: {error}") from None


def check_sources(setup: Setup) -> None:
    """Refuses a root that is not a directory, and frames that a network cannot use.

    Raises:
        UserError: as `check`.
    """
    for folder in (setup.root, setup.root / "runs"):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"workdir={folder}: a file; expected a directory")
    for task in setup.tasks:
        _check_source(setup, task)


def _check_source(setup: Setup, task: Task) -> None:
    """Opens a network's frames and makes the schedule of updates, as `train.py`."""
    height, width, channels = task.frame
    sizes.check(
        task,
        updates=setup.updates_of(task),
        window=setup.window,
        dtype=np.float32,
    )
    try:
        source = data.open_source(
            setup.data_of(task),
            height=height,
            width=width,
            channels=channels,
            allow_outside=setup.allow_outside,
        )
        loop.frame_schedule(
            task, source, window=setup.window, updates=setup.updates_of(task)
        )
    except UserError as error:
        field = "data" if task.windowed else "images"
        raise UserError(f"{field}: {error}") from None
