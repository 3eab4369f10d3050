"""Train states on disk, through orbax.

`directory/checkpoints/{update}` holds the whole TrainState after that update: weights,
optimiser moments, carried state, number of updates. Nothing else is needed to go on,
since data order and noise are functions of the seed and the update's number.
"""

import os
import shutil
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from prednet_jax.records import RecordError
from prednet_jax.training.truncated import TrainState

FOLDER = "checkpoints"


def save(directory: str | os.PathLike, state: TrainState) -> Path:
    """Saves the state under its number of updates; whole or not at all.

    Args:
        directory: the run's directory.
        state: the state to save.

    Returns:
        Where it was saved.
    """
    path = Path(directory).resolve() / FOLDER / str(int(state.update))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, _tree(jax.tree.map(np.asarray, state)), force=True)
    return path


def updates(directory: str | os.PathLike) -> list[int]:
    """Numbers of the saved updates, in order."""
    folder = Path(directory) / FOLDER
    if not folder.is_dir():
        return []
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())


def restore(directory: str | os.PathLike, update: int, like: TrainState) -> TrainState:
    """Reads a state back.

    Args:
        directory: the run's directory.
        update: number of the saved update.
        like: a state of the same structure, for shapes and types.

    Raises:
        RecordError: there is no such checkpoint, or it is of another network.
    """
    path = Path(directory).resolve() / FOLDER / str(update)
    if update not in updates(directory):
        raise RecordError(
            f"{path}: no such checkpoint; expected one of {updates(directory)}"
        )
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), _tree(like))
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            tree = checkpointer.restore(path, shapes)
    except (ValueError, KeyError) as error:
        first = str(error).strip().splitlines()[0]
        raise RecordError(f"{path}: not a state of this network ({first})") from None
    leaves = jax.tree.leaves(tree)
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def clear(directory: str | os.PathLike) -> None:
    """Removes the checkpoints of an earlier run in the same directory."""
    shutil.rmtree(Path(directory) / FOLDER, ignore_errors=True)


def drop_after(directory: str | os.PathLike, update: int) -> None:
    """Removes the checkpoints of later updates than this one."""
    for later in updates(directory):
        if later > update:
            shutil.rmtree(Path(directory) / FOLDER / str(later))


def _tree(state: TrainState) -> dict:
    """The state as a flat dictionary, whose names orbax keeps."""
    leaves = jax.tree.leaves(state)
    return {f"{i:04d}": leaf for i, leaf in enumerate(leaves)}
