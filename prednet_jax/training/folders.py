"""A run's directory: what was begun there, whether it may go on, what it ends with.

A directory is looked at before it is touched: `begun` and `check_same` only read, and
refuse; `enter` is the first to write.
"""

import dataclasses
import json
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from prednet_jax import process, records
from prednet_jax.errors import UserError
from prednet_jax.training import checkpoints, examples
from prednet_jax.training.truncated import TrainState

#: What makes a directory that of a run.
PARTS = (
    records.MANIFEST,
    records.METRICS,
    records.VALIDATION,
    records.WEIGHTS,
    examples.FILE,
    checkpoints.FOLDER,
)
#: Weights that a run started from, where they came from a file or another run.
INITIAL = "initial_weights.npz"
# Of the machine: where one differs, the last bits may.
_MACHINE = ("versions", "device", "environment", "convolutions")


@dataclasses.dataclass(frozen=True)
class Begun:
    """What a directory already holds of a run.

    Attributes:
        manifest: of the run; empty where none was begun.
        updates: that it was begun for; 0 where none was.
        finished: whether it has made them all and written its weights.
    """

    manifest: Mapping[str, Any]
    updates: int
    finished: bool


NOTHING = Begun({}, 0, False)


def begun(folder: Path, *, updates: int, resume: bool, overwrite: bool) -> Begun:
    """What was begun in a directory, if a run of so many updates may be written there.

    Args:
        folder: the run's directory, which need not exist.
        updates: that the run is to make.
        resume: whether to go on with what was begun.
        overwrite: whether to begin anew whatever is there.

    Raises:
        UserError: there is a run, and neither was asked for; or it cannot go on.
    """
    found = [name for name in PARTS if (folder / name).exists()]
    if overwrite or not found:
        return NOTHING
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


def check_same(folder: Path, old: Begun, new: Mapping[str, Any], order: str) -> None:
    """Refuses to go on with a run that began otherwise.

    Args:
        folder: the run's directory.
        old: what was begun there.
        new: the manifest of the run that is asked for.
        order: SHA-256 of its data order in the updates that the old run was begun for.

    Raises:
        UserError: a fingerprint or the noise differs.
    """
    wanted = {
        "model": new["model"],
        "network": json.loads(json.dumps(new["network"])),
        "seed": new["seed"],
        # Manifests of before had no noise, and no draw.
        "noise": new["noise"],
        "noise_draw": new["noise_draw"],
        "initial_params_sha256": new["initial_params_sha256"],
        "data_order_sha256": order,
    }
    for field, value in wanted.items():
        known = old.manifest.get(field, value if field.startswith("noise") else None)
        if known != value:
            raise UserError(
                f"--resume: {field} {value}; expected the {known} of {folder}"
            )
    for field in _MACHINE:
        now = json.loads(json.dumps(new.get(field)))
        before = old.manifest.get(field)
        if before != now:
            print(
                f"{folder}: begun with {field} {before}, going on with {now}: the last "
                "bits may differ",
                file=sys.stderr,
            )


def enter(
    runs: Mapping[int, tuple[Path, Begun, Mapping[str, Any], TrainState]],
    *,
    overwrite: bool,
    written: Collection[int] | None = None,
) -> tuple[int, dict[int, TrainState], dict[int, dict[str, Any]]]:
    """Begins runs or goes on with them, all at the same update.

    The first function that writes; the directories are held (`locks.hold`).

    Args:
        runs: by any number: directory, what was begun, the new manifest, and the state
            before the first update. Every process has all of them.
        overwrite: whether what is there is removed.
        written: those that this process writes; None: all.

    Returns:
        The update from which to go on, the states there, the manifests as written.

    Raises:
        UserError: processes find different checkpoints.
    """
    folders = {n: run[0] for n, run in runs.items()}
    for n in runs if written is None else written:
        if overwrite:
            clear(folders[n])
        sweep(folders[n])
    done, states = 0, {n: run[3] for n, run in runs.items()}
    if all(run[1].manifest for run in runs.values()):
        lines = min(records.count_metrics(folder) for folder in folders.values())
        done, states = checkpoints.newest(folders, states, lines)
    # From here on the directories change, which all processes have read by now.
    process.same("the update to go on from", done)
    manifests = {}
    for n in runs if written is None else written:
        folder, old, new, _ = runs[n]
        manifests[n] = dict(new)
        if old.manifest:
            print(f"{folder}: going on after update {done}")
            manifests[n] = _continued(old.manifest, new, done)
        records.write_json(folder / records.MANIFEST, manifests[n])
    return done, states, manifests


def keep_initial(folder: Path, weights: Mapping | None) -> None:
    """Keeps the given weights, so that a run goes on when their file has moved."""
    if weights is not None and not (folder / INITIAL).exists():
        records.write_tree(folder / INITIAL, weights)


def clear(folder: Path) -> None:
    """Removes a run from its directory, and nothing else."""
    checkpoints.clear(folder)
    for name in (*PARTS, INITIAL, records.LOSS_PICTURE):
        if name != checkpoints.FOLDER:
            (folder / name).unlink(missing_ok=True)
    for events in folder.glob("events.out.tfevents.*"):
        events.unlink()


def sweep(folder: Path) -> None:
    """Removes what an interrupted write left behind."""
    checkpoints.sweep(folder)
    for left in folder.glob(".*.tmp"):
        left.unlink(missing_ok=True)


def _continued(old: Mapping, new: Mapping, done: int) -> dict[str, Any]:
    """The manifest of a run that goes on: as it was begun, and where it goes on."""
    changing = ("updates", "flags", "data_order_sha256")
    kept = {k: v for k, v in old.items() if k not in _ENDS}
    here = {
        k: new.get(k) for k in ("git_commit", *_MACHINE) if new.get(k) != old.get(k)
    }
    resumed = [*old.get("resumed", ()), {"after_update": done, **here}]
    return kept | {k: new[k] for k in changing} | {"resumed": resumed}


# What is written at the end of a run.
_ENDS = ("final_params_sha256", "failure", "warnings")
