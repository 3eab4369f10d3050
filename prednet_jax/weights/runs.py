"""Weights of a run: what it ended with, or its newest checkpoint."""

from pathlib import Path

import jax

from prednet_jax import errors, records, tasks
from prednet_jax.errors import UserError
from prednet_jax.tasks import Task
from prednet_jax.training import checkpoints


def load_run(folder: Path) -> tuple[Task, dict]:
    """Network and weights of a run; of an unfinished one, of its newest checkpoint.

    Which update that is of is said on stderr. Raises a UserError if the directory is no
    run, has no weights yet, or they are damaged.
    """
    manifest = records.read_json(folder / records.MANIFEST)
    try:
        task = tasks.recorded(manifest["model"], manifest["network"])
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{folder / records.MANIFEST}: not that of a run ({error!r})"
        ) from None
    digest = manifest.get("final_params_sha256")
    if digest is None:
        return task, _newest(folder, task)
    path = folder / records.WEIGHTS
    params = records.read_tree(path)
    if records.fingerprint(params) != digest:
        raise UserError(
            f"{path}: damaged; its SHA-256 is not the one in {records.MANIFEST}"
        )
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    if task.weights not in (0, count):
        raise UserError(
            f"{path}: {count} weights; expected {task.weights}, as the network in "
            f"{records.MANIFEST} has"
        )
    return task, params


def _newest(folder: Path, task: Task) -> dict:
    for update in reversed(checkpoints.updates(folder)):
        like = jax.eval_shape(lambda: task.init_params(jax.random.key(0)))
        try:
            params = checkpoints.restore_params(folder, update, like)
        except checkpoints.DamagedError as error:
            errors.say(f"{error}; not used")
            continue
        errors.say(f"{folder}: not finished; its weights after update {update}")
        return params
    raise UserError(
        f"{folder}: the run is not finished and has no checkpoint; --resume goes on "
        "with it"
    )
