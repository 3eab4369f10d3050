"""Runs the jobs, one process after the other, each with an environment of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from prednet_jax.comparison.design import Job
from prednet_jax.errors import UserError

# What a comparison writes into its directory.
_WRITTEN = ("runs", "verdict.json", "report.html")


class ProcessError(RuntimeError):
    """A process of the comparison ended with an error."""


def execute(job: Job) -> None:
    """Runs one job to its end; what it prints goes to `log.txt` in its directory.

    Args:
        job: the process to run.

    Raises:
        UserError: it refused what it was given (status 2).
        ProcessError: it ended with another status than 0. The message names the arm,
            its last line, and the command.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    log = job.folder / "log.txt"
    with open(log, "w") as file:
        status = python(
            [*job.command, "--noprogress"],
            dict(job.arm.environment),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    if status:
        last = log.read_text().strip().splitlines()[-1:] or ["no output"]
        raise (UserError if status == 2 else ProcessError)(
            f"arm {job.arm.name} of {job.model} ended with status {status} "
            f"({last[0]}); see {log}; it was: {job.shown}"
        )


def python(
    command: Sequence[str], environment: Mapping[str, str], **output: object
) -> int:
    """Runs Python with variables beside those of this process; the exit status."""
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | dict(environment),
        check=False,
        **output,  # type: ignore[call-overload]
    ).returncode


def clear(root: Path) -> None:
    """Removes what an earlier comparison left in its directory."""
    for path in (root / name for name in _WRITTEN):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()
