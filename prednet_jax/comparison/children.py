"""Starts child processes, which end when their parent ends.

A child inherits nothing that could change its numbers: its job sets the environment
variables that matter (`provenance.ENVIRONMENT`) and its processors. It runs under
`leash.py`, so that it ends with its parent even if the parent is killed.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prednet_jax import device, provenance

_LEASH = Path(__file__).with_name("leash.py")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What a machine needs to know to start a process.

    Attributes:
        script: path of the script.
        arguments: arguments of the script.
        environment: the environment variables that matter (`provenance.ENVIRONMENT`).
        threads: number of processors that it may use; None: all.
    """

    script: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    threads: int | None = None


@contextlib.contextmanager
def started(
    launch: Launch, log: Path, *, temporary: str | os.PathLike | None = None
) -> Iterator[subprocess.Popen]:
    """A running child; it is killed when the block ends.

    Args:
        launch: what to start.
        log: file to which the child's output is appended.
        temporary: working directory of the child, which the child removes if this
            process is killed; None: that of this process, which stays.
    """
    words = launch.script, *launch.arguments
    with processors(launch.threads) as own, open(log, "ab") as output:
        child = subprocess.Popen(
            [sys.executable, str(_LEASH), own, str(temporary or ""), *words],
            env=environment(launch.environment),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=temporary,
            # Ray kills the process group of a worker that is lost, and the child would
            # have no time to clean up.
            start_new_session=temporary is not None,
        )
        try:
            yield child
        finally:
            child.kill()
            child.wait()
            assert child.stdin is not None
            child.stdin.close()


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child.

    It has this process's variables, except those of Ray and those that matter
    (`provenance.ENVIRONMENT`); the latter come from `own` only.

    Args:
        own: variables of the child's job.
    """
    machine = {
        name: value
        for name, value in os.environ.items()
        if name not in provenance.ENVIRONMENT and not name.startswith("RAY_")
    }
    return machine | dict(own)


@contextlib.contextmanager
def processors(count: int | None) -> Iterator[str]:
    """Processors for one child; if possible, no other child on this machine has them.

    `train.py --threads=1` takes the first processor that it may use, so without this
    all such children would share one. Each processor has a lock file, which is released
    when its holder ends.

    Args:
        count: how many; None: all.

    Yields:
        Their numbers, separated by commas; empty: the child may use all.
    """
    if count is None or not hasattr(os, "sched_setaffinity"):
        yield ""
        return
    folder = Path(tempfile.gettempdir()) / f"prednet_jax_processors_{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    free: list[int] = []
    with contextlib.ExitStack() as held:
        mine = sorted(os.sched_getaffinity(0))
        for number in mine:
            if len(free) < count:
                file = held.enter_context(open(folder / str(number), "w"))
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    free.append(number)
        shared = [number for number in mine if number not in free]
        yield ",".join(map(str, sorted(free + shared[: count - len(free)])))


def killed(status: int) -> bool:
    """Whether a signal ended a child; `train.py` reports some as 128 + its number."""
    asked = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    return status < 0 or status - 128 in asked


def last_line(log: Path) -> str:
    """The last line that a child printed."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"


def parallel_runs(threads: int | None) -> int:
    """How many children with `threads` threads each fit on this machine; at least 1."""
    return max(1, device.available_threads() // threads) if threads else 1
