"""Progress of a sweep: a table that is redrawn on a terminal, lines elsewhere."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

import numpy as np

from prednet_jax.comparison.jobs import Job

_HEAD = ("network and arm", "done", "failed", "loss", "seconds")


class Table:
    """Counts, mean loss and mean seconds of the runs, per arm.

    On a terminal the table is redrawn in place. A file or a pipe gets one line per run
    that has ended, and one line every `every` seconds if none has.

    Args:
        jobs: every run of the sweep.
        output: where to write.
        every: seconds.
    """

    def __init__(self, jobs: Iterable[Job], output: TextIO, *, every: float = 30.0):
        self._arms: dict[str, list[dict[str, Any] | None]] = {}
        self._total: dict[str, int] = {}
        for job in jobs:
            self._total[job.title] = self._total.get(job.title, 0) + 1
            self._arms.setdefault(job.title, [])
        self._output, self._every = output, every
        self._begin = self._said = time.monotonic()
        self._drawn = 0

    def add(self, job: Job, row: dict[str, Any] | None, *, fresh: bool = True) -> None:
        """Adds a run that has ended.

        Args:
            job: the run.
            row: its row of the merged result; None: it failed.
            fresh: True: it has just ended; False: it was already on disk.
        """
        self._arms[job.title].append(row)
        if self._output.isatty():
            self.beat()
        elif fresh:
            what = "failed" if row is None else f"loss {_number(row['loss'])}"
            self._say(f"{job.title} seed {job.seeds[0]}: {what}")

    def beat(self) -> None:
        """Shows that time has passed; to be called about once a second."""
        if self._output.isatty():
            up = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
            text = f"{self}\n{self._elapsed()}\n"
            self._drawn = text.count("\n")
            self._output.write(up + text)
            self._output.flush()
        elif time.monotonic() - self._said >= self._every:
            self._say("running")

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        done = sum(map(len, self._arms.values()))
        total = sum(self._total.values())
        print(
            f"[{done}/{total}] {text} ({self._elapsed()})",
            file=self._output,
            flush=True,
        )

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._begin:.0f} s"

    def __str__(self) -> str:
        lines: list[Sequence[str]] = [_HEAD]
        for title, ended in self._arms.items():
            rows = [row for row in ended if row is not None]
            lines.append(
                (
                    title,
                    f"{len(rows)}/{self._total[title]}",
                    str(len(ended) - len(rows)),
                    _number(_mean(rows, "loss")),
                    _number(_mean(rows, "wall_seconds")),
                )
            )
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        padded = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
        return "\n".join(padded)


def _mean(rows: Iterable[dict[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if row[name] is not None]
    return float(np.mean(values)) if values else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
