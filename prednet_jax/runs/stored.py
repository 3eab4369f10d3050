"""The runs of jobs in the store: which are there, which are to be made.

A run that has ended gets a receipt (`store.seal`). A run with the right receipt is
never made again, and runs are read through `verified` only, which refuses one that is
truncated, altered or of another job.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from prednet_jax import records
from prednet_jax.records import RecordError
from prednet_jax.runs import store
from prednet_jax.runs.jobs import Job, facts

EXAMPLES = "examples.npz"
#: The files whose SHA-256 a receipt holds, where they exist.
FILES = (records.MANIFEST, records.METRICS, records.WEIGHTS, EXAMPLES)
# Fields of the manifest of a run that has ended. One that diverged, whose last loss or
# gradient is not finite, has no final weights.
END, FAILURE = "final_params_sha256", "failure"


def seal_ended(job: Job) -> None:
    """Writes the receipts of runs that have ended; their process may still run.

    Raises:
        RecordError: the records of one are incomplete.
    """
    for seed in job.seeds:
        folder = job.run_folder(seed)
        if not (folder / store.RECEIPT).exists() and _has_ended(folder):
            seal(job, seed)


def seal(job: Job, seed: int) -> None:
    """Writes the receipt of a run that has ended.

    Raises:
        RecordError: its records are incomplete.
    """
    folder = job.run_folder(seed)
    _check_whole(job, folder)
    store.seal(folder, facts(job, seed), FILES)


def kept(jobs: Iterable[Job]) -> tuple[list[Job], Counter[str]]:
    """Which runs are still to be made, and why.

    Args:
        jobs: all jobs.

    Returns:
        The jobs, with the seeds that are still to be made; and the number of runs by
        reason: `kept`, or why the run is made (again).
    """
    missing, reasons = [], Counter[str]()
    for job in jobs:
        states = {
            seed: store.state(job.run_folder(seed), facts(job, seed), FILES)
            for seed in job.seeds
        }
        reasons.update(states.values())
        seeds = [seed for seed, state in states.items() if state != "kept"]
        if seeds:
            missing.append(job.of(*seeds))
    return missing, reasons


def said(reasons: Counter[str]) -> str | None:
    """The reasons of `kept` in one line; None: nothing was on disk."""
    total, again = sum(reasons.values()), Counter(reasons)
    whole, new = again.pop("kept", 0), again.pop("new", 0)
    if new == total:
        return None
    causes = [f"{count} {reason}" for reason, count in sorted(again.items())]
    return f"{whole} of {total} runs kept" + (
        f"; made again: {', '.join(causes)}" if causes else ""
    )


def verified(job: Job, seed: int) -> records.Run:
    """Reads a run that is whole and belongs to the job.

    Raises:
        RecordError: it is not; the message names the file and what is wrong.
    """
    folder = job.run_folder(seed)
    store.verify(folder, facts(job, seed), FILES)
    return records.read_run(folder)


def any_diverged(job: Job) -> bool:
    """Whether a run of the job diverged."""
    folders = (job.run_folder(seed) for seed in job.seeds)
    ended = [folder for folder in folders if (folder / store.RECEIPT).exists()]
    return any(FAILURE in records.read_json(f / records.MANIFEST) for f in ended)


def _has_ended(folder: Path) -> bool:
    with contextlib.suppress(RecordError, TypeError):
        manifest = records.read_json(folder / records.MANIFEST)
        return END in manifest or FAILURE in manifest
    return False


def _check_whole(job: Job, folder: Path) -> None:
    """Refuses a run without a line per update, or without the weights it ended with.

    A run that diverged ends with the first update that is not finite, or with the last.

    Raises:
        RecordError: a file is broken, or the run is shorter than it has to be.
    """
    run = records.read_run(folder)
    updates = run.metrics.get("update", np.zeros(0))
    count = len(updates)
    if (
        not np.array_equal(updates, np.arange(1, count + 1))
        or "loss" not in run.metrics
    ):
        raise RecordError(
            f"{folder / records.METRICS}: expected updates 1, 2, ... with a loss each"
        )
    lost = any(np.isnan(column[-1]) for column in run.metrics.values())
    if count != job.updates and not (
        FAILURE in run.manifest and lost and count < job.updates
    ):
        raise RecordError(
            f"{folder / records.METRICS}: {count} updates; expected {job.updates}"
        )
    if FAILURE not in run.manifest:
        path = folder / records.WEIGHTS
        digest = records.fingerprint(records.read_tree(path))
        if digest != run.manifest[END]:
            raise RecordError(
                f"{path}: weights {digest}; expected {END} {run.manifest[END]}"
            )
