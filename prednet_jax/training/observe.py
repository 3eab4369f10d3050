"""What watches a training loop: a progress bar, and a trace of a few updates."""

from collections.abc import Iterator
from typing import Any, TypeVar

import jax

T = TypeVar("T")
# Updates before a trace begins: they compile and warm up.
TRACE_AFTER = 2
_TRACED = 3


def traced(steps: Iterator[T], folder: str | None) -> Iterator[T]:
    """The same steps, with a trace of the third to the fifth.

    Args:
        steps: the training.
        folder: where the trace is written; None: no trace.
    """
    if folder is None:
        yield from steps
        return
    number = 0
    for number, step in enumerate(steps, 1):
        yield step
        # What is asked for next is the step after this one.
        if number == TRACE_AFTER:
            jax.profiler.start_trace(folder, create_perfetto_trace=True)
        if number == TRACE_AFTER + _TRACED:
            jax.profiler.stop_trace()
    if TRACE_AFTER <= number < TRACE_AFTER + _TRACED:
        jax.profiler.stop_trace()


def progress(
    name: str, total: int, done: int, shown: bool, *, unit: str = "update"
) -> Any:
    """A progress bar on stderr with rate and remaining time."""
    from tqdm import tqdm

    return tqdm(
        desc=name,
        total=total,
        initial=done,
        disable=not shown,
        unit=unit,
        dynamic_ncols=True,
    )
