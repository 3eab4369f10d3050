"""Child processes: started with what their job says, ended with their parent.

A child inherits nothing that could change its numbers. The variables that matter
(`records.ENVIRONMENT`) are its job's; its processors are its own; and it runs in
`leash.py`, so that it ends when its parent does, however that ends.
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

from prednet_jax import device, records

_LEASH = Path(__file__).with_name("leash.py")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """All that a machine needs to know to start a process.

    Attributes:
        script: path of the script.
        arguments: of the script.
        environment: every variable that matters.
        threads: processors that it is confined to; None: all.
    """

    script: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    threads: int | None = None


@contextlib.contextmanager
def started(
    launch: Launch, log: Path, *, temporary: str | os.PathLike | None = None
) -> Iterator[subprocess.Popen]:
    """A running child, killed when the block ends.

    Args:
        launch: what to start.
        log: what it prints goes to the end of this file.
        temporary: working directory, which the child removes if this process is killed;
            None: that of this process, which stays.
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
    """Variables of a child: those of this machine, and of what matters its own alone.

    Args:
        own: variables of its job.
    """
    machine = {
        name: value
        for name, value in os.environ.items()
        if name not in records.ENVIRONMENT and not name.startswith("RAY_")
    }
    return machine | dict(own)


@contextlib.contextmanager
def processors(count: int | None) -> Iterator[str]:
    """Processors for one child, that no other child on this machine has if possible.

    `train.py --threads=1` takes the first of those that it may use: without this all
    such children would share one. A lock file for each processor dies with its holder.

    Args:
        count: how many; None: all.

    Yields:
        Their numbers with commas between; empty: no confinement.
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
    """Whether a signal ended a child; of some `train.py` says so by 128 + number."""
    asked = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    return status < 0 or status - 128 in asked


def last_line(log: Path) -> str:
    """The last line that a child printed."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"


def parallel_runs(threads: int | None) -> int:
    """How many children of so many threads fit on this machine; at least 1."""
    return max(1, device.available_threads() // threads) if threads else 1
