"""Runs jobs as processes on this machine, each with its own environment.

`execute` here and `sweeps.execute` have the same interface: they take jobs and yield an
`Ended` when a job ends. Both start the same child processes (`started`), under
`leash.py`. docs/runs.md lists the variables that a child does not inherit.
"""

import concurrent.futures
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import filelock

from prednet_jax import records
from prednet_jax.errors import RunError, UserError
from prednet_jax.files import FileError
from prednet_jax.runs import store
from prednet_jax.runs.jobs import (
    Job,
    any_diverged,
    split_finished,
    verified,
    write_receipts,
)

LOG = "log.txt"
_LEASH = Path(__file__).with_name("leash.py")
Running = Generator["Ended", None, None]
# Seconds between two checks of a child.
_LOOK = 0.1


class ProcessError(RunError):
    """A process ended with an error."""


@dataclass(frozen=True)
class Ended:
    """A job that has ended; with `error` None every run is on disk, with its receipt.

    It is a UserError if the process refused its flags or files (status 2).
    """

    job: "Job | Script"
    error: Exception | None = None


@dataclass(frozen=True, kw_only=True)
class ProcessCommand:
    """The data that a machine needs to start a process.

    `environment` has the variables that affect results (`records.ENVIRONMENT`).
    `threads` is the number of processors that the process may use; None means all.
    """

    script: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class Script:
    """A process that is not a job, and runs in turn with jobs.

    Attributes:
        name: name in messages.
        launch: command that starts it.
        log: file to which its output is appended.
    """

    name: str
    launch: ProcessCommand
    log: Path

    def run(self, stop: threading.Event) -> Exception | None:
        """Runs the process to its end, or until `stop`; returns its error."""
        with started(self.launch, self.log) as child:
            while child.poll() is None and not stop.wait(_LOOK):
                pass
        if stop.is_set():
            return ProcessError("stopped")
        if child.returncode == 0:
            return None
        return ProcessError(
            f"{self.name} ended with status {child.returncode}; see {self.log}"
        )


def execute(
    jobs: Iterable[Job | Script], *, processes: int, stop: threading.Event | None = None
) -> Running:
    """Executes jobs, `processes` at a time; their output is `log.txt` in their folders.

    Jobs on a GPU run after all others and one at a time, since each takes all of its
    memory. The children end when the iterator is closed or this process ends, and when
    `stop` is set, which ends the jobs with a ProcessError.
    """
    jobs = list(jobs)
    stop = stop or threading.Event()
    on_gpu = [job for job in jobs if isinstance(job, Job) and job.arm.gpu]
    on_cpu = [job for job in jobs if job not in on_gpu]
    for group, at_a_time in ((on_cpu, processes), (on_gpu, 1)):
        pool = concurrent.futures.ThreadPoolExecutor(at_a_time)
        ended = False
        try:
            futures = [pool.submit(_run, job, stop) for job in group]
            for future in concurrent.futures.as_completed(futures):
                yield future.result()
            ended = True
        finally:
            if not ended:
                stop.set()
            pool.shutdown(cancel_futures=True)


def _run(job: Job | Script, stop: threading.Event) -> Ended:
    if stop.is_set():
        return Ended(job, ProcessError("stopped"))
    if isinstance(job, Script):
        return Ended(job, job.run(stop))
    missing: Job | None = job
    while missing is not None:
        make_room(missing)
        with started(launch(missing, missing.folder), job.folder / LOG) as child:
            while child.poll() is None and not stop.wait(_LOOK):
                # An error is reported when the process has ended.
                with contextlib.suppress(FileError):
                    write_receipts(missing)
        if stop.is_set():
            return Ended(job, ProcessError("stopped"))
        part, missing = missing, _missing(missing)
        # A run that diverged ends `train.py` with status 1 before the runs that follow.
        if child.returncode != 1 or not any_diverged(part):
            break
    return Ended(job, ending(job, child.returncode))


def launch(job: Job, workdir: str | os.PathLike) -> ProcessCommand:
    """Returns how to start a job whose runs shall lie in `workdir/seed_N`."""
    return ProcessCommand(
        script=job.script,
        arguments=(*job.arguments(workdir), "--noprogress"),
        environment=job.environment(),
        threads=job.threads,
    )


def _missing(job: Job) -> Job | None:
    """Returns the job with its incomplete runs, or None.

    Complete runs get their receipts.
    """
    with contextlib.suppress(FileError):
        write_receipts(job)
    missing, _ = split_finished([job])
    return missing[0] if missing else None


def make_room(job: Job) -> None:
    """Makes the folder of a job and removes the files of earlier tries."""
    job.folder.mkdir(parents=True, exist_ok=True)
    for seed in job.seeds:
        if job.run_folder(seed).exists():
            shutil.rmtree(job.run_folder(seed))


def ending(job: Job, status: int) -> Exception | None:
    """Returns the error of a job that has ended.

    The result is None if its runs are whole; they get receipts.
    """
    log = job.folder / LOG
    if status and _missing(job) is not None:
        kind = UserError if status == 2 else ProcessError
        lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
        return kind(
            f"arm {job.arm.name} of {job.model} ended with status {status} "
            f"({lines[-1]}); see {log}; it was: {job.command_line}"
        )
    try:
        write_receipts(job)
        for seed in job.seeds:
            verified(job, seed)
    except FileError as error:
        return error
    return None


def clear(root: Path, jobs: Iterable[Job]) -> None:
    """Removes the results of an earlier comparison, except the runs of these jobs.

    Runs without a receipt and the runs of a sweep, which lie elsewhere, are kept.
    """
    for name in ("verdict.json", "report.html"):
        (root / name).unlink(missing_ok=True)
    ours = {job.run_folder(seed) for job in jobs for seed in job.seeds}
    # Where `Design` puts them.
    for pattern in ("*/*", "*/*/draw_*"):
        for receipt in root.glob(f"runs/{pattern}/seed_*/{store.RECEIPT}"):
            if receipt.parent not in ours:
                shutil.rmtree(receipt.parent)


@contextlib.contextmanager
def started(
    launch: ProcessCommand, log: Path, *, folder: Path | None = None
) -> Iterator[subprocess.Popen]:
    """Yields a running child; it is killed when the block ends.

    Its output is appended to `log`; `folder` is its working directory.
    """
    words = launch.script, *launch.arguments
    with processors(launch.threads) as own, open(log, "ab") as output:
        child = subprocess.Popen(
            [sys.executable, str(_LEASH), own, *words],
            env=environment(launch.environment),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
        try:
            yield child
        finally:
            child.kill()
            child.wait()
            assert child.stdin is not None
            child.stdin.close()


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a child: this process's, and the variables of its job.

    It has neither the variables of Ray nor, unless the job sets them, the variables
    that affect results (`records.ENVIRONMENT`).
    """
    machine = {
        name: value
        for name, value in os.environ.items()
        if name not in records.ENVIRONMENT and not name.startswith("RAY_")
    }
    return machine | dict(own)


@contextlib.contextmanager
def processors(count: int | None) -> Iterator[str]:
    """Yields numbers of processors for one child, which no other child has if possible.

    `train.py --threads=1` takes the first processor that it may use, so without this
    all such children would share one. Each processor has a lock file. The text is empty
    if `count` is None: the child may use all processors.
    """
    if count is None or not hasattr(os, "sched_setaffinity"):
        yield ""
        return
    folder = Path(tempfile.gettempdir()) / f"prednet_jax_processors_{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    free: list[int] = []
    with contextlib.ExitStack() as locks:
        mine = sorted(os.sched_getaffinity(0))
        for number in mine:
            if len(free) < count:
                with contextlib.suppress(filelock.Timeout):
                    lock = filelock.FileLock(folder / str(number), timeout=0)
                    locks.enter_context(lock)
                    free.append(number)
        shared = [number for number in mine if number not in free]
        yield ",".join(map(str, sorted(free + shared[: count - len(free)])))


def killed(status: int) -> bool:
    """Returns whether a signal ended a child.

    `train.py` reports some signals as status 128 + the signal's number.
    """
    asked = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    return status < 0 or status - 128 in asked
