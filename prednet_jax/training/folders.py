"""A run's directory: what was begun, whether it may go on, what its manifest says.

A directory is looked at before it is touched: `begun` and `check_same` only read, and
refuse; `enter` is the first to write.
"""

import dataclasses
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prednet_jax import data, device, keys, process, provenance, records
from prednet_jax import noise as noise_lib
from prednet_jax.errors import UserError
from prednet_jax.messages import say
from prednet_jax.training import checkpoints
from prednet_jax.training.recipe import Prepared, Recipe
from prednet_jax.training.truncated import TrainState

EXAMPLES = "examples.npz"
#: What makes a directory that of a run.
PARTS = (
    records.MANIFEST,
    records.METRICS,
    records.VALIDATION,
    records.WEIGHTS,
    EXAMPLES,
    checkpoints.FOLDER,
)
#: Weights that a run started from, where they came from a file or another run.
INITIAL = "initial_weights.npz"
# Fields of a manifest: of the machine (where one differs, the last bits may), written
# at the end of a run, and taken anew where a run goes on.
_MACHINE = ("versions", "device", "environment", "convolutions")
_ENDS = ("final_params_sha256", "failure", "warnings")
_CHANGING = ("updates", "flags", "data_order_sha256")


@dataclasses.dataclass(frozen=True)
class Begun:
    """What a directory holds of a run: its manifest, updates and whether it has ended.

    Where none was begun the manifest is empty and `updates` is 0.
    """

    manifest: Mapping[str, Any]
    updates: int
    finished: bool


class Entry(NamedTuple):
    """A run to be written: what its directory holds, its manifest and first state."""

    folder: Path
    begun: Begun
    manifest: Mapping[str, Any]
    state: TrainState


def begun(folder: Path, *, updates: int, resume: bool, overwrite: bool) -> Begun:
    """What was begun in a directory, if a run of so many updates may be written there.

    Raises:
        UserError: there is a run, and neither `resume` nor `overwrite` was asked for;
            or it cannot go on.
    """
    found = [name for name in PARTS if (folder / name).exists()]
    if overwrite or not found:
        return Begun({}, 0, False)
    if records.MANIFEST not in found:
        raise UserError(
            f"{folder}: {found[0]} without {records.MANIFEST}; expected a whole run, "
            "or none (--overwrite begins anew)"
        )
    manifest = records.read_json(folder / records.MANIFEST)
    try:
        old, finished = int(manifest["updates"]), "final_params_sha256" in manifest
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UserError(
            f"{folder / records.MANIFEST}: not that of a run (--overwrite begins anew)"
        ) from None
    if not resume:
        kind = "a finished run" if finished else "a run that is not finished"
        raise UserError(
            f"{folder}: holds {kind}; expected --resume to go on, --overwrite to begin "
            "anew, or another directory"
        )
    if updates < old:
        raise UserError(
            f"--resume: updates={updates}: expected at least the {old} of {folder}"
        )
    return Begun(manifest, old, finished and updates == old)


def manifest(recipe: Recipe, seed: int, found: Prepared, **more: Any) -> dict[str, Any]:
    """What a run's manifest says before it starts."""
    spec = noise_lib.Identity() if recipe.noise is None else recipe.noise
    validation = recipe.validation
    algorithms = recipe.task.algorithms(recipe.dtype)
    return {
        "git_commit": provenance.git_commit(Path(__file__).parent),
        "versions": provenance.versions(),
        "device": device.description(),
        "measured_parallelism": device.measured_parallelism(),
        "flags": dict(recipe.flags),
        "network": recipe.task.network(),
        "environment": provenance.environment(),
        "prng": keys.IMPLEMENTATION,
        **({"convolutions": algorithms} if algorithms else {}),
        "model": recipe.task.name,
        "seed": seed,
        "data": found.source.name,
        **({"sampling": recipe.sampling} if recipe.sampling != "stream" else {}),
        **({"validation": validation.record} if validation else {}),
        "updates": recipe.updates,
        "noise": noise_lib.format(spec, defaults=True),
        "noise_draw": recipe.draw,
        "initial_params_sha256": records.fingerprint(found.weights),
        "data_order_sha256": data.order_fingerprint(found.source, found.schedule),
        **more,
    }


def check_same(
    recipe: Recipe,
    folder: Path,
    old: Begun,
    new: Mapping[str, Any],
    source: data.FrameSource,
) -> None:
    """Refuses to go on with a run that began otherwise, or whose length decides.

    Args:
        recipe: of the run that is asked for.
        folder: the run's directory.
        old: what was begun there.
        new: the manifest of the run that is asked for.
        source: its frames.

    Raises:
        UserError: a fingerprint or the noise differs, or a run of more updates would
            have had other frames or rates from the start.
    """
    if not old.manifest:
        return
    first = recipe.schedule(source, new["seed"], old.updates)
    wanted = {
        "model": new["model"],
        "network": json.loads(json.dumps(new["network"])),
        "seed": new["seed"],
        # Early manifests have no noise, and no draw.
        "noise": new["noise"],
        "noise_draw": new["noise_draw"],
        "initial_params_sha256": new["initial_params_sha256"],
        "data_order_sha256": data.order_fingerprint(source, first),
    }
    for field, value in wanted.items():
        known = old.manifest.get(field, value if field.startswith("noise") else None)
        if known != value:
            raise UserError(
                f"--resume: {field} {value}; expected the {known} of {folder}"
            )
    for field in _MACHINE:
        now, before = json.loads(json.dumps(new.get(field))), old.manifest.get(field)
        if before != now:
            say(
                f"{folder}: begun with {field} {before}, going on with {now}: the last "
                "bits may differ"
            )
    longer = (
        f"--resume: updates={recipe.updates}: expected the {old.updates} of {folder}"
    )
    whole = recipe.schedule(source, new["seed"])
    if not np.array_equal(first.start, whole.start[: old.updates]):
        raise UserError(f"{longer}; more updates see other frames from the start")
    rates = [recipe.rate(total) for total in (old.updates, recipe.updates)]
    steps = np.arange(old.updates)
    before, after = (rate(steps) if callable(rate) else rate for rate in rates)
    if old.updates != recipe.updates and not np.array_equal(before, after):
        of = "rate_schedule" if recipe.learning_rate else recipe.task.name
        raise UserError(
            f"{longer}; the learning rate of {of} depends on the number of updates"
        )


def enter(
    runs: Mapping[int, Entry], *, overwrite: bool, written: Collection[int]
) -> tuple[int, dict[int, TrainState], dict[int, dict[str, Any]]]:
    """Begins runs or goes on with them, all at the same update.

    The first function that writes; the directories are held (`locks.hold`). Every
    process has all runs, by any number, and writes those of `written`.

    Returns:
        The update from which to go on, the states there, the manifests as written.

    Raises:
        UserError: processes find different checkpoints.
    """
    folders = {n: run.folder for n, run in runs.items()}
    for n in written:
        if overwrite:
            clear(folders[n])
        checkpoints.sweep(folders[n])
        for left in folders[n].glob(".*.tmp"):  # of an interrupted write
            left.unlink(missing_ok=True)
    done, states = 0, {n: run.state for n, run in runs.items()}
    if all(run.begun.manifest for run in runs.values()):
        lines = min(records.count_metrics(folder) for folder in folders.values())
        done, states = checkpoints.newest(folders, states, lines)
    # From here on the directories change, which all processes have read by now.
    process.same("the update to go on from", done)
    manifests = {}
    for n in written:
        folder, old, new, _ = runs[n]
        manifests[n] = dict(new)
        if old.manifest:
            print(f"{folder}: going on after update {done}")
            manifests[n] = _continued(old.manifest, new, done)
        records.write_json(folder / records.MANIFEST, manifests[n])
    return done, states, manifests


def clear(folder: Path) -> None:
    """Removes a run from its directory, and nothing else."""
    checkpoints.clear(folder)
    for name in (*PARTS, INITIAL, records.LOSS_PICTURE):
        if name != checkpoints.FOLDER:
            (folder / name).unlink(missing_ok=True)
    for events in folder.glob("events.out.tfevents.*"):
        events.unlink()


def _continued(old: Mapping, new: Mapping, done: int) -> dict[str, Any]:
    """The manifest of a run that goes on: as it was begun, and where it goes on."""
    kept = {k: v for k, v in old.items() if k not in _ENDS}
    here = {
        k: new.get(k) for k in ("git_commit", *_MACHINE) if new.get(k) != old.get(k)
    }
    resumed = [*old.get("resumed", ()), {"after_update": done, **here}]
    return kept | {k: new[k] for k in _CHANGING} | {"resumed": resumed}
