"""Shows how far the trainings of a comparison are, while they run in other processes.

Everything is read from the files that the trainings write. A terminal gets a bar;
a file gets a line at least every `PAUSE` seconds, whatever the comparison does.
"""

import contextlib
import json
import math
import os
import statistics
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from prednet_jax import records
from prednet_jax.runs.executor import LOG
from prednet_jax.runs.jobs import Job

#: Seconds between two lines.
PAUSE = 8.0
# Bytes at the end of a file that are read, and updates whose mean loss is shown.
_TAIL, _RECENT = 1 << 14, 50
# From this share on the time that is left is known well enough to be printed.
_SHARE_FOR_TIME = 0.05
#: Updates after which the first finding is read, and the updates that it averages.
FIRST_FINDING, AVERAGED = 500, 100


@dataclass(frozen=True)
class State:
    """The progress of a process, from 0 to 1, and one phrase (empty while it waits)."""

    share: float
    text: str = ""


#: Reads the progress of something that runs in another process.
Work = Callable[[], State]


def training_state(job: Job) -> State:
    """Returns the progress of a job, with the mean loss of the last updates."""
    seeds, updates = job.seeds, job.updates
    done = update = 0
    for seed in seeds:
        rows = last_rows(job.run_folder(seed))
        update = int(rows[-1]["update"]) if rows else 0
        done += update
        if update < updates:
            break
    if not done and not (job.folder / LOG).exists():
        return State(0.0)
    number = f", seed {seeds.index(seed) + 1} of {len(seeds)}" * (len(seeds) > 1)
    doing = "starting" if done else "compiling"
    if update:
        losses = [row["last_frame_loss"] for row in rows[-_RECENT:]]
        mean = math.nan if None in losses else statistics.fmean(losses)
        doing = f"update {update} of {updates}, loss {mean:.4f}"
    share = done / (updates * len(seeds))
    return State(share, f"{job.name}{number}: {doing}" if share < 1 else "")


def last_rows(folder: Path) -> list[dict[str, float]]:
    """Returns the last rows of a run's metrics; [] if it has not begun."""
    try:
        with open(folder / records.METRICS, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    # The first line of a tail and the last one may be torn.
    complete = lines[1 if size > _TAIL else 0 : -1]
    return [json.loads(line) for line in complete]


def early_loss(job: Job) -> float | None:
    """Returns the loss of a job's first seed around `FIRST_FINDING`, or None."""
    path = job.run_folder(job.seeds[0]) / records.METRICS
    if not path.exists():
        return None
    lines = records.metrics_lines(path)[FIRST_FINDING - AVERAGED : FIRST_FINDING]
    losses = [json.loads(line)["last_frame_loss"] for line in lines]
    return sum(losses) / AVERAGED if len(losses) == AVERAGED else None


class Reporter:
    """Prints lines, and the progress in between; a context manager."""

    def __init__(self, *, every: float = PAUSE):
        self._stage, self._following = "starting", 0.0
        self._works: list[tuple[float, Work]] = []
        self._watch: Callable[[], object] = lambda: None
        self._every, self._begun = every, time.monotonic()
        self._said, self._ended = time.monotonic(), threading.Event()
        self._bar: tqdm | None = None
        if sys.stdout.isatty():
            self._bar = tqdm(bar_format="{desc}", dynamic_ncols=True, leave=False)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Reporter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._bar is not None:
            self._bar.close()

    def event(self, text: str) -> None:
        """Prints a line with the time since the start."""
        self.line(f"[{clock(time.monotonic() - self._begun)}] {text}")

    def paragraph(self, text: str) -> None:
        """Prints sentences at once, in lines of a terminal's width."""
        self.line(textwrap.fill(text, 100, break_on_hyphens=False))

    def line(self, text: str) -> None:
        """Prints a line at once."""
        if self._bar is not None:
            tqdm.write(text, file=sys.stdout)
        else:
            print(text, flush=True)
        self._said = time.monotonic()

    def stage(self, text: str) -> None:
        """Starts another stage, without trainings to watch."""
        self._works, self._stage = [], text
        self._watch = lambda: None

    def follow(
        self,
        works: Sequence[tuple[float, Work]],
        watch: Callable[[], object] = lambda: None,
    ) -> None:
        """Follows works, each with its expected seconds; `watch` is called often."""
        self._works, self._watch = list(works), watch
        self._following = time.monotonic()

    def _run(self) -> None:
        while not self._ended.wait(0.5):
            # A file may be half written, or removed, while it is read.
            with contextlib.suppress(OSError, ValueError, KeyError):
                self._watch()
                if self._bar is not None:
                    self._bar.set_description_str(self._status())
                elif time.monotonic() - self._said > self._every:
                    self.line(self._status())

    def _status(self) -> str:
        passed = time.monotonic() - self._begun
        states = [(cost, work()) for cost, work in self._works]
        if not states:
            return f"[{clock(passed)}] {self._stage}"
        total = sum(cost for cost, _ in states)
        share = sum(cost * state.share for cost, state in states) / total
        end = ""
        if share > _SHARE_FOR_TIME:
            pace = (time.monotonic() - self._following) / share
            end = f", {clock(pace * (1 - share))} left"
        running = "; ".join(state.text for _, state in states if state.text)
        return f"[{clock(passed)}, {share:.0%} done{end}] {running or 'starting'}"


def clock(seconds: float) -> str:
    """Returns minutes and seconds, such as 3:07."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
