"""What watches a training loop: its progress, and a trace of a few updates."""

import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, TypeVar

import jax

from prednet_jax.messages import say
from prednet_jax.training.loop import UpdateRecord

T = TypeVar("T")
# Updates before a trace begins (they compile and warm up), and in it.
TRACE_AFTER, _TRACED = 2, 3
# Updates whose mean loss is shown.
_RECENT = 100


def traced(steps: Iterator[T], folder: str | None) -> Iterator[T]:
    """The same steps, with a trace of the third to the fifth; None: no trace."""
    number = 0
    for number, step in enumerate(steps, 1):
        yield step
        # What is asked for next is the step after this one.
        if folder is not None and number == TRACE_AFTER:
            jax.profiler.start_trace(folder, create_perfetto_trace=True)
        if folder is not None and number == TRACE_AFTER + _TRACED:
            jax.profiler.stop_trace()
    if folder is not None and TRACE_AFTER <= number < TRACE_AFTER + _TRACED:
        jax.profiler.stop_trace()


class Progress:
    """How far a loop is, on stderr: a bar on a terminal, else a line every so often.

    Of a training it shows the mean loss of the last updates, and what it is of that of
    copying the last frame. `done` steps were made before.
    """

    def __init__(
        self,
        name: str,
        total: int,
        done: int = 0,
        *,
        shown: bool = True,
        unit: str = "update",
        seconds: float = 15.0,
    ):
        self._name, self._unit, self._seconds = name, unit, seconds
        self._total, self._done = total, done
        self._recent: deque[tuple[float, float | None]] = deque(maxlen=_RECENT)
        # When the first step had ended, which compiles, and which it was.
        self._began, self._said, self._since = 0.0, 0.0, -1
        self._lines = shown and not sys.stderr.isatty()
        self._bar: Any = None
        if shown and not self._lines:
            from tqdm import tqdm

            self._bar = tqdm(
                desc=name, total=total, initial=done, unit=unit, dynamic_ncols=True
            )

    def update(self, *records: UpdateRecord) -> None:
        """One step further, with the record of each run of a training."""
        self._done += 1
        self._recent += [(r.loss, r.copy_last_frame_loss) for r in records]
        if self._bar is not None:
            self._bar.set_postfix_str(self._reached(), refresh=False)
            self._bar.update()
        now = time.monotonic()
        if self._since < 0:
            self._since, self._began, self._said = self._done, now, now
        elif self._lines and now - self._said >= self._seconds:
            self._said = now
            rate = (self._done - self._since) / (now - self._began)
            parts = [
                f"{self._name}: {self._unit} {self._done} of {self._total}",
                f"{rate:.3g} a second",
                f"{(self._total - self._done) / rate:.0f} s left",
                self._reached(),
            ]
            say(", ".join(filter(None, parts)))

    def _reached(self) -> str:
        """The recent loss, and what it is of that of copying."""
        if not self._recent:
            return ""
        losses, copied = zip(*self._recent, strict=True)
        text = f"loss {sum(losses) / len(losses):.5f}"
        compared = sum(copy or 0 for copy in copied)
        return f"{text} ({sum(losses) / compared:.2f} of copying)" if compared else text

    def close(self) -> None:
        """Leaves the bar as it is."""
        if self._bar is not None:
            self._bar.close()
