"""Runs the jobs, one process after the other."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from prednet_jax.study.design import Job


def execute(job: Job) -> None:
    """Runs one job to its end; what it prints goes to `log.txt` in its directory.

    Args:
        job: the process to run.

    Raises:
        ValueError: it ended with another status than 0; the message names the arm,
            its last line, and the command.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    log = job.folder / "log.txt"
    with open(log, "w") as file:
        done = subprocess.run(
            [sys.executable, *job.command, "--noprogress"],
            env=os.environ | dict(job.arm.environment),
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        last = log.read_text().strip().splitlines()[-1:] or ["no output"]
        raise ValueError(
            f"arm {job.arm.name} of {job.model} ended with status {done.returncode} "
            f"({last[0]}); see {log}; it was: {job.shown}"
        )


def remove(path: Path) -> None:
    """Removes a file or directory that an earlier comparison left, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()
