"""Runs jobs as processes on this machine, each with an environment of its own.

`execute` here and `on_ray.execute` have the same interface: they take jobs and yield an
`Ended` when a job ends, and None about once a second in between. Both start the same
child processes.
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
# Seconds between polls of the children; polls between two yields of None.
_LOOK, _BEAT = 0.1, 10


class ProcessError(RuntimeError):
    """A process of the comparison ended with an error."""


@dataclass(frozen=True)
class Ended:
    """A job that has ended.

    Attributes:
        job: the job.
        error: what went wrong; None: every run is on disk, with its receipt. It is a
            UserError if the process refused its flags or files (status 2).
    """

    job: Job
    error: Exception | None = None


@dataclass
class _Running:
    """A running child.

    Attributes:
        asked: the whole job.
        job: the part of it that this child runs.
        tries: how often a child of this job has been killed.
        child: the process.
        stack: closes the child's files and locks.
    """

    asked: Job
    job: Job
    tries: int
    child: subprocess.Popen
    stack: contextlib.ExitStack


def execute(
    jobs: Iterable[Job], *, processes: int, retries: int = 0
) -> Iterator[Ended | None]:
    """Runs jobs, several at a time; their output goes to `log.txt` in their folders.

    Other load on the machine changes the seconds of a run but not its bits. Jobs on a
    GPU run after all others and one at a time, since each takes all of the GPU's
    memory. The children end when the iterator is closed or this process ends.

    Args:
        jobs: the processes to run.
        processes: how many run at a time on the CPU.
        retries: how often a process that a signal has killed is started again.
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
                    # An error is reported when the process has ended.
                    with contextlib.suppress(RecordError):
                        receipts.seal_ended(one.job)
                yield None


def _fits(job: Job, running: list[_Running], processes: int) -> bool:
    if job.arm.gpu or any(one.job.arm.gpu for one in running):
        return not running
    return len(running) < processes


def _goes_on(ended: _Running, retries: int) -> bool:
    """Whether to start another child for the runs that this one has not made.

    Yes if it was killed, or if one of its runs diverged: that ends `train.py` with
    status 1 before the runs that follow.
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
    """The runs of a job that are not complete; writes receipts for those that are."""
    with contextlib.suppress(RecordError):
        receipts.seal_ended(job)
    left, _ = receipts.kept([job])
    return left[0] if left else None


def make_room(job: Job) -> None:
    """Makes the folder of a job and removes what earlier tries left in it."""
    job.folder.mkdir(parents=True, exist_ok=True)
    for seed in job.seeds:
        if job.run_folder(seed).exists():
            shutil.rmtree(job.run_folder(seed))


def ending(job: Job, status: int) -> Exception | None:
    """The error of a job that has ended; None: all is well, and its runs get receipts.

    The message names the arm, the last line of its output, and the command.
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
    """Removes the results of an earlier comparison, except the runs of these jobs.

    Runs without a receipt, and those of a sweep, which lie elsewhere, are not ours.

    Args:
        root: directory of the comparison.
        jobs: all jobs of the new comparison.
    """
    for name in ("verdict.json", "report.html"):
        (root / name).unlink(missing_ok=True)
    ours = {job.run_folder(seed) for job in jobs for seed in job.seeds}
    # Where `Design` puts them.
    for place in ("*/*", "*/*/draw_*"):
        for receipt in root.glob(f"runs/{place}/seed_*/{receipts.RECEIPT}"):
            if receipt.parent not in ours:
                shutil.rmtree(receipt.parent)
