"""Progress of many runs: a line for each that has ended, and a bar on a terminal."""

import sys
import time

from tqdm import tqdm

# Seconds without a line after which one says that runs go on.
_PATIENCE = 30.0


class Progress:
    """Says which runs have ended.

    Args:
        total: number of runs.
        done: how many of them were made before.
        unit: what is counted.
    """

    def __init__(self, total: int, done: int = 0, unit: str = "run"):
        self._total, self._done = total, done
        self._begin = self._said = time.monotonic()
        self._bar = tqdm(
            total=total, initial=done, unit=unit, smoothing=0,
            disable=not sys.stderr.isatty(),
        )  # fmt: skip

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def ended(self, text: str) -> None:
        """A run has ended; the text says how."""
        self._done += 1
        self._bar.update()
        self._say(text)

    def beat(self) -> None:
        """No run has ended; to be called about once a second."""
        self._bar.refresh()
        if self._bar.disable and time.monotonic() - self._said >= _PATIENCE:
            self._say("running")

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        line = f"[{self._done}/{self._total}] {text} ({self._said - self._begin:.0f} s)"
        tqdm.write(line, file=sys.stdout)
        sys.stdout.flush()
