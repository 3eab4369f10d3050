"""Runs jobs as processes of this machine, each with an environment of its own.

`execute` here and in `on_ray` are the same to a caller: jobs in, one `Ended` for each
as it ends, None about once a second in between. Both start the same children.
"""

import contextlib
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prednet_jax.comparison import children, receipts
from prednet_jax.comparison.jobs import Job
from prednet_jax.errors import UserError
from prednet_jax.records import RecordError

LOG = "log.txt"
# Seconds between looks at the children; looks between beats.
_LOOK, _BEAT = 0.1, 10


class ProcessError(RuntimeError):
    """A process of the comparison ended with an error."""


@dataclass(frozen=True)
class Ended:
    """A job that has ended.

    Attributes:
        job: the job.
        error: what went wrong; None: every run is on disk, with its receipt. Of class
            UserError if the process refused what it was given (status 2).
    """

    job: Job
    error: Exception | None = None


@dataclass
class _Running:
    """A child: what was asked for, what is left of it, how often it was killed."""

    asked: Job
    job: Job
    tries: int
    child: subprocess.Popen
    stack: contextlib.ExitStack


def execute(
    jobs: Iterable[Job], *, processes: int, retries: int = 0
) -> Iterator[Ended | None]:
    """Runs jobs, some at a time; what they print goes to `log.txt` in their folders.

    The bits of a run do not depend on what else the machine does; its seconds do. Jobs
    on a GPU run alone, after the others: each takes the device's memory. When the
    iterator is closed or this process ends, the children end.

    Args:
        jobs: the processes to run.
        processes: how many at a time, on the CPU.
        retries: how often a process is started again that a signal has killed.
    """
    waiting = deque((j, j, 0) for j in sorted(jobs, key=lambda job: job.arm.gpu))
    running: list[_Running] = []
    with contextlib.ExitStack() as everything:
        look = 0
        while waiting or running:
            while waiting and _fits(waiting[0][0], running, processes):
                running.append(_start(everything, *waiting.popleft()))
            time.sleep(_LOOK)
            look += 1
            for one in list(running):
                if one.child.poll() is None:
                    continue
                running.remove(one)
                one.stack.close()
                left = _left(one.job)
                if left is not None and _goes_on(one, retries):
                    again = children.killed(one.child.returncode)
                    waiting.appendleft((one.asked, left, one.tries + again))
                else:
                    yield Ended(one.asked, ending(one.job, one.child.returncode))
            if look % _BEAT == 0:
                for one in running:
                    with contextlib.suppress(RecordError):  # told when it has ended
                        receipts.seal_ended(one.job)
                yield None


def _fits(job: Job, running: list[_Running], processes: int) -> bool:
    if job.arm.gpu or any(one.job.arm.gpu for one in running):
        return not running
    return len(running) < processes


def _goes_on(ended: _Running, retries: int) -> bool:
    """Whether a child is started for the runs that one left behind.

    It was killed, or one of its runs diverged, which ends `train.py` with status 1.
    """
    if children.killed(ended.child.returncode):
        return ended.tries < retries
    return ended.child.returncode == 1 and receipts.any_diverged(ended.job)


def _start(
    everything: contextlib.ExitStack, asked: Job, job: Job, tries: int
) -> _Running:
    make_room(job)
    launch = children.Launch(
        script=job.script,
        arguments=(*job.arguments(job.folder), "--noprogress"),
        environment=job.environment(),
        threads=job.threads,
    )
    stack = everything.enter_context(contextlib.ExitStack())
    child = stack.enter_context(children.started(launch, job.folder / LOG))
    return _Running(asked, job, tries, child, stack)


def _left(job: Job) -> Job | None:
    """The runs of a job that have not ended; receipts for those that have."""
    with contextlib.suppress(RecordError):
        receipts.seal_ended(job)
    left, _ = receipts.kept([job])
    return left[0] if left else None


def make_room(job: Job) -> None:
    """Removes what is left of earlier tries at the runs of a job."""
    job.folder.mkdir(parents=True, exist_ok=True)
    for seed in job.seeds:
        if job.run_folder(seed).exists():
            shutil.rmtree(job.run_folder(seed))


def ending(job: Job, status: int) -> Exception | None:
    """What is wrong with a job that has ended; if nothing is, its runs get receipts.

    The message names the arm, its last line, and the command.
    """
    log = job.folder / LOG
    if status and _left(job) is not None:
        kind = UserError if status == 2 else ProcessError
        return kind(
            f"arm {job.arm.name} of {job.model} ended with status {status} "
            f"({children.last_line(log)}); see {log}; it was: {job.shown}"
        )
    try:
        receipts.seal_ended(job)
        for seed in job.seeds:
            receipts.verified(job, seed)
    except RecordError as error:
        return error
    return None


def clear(root: Path, jobs: Iterable[Job]) -> None:
    """Removes what an earlier comparison left, but for runs that these jobs made.

    Args:
        root: directory of the comparison.
        jobs: everything that it asks for.
    """
    for name in ("verdict.json", "report.html"):
        (root / name).unlink(missing_ok=True)
    ours = {job.run_folder(seed) for job in jobs for seed in job.seeds}
    runs = root / "runs"
    if runs.is_file():
        runs.unlink()
    for folder in sorted(runs.rglob("seed_*")):
        if folder.is_dir() and folder not in ours:
            shutil.rmtree(folder)
