"""What the runs of a comparison would refuse, refused before the first one starts."""

from prednet_jax import data, process
from prednet_jax.comparison.design import Design
from prednet_jax.errors import UserError
from prednet_jax.tasks import Task
from prednet_jax.training import loop


def check(design: Design) -> None:
    """Checks a design against this machine; the constructor has checked it by itself.

    Nothing is written. An earlier comparison is removed only after this has passed.

    Args:
        design: the comparison.

    Raises:
        UserError: the root is no directory, an arm wants more processors than there
            are, or the frames of a network cannot be opened or do not fill one window.
    """
    if design.root.exists() and not design.root.is_dir():
        raise UserError(f"workdir={design.root}: a file; expected a directory")
    for arm in design.chosen:
        if arm.threads is None:
            continue
        try:
            process.check_threads(arm.threads)
        except UserError as error:
            raise UserError(f"arm={arm.name!r}: {error}") from None
    for task in design.tasks:
        _check_source(design, task)


def _check_source(design: Design, task: Task) -> None:
    """Opens a network's frames and plans its updates, as `train.py` does."""
    height, width, channels = task.frame
    try:
        source = data.open_source(
            design.data_of(task), height=height, width=width, channels=channels
        )
        loop.frame_schedule(
            task, source, window=design.window, updates=design.updates_of(task)
        )
    except UserError as error:
        field = "data" if task.windowed else "images"
        raise UserError(f"{field}: {error}") from None
