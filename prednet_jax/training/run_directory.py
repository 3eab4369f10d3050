"""The directory of a run: its contents, permitted writes, and continued runs.

A directory is inspected before it is touched: `inspect_run_directory` and `check_same`
only refuse; `start_or_resume` is the first to write.
"""

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prednet_jax import data, errors, files, process, records, tasks
from prednet_jax import noise as noise_lib
from prednet_jax.errors import UserError, log_line
from prednet_jax.files import FileError
from prednet_jax.records import Manifest
from prednet_jax.tasks import Task
from prednet_jax.training import checkpoints
from prednet_jax.training.recipe import PreparedRun, Recipe

#: What makes a directory that of a run.
PARTS = (
    *(records.MANIFEST, records.METRICS, records.VALIDATION, records.WEIGHTS),
    *(records.EXAMPLES, checkpoints.FOLDER),
)
#: Weights that a run started from, where they came from a file or another run.
INITIAL = "initial_weights.npz"
# Fields of a manifest that stay the same when a run continues; fields of the machine,
# whose change may change the last bits; and fields that are replaced.
_SAME = (
    *("model", "network", "seed", "noise", "noise_draw", "initial_params_sha256"),
    "data_order_sha256",
)
_MACHINE = ("versions", "device", "environment", "convolutions")
_CHANGING = ("updates", "flags", "data_order_sha256")


class ExistingRun(NamedTuple):
    """The run that a directory holds.

    Attributes:
        manifest: the run's manifest, or None if there is no run.
        finished: whether it has made all requested updates, and has the weights.
    """

    manifest: Manifest | None = None
    finished: bool = False


def inspect_run_directory(
    folder: Path, *, updates: int, resume: bool, overwrite: bool
) -> ExistingRun:
    """Inspects a directory; it may hold a run only with `resume` or `overwrite`.

    Raises:
        UserError: the directory holds a run without these, or a run that cannot
            continue.
    """
    parts = [name for name in PARTS if (folder / name).exists()]
    if overwrite or not parts:
        return ExistingRun()
    if records.MANIFEST not in parts:
        raise UserError(
            f"{folder}: {parts[0]} without {records.MANIFEST}; expected a whole run, "
            "or none (--overwrite begins anew)"
        )
    try:
        manifest = records.read_manifest(folder)
    except records.ManifestError as error:
        raise UserError(f"{error} (--overwrite begins anew)") from None
    finished = manifest.final_params_sha256 is not None
    if not resume:
        kind = "a finished run" if finished else "a run that is not finished"
        raise UserError(
            f"{folder}: holds {kind}; expected --resume to continue it, --overwrite to "
            "begin anew, or another directory"
        )
    old = manifest.updates
    if updates < old:
        raise UserError(
            f"--resume: updates={updates}: expected at least the {old} of {folder}"
        )
    complete = finished and updates == old
    if complete and not _has_final_weights(folder, manifest):
        complete = not _can_make_weights(folder, old)
        if complete:
            log_line(
                f"{folder}: {records.WEIGHTS} is missing or damaged, and the records "
                "cannot make it again (--overwrite trains anew)"
            )
    return ExistingRun(manifest, complete)


def _has_final_weights(folder: Path, manifest: Manifest) -> bool:
    """Returns whether a run is finished and its weights are those that it wrote."""
    digest = manifest.final_params_sha256
    with contextlib.suppress(FileError):
        return digest == records.fingerprint(
            records.read_tree(folder / records.WEIGHTS)
        )
    return False


def _can_make_weights(folder: Path, updates: int) -> bool:
    """Returns whether the last checkpoint is whole, and the metrics of all updates.

    Otherwise a run would begin anew and lose what is left of its records.
    """
    last = folder / checkpoints.FOLDER / str(updates)
    lines = records.metrics_lines(folder / records.METRICS)
    return checkpoints.is_whole(last) and len(lines) >= updates


def network_of(folder: Path) -> Task:
    """Returns the network of a run; a UserError names a manifest without one."""
    manifest, path = records.read_manifest(folder), folder / records.MANIFEST
    broken = "not the manifest of a run", "; expected what train.py wrote"
    with errors.named(path), files.broken_as(*broken):
        return tasks.recorded(manifest.model, manifest.network)


def check_network(recipe: Recipe, folder: Path) -> None:
    """Refuses a finished run whose manifest does not describe the recipe's network.

    Its weights could not be loaded. The convolution may depend on the machine. A
    network from elsewhere is not imported by the name in a record.
    """
    if recipe.task.name not in tasks.NAMED:
        return
    both = (t.with_convolution("auto") for t in (network_of(folder), recipe.task))
    before, now = ({"model": task.name, **task.network()} for task in both)
    if before != now:
        path = folder / records.MANIFEST
        raise UserError(f"{path}: network {before}; expected {now}, as its flags say")


def check_same(
    recipe: Recipe,
    folder: Path,
    old: ExistingRun,
    new: Manifest,
    source: data.FrameSource,
) -> None:
    """Refuses to continue a run with other settings, or with a length that matters.

    `new` is the manifest of the requested run. A longer run may need other frames or
    learning rates from the start, and then cannot continue a shorter one.
    """
    if old.manifest is None:
        return
    planned = old.manifest.updates
    first = recipe.frame_schedule(source, new.seed, planned)
    order = data.order_fingerprint(source, first)
    wanted = dataclasses.replace(new, data_order_sha256=order).to_json()
    before, now = old.manifest.to_json(), json.loads(json.dumps(wanted))
    if before.get("noise"):  # A text of an older version may leave out defaults.
        spec = noise_lib.parse(before["noise"])
        before["noise"] = noise_lib.format(spec, defaults=True)
    # Another machine or environment may be why initial weights have other bits.
    for field in _MACHINE:
        if before.get(field) != now.get(field):
            log_line(
                f"{folder}: began with {field} {before.get(field)} and continues with "
                f"{now.get(field)}: the last bits may differ"
            )
    for field in _SAME:
        if before.get(field) != now.get(field):
            raise UserError(
                f"--resume: {field} {now.get(field)}; expected the {before.get(field)} "
                f"of {folder}"
            )
    longer = f"--resume: updates={recipe.updates}: expected the {planned} of {folder}"
    entire = recipe.frame_schedule(source, new.seed)
    anew = "so train them anew in another directory"
    if not np.array_equal(first.start, entire.start[:planned]):
        raise UserError(
            f"{longer}; more updates see other frames from the start, {anew}"
        )
    rates = (recipe.rate(total) for total in (planned, recipe.updates))
    steps = np.arange(planned)
    earlier, later = (rate(steps) if callable(rate) else rate for rate in rates)
    if planned != recipe.updates and not np.array_equal(earlier, later):
        cause = "schedule" if recipe.training.learning_rate else recipe.task.name
        raise UserError(
            f"{longer}; the learning rate of {cause} depends on the number of updates, "
            f"{anew}"
        )


@dataclasses.dataclass(kw_only=True)
class PendingRun:
    """A run whose training begins or continues, filled in from top to bottom.

    Attributes:
        seed: the root seed.
        folder: its directory.
        trained_here: whether this process trains a part of it.
        writes: whether this process writes its records.
        existing: run that the directory holds.
        prepared: its data and initial weights, where this process trains it.
        manifest: its manifest, where this process trains it.
        state: the state before the next update; only its shapes where other processes
            train it.
    """

    seed: int
    folder: Path
    trained_here: bool
    writes: bool
    existing: ExistingRun
    prepared: PreparedRun | None = None
    manifest: Manifest | None = None
    state: Any = None


def start_or_resume(runs: Sequence[PendingRun], *, overwrite: bool) -> int:
    """Starts or continues runs, all at the same update; the first function to write.

    Every process passes all runs. Sets their states, and their manifests as written.

    Returns:
        The update to continue from.
    """
    folders = [run.folder for run in runs]
    for run in runs:
        if run.writes:
            checkpoints.remove_leftovers(run.folder, everything=overwrite)
            if overwrite:
                _clear(run.folder)
            remove_leftovers(run.folder)
    done = 0
    if all(run.existing.manifest is not None for run in runs):
        metrics = [folder / records.METRICS for folder in folders]
        lines = min(len(records.metrics_lines(path)) for path in metrics)
        done, states = checkpoints.newest(folders, [run.state for run in runs], lines)
        for run, state in zip(runs, states, strict=True):
            run.state = state
    # From here on the directories change, which all processes have read by now.
    process.assert_same_on_all("the update to go on from", done)
    for run in runs:
        if run.writes and run.manifest is not None:
            if run.existing.manifest is not None:
                print(f"{run.folder}: continues after update {done}")
                run.manifest = _continued(run.existing.manifest, run.manifest, done)
            records.write_json(run.folder / records.MANIFEST, run.manifest.to_json())
    return done


def remove_leftovers(folder: Path) -> None:
    """Removes files that an interrupted write left next to a run's own.

    They have the names of `files.aside`; other files in the directory are the user's.
    """
    for leftover in folder.glob(f".[0-9]*.{'[0-9a-f]' * 16}.tmp"):
        leftover.unlink(missing_ok=True)


def check_all_begun(runs: Sequence[PendingRun]) -> None:
    """Refuses to continue where some runs have checkpoints and another has no run."""
    lost = [run.folder for run in runs if run.existing.manifest is None]
    begun = [run.folder for run in runs if run.folder not in lost]
    kept = [folder for folder in begun if checkpoints.updates(folder)]
    if lost and kept:
        raise UserError(
            f"--resume: {kept[0]} has a run and {lost[0]} has none; expected a run in "
            "all directories, or in none (--overwrite begins anew)"
        )


def _clear(folder: Path) -> None:
    """Removes the files of a run from its directory, and nothing else."""
    for name in (*PARTS, INITIAL, records.LOSS_PICTURE):
        if name != checkpoints.FOLDER:
            (folder / name).unlink(missing_ok=True)
    for events in folder.glob("events.out.tfevents.*"):
        events.unlink()


def _continued(old: Manifest, new: Manifest, done: int) -> Manifest:
    """Returns the manifest of a run that continues: as it began, and where it does."""
    changed = {
        name: getattr(new, name)
        for name in ("git_commit", *_MACHINE)
        if getattr(new, name) != getattr(old, name)
    }
    return dataclasses.replace(
        old,
        **{name: getattr(new, name) for name in _CHANGING},
        resumed=(*old.resumed, {"after_update": done, **changed}),
        final_params_sha256=None,
        failure=None,
    )


def runs_below(workdir: Path) -> list[Path]:
    """Returns the directory if it holds a run, otherwise its seeds' directories."""
    if (workdir / records.MANIFEST).exists():
        return [workdir]
    return [path.parent for path in sorted(workdir.glob(f"seed_*/{records.MANIFEST}"))]
