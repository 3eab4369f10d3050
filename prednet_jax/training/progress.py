"""Shows the progress of a training on stderr, and describes its result in words."""

import io
import math
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tqdm import tqdm

from prednet_jax import records
from prednet_jax.errors import log_line
from prednet_jax.training.loop import UpdateRecord

# Updates whose mean loss is shown; seconds between two lines, and the lines.
_RECENT, _PAUSE = 100, 15.0
_LINE = "{desc}: {n} of {total}, {rate_fmt}, {remaining} left{postfix}"


class Progress:
    """Shows how far a training is: a bar on a terminal, else a line now and then.

    It shows the mean loss of the last updates, and its ratio to the loss of copying.
    """

    def __init__(self, name: str, total: int, done: int = 0, *, shown: bool = True):
        self._recent: deque[tuple[float, float | None]] = deque(maxlen=_RECENT)
        self._lines = shown and not sys.stderr.isatty()
        count = {"total": total, "initial": done, "unit": "update"}
        if self._lines:  # No bar is drawn, but tqdm measures.
            count |= {"file": io.StringIO(), "bar_format": _LINE, "mininterval": _PAUSE}
        self._bar = tqdm(desc=name, **count, dynamic_ncols=True, disable=not shown)
        self._shown_at = math.inf  # The first update compiles.

    def update(self, *lines: UpdateRecord) -> None:
        """Counts one update, with the record of each run."""
        self._recent += [(line.loss, line.copy_last_frame_loss) for line in lines]
        losses, copied = zip(*self._recent, strict=True)
        text = f"loss {sum(losses) / len(losses):.5f}"
        if compared := sum(copy or 0 for copy in copied):
            text += f" ({sum(losses) / compared:.2f} of copying, while training)"
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update()
        now = time.monotonic()
        if self._lines and now - self._shown_at >= _PAUSE:
            log_line(str(self._bar))
        if now - self._shown_at >= _PAUSE or self._shown_at == math.inf:
            self._shown_at = now

    def close(self) -> None:
        """Leaves the bar unchanged."""
        self._bar.close()


def reached(folder: Path, validated: Mapping[str, float] | None = None) -> str:
    """Returns the result of a training: its last loss as a fraction of copying's loss.

    Losses are means over the last fifth of all updates, including updates of earlier
    processes. The text is empty for a network without a frame to copy.
    """
    metrics = records.read_run(folder).metrics
    last = -max(1, len(metrics["loss"]) // 5)
    loss, copied = (metrics[name][last:] for name in ("loss", "copy_last_frame_loss"))
    compared = np.isfinite(copied)
    if not np.any(copied[compared]):
        return ""
    ratio = loss[compared].mean() / copied[compared].mean()
    text = f", loss {ratio:.2f} times the loss of copying the last frame"
    frozen = validated and f" while training, {validated['ratio']:.2f} frozen, held out"
    return text + (frozen or "")
