"""Takes runs at an earlier update if the time did not suffice for all updates.

A run's first updates do not depend on how many follow, so a run that is cut after an
update of which it has a checkpoint is the run that ends there.
"""

import dataclasses
import shutil
from collections.abc import Sequence

from prednet_jax import data, records, tasks
from prednet_jax.files import FileError
from prednet_jax.runs import budget, store
from prednet_jax.runs.jobs import FILES, Job, facts, write_receipt
from prednet_jax.training import checkpoints, loop


def reached(job: Job, seed: int) -> int:
    """Returns the last update of a run whose weights are on the disk, or 0."""
    folder = job.run_folder(seed)
    if store.state(folder, facts(job, seed), FILES).kept:
        return job.updates
    return max((u for u in checkpoints.updates(folder) if u <= job.updates), default=0)


def largest_size(needed: Sequence[Job], lengths: Sequence[int]) -> budget.Size | None:
    """Returns the best size that all needed jobs have reached, or None.

    `lengths` are the numbers of updates that a size may have.
    """
    sizes = []
    for updates in lengths:
        seeds = 0
        for seed in needed[0].seeds:
            if any(reached(job, seed) < updates for job in needed):
                break
            seeds += 1
        if seeds:
            sizes.append(budget.Size(seeds=seeds, updates=updates))
    return max(sizes, key=lambda size: (size.chance, size.updates), default=None)


def shorten(job: Job, seed: int, updates: int) -> None:
    """Cuts a run after an update, and writes its receipt as a run of that length.

    Raises a FileError if the run has no checkpoint of that update.
    """
    folder = job.run_folder(seed)
    kept = store.state(folder, facts(job, seed), FILES).kept
    if kept and job.updates == updates:
        return
    lines = records.metrics_lines(folder / records.METRICS)
    if len(lines) < updates:
        raise FileError(f"{folder}: {len(lines)} updates; expected at least {updates}")
    like = loop.initial_params(job.task, seed)
    params = checkpoints.restore(folder, updates, like)
    own = job.settings.data
    source = data.open_source(
        own.name(job.task), **tasks.frame_size(job.task), seed=seed
    )
    schedule = loop.frame_schedule(job.task, source, window=own.window, updates=updates)
    manifest = records.read_manifest(folder)
    origin = {"shortened_from": job.updates} if job.updates > updates else {}
    manifest = dataclasses.replace(
        manifest,
        updates=updates,
        data_order_sha256=data.order_fingerprint(source, schedule),
        final_params_sha256=records.fingerprint(params),
        other={**manifest.other, **origin},
    )
    records.write_bytes(folder / records.METRICS, "".join(lines[:updates]).encode())
    records.write_tree(folder / records.WEIGHTS, params)
    records.write_json(folder / records.MANIFEST, manifest.to_json())
    (folder / records.EXAMPLES).unlink(missing_ok=True)
    for later in checkpoints.updates(folder):
        if later > updates:
            shutil.rmtree(folder / checkpoints.FOLDER / str(later))
    write_receipt(job.replaced(updates=updates).of(seed), seed)
