"""Train states on disk, through orbax.

`directory/checkpoints/{update}/` holds the whole TrainState after that update. Nothing
else is needed to continue, since data order and noise are functions of the seed and the
update's number. orbax does not notice most flipped bits, so files whose digest differs
from `digest.json` are never parsed (docs/runs.md).
"""

import contextlib
import errno
import hashlib
import itertools
import logging
import os
import re
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from prednet_jax import files, records
from prednet_jax.errors import RunError, log_line
from prednet_jax.files import FileError
from prednet_jax.training.truncated import TrainState

UNLIKE = "what was read back is not what was saved; the disk may be faulty: use another"

FOLDER, DIGEST = "checkpoints", "digest.json"
# More than the files that orbax adds to the arrays take.
_OWN_BYTES = 2**20
# orbax numbers what it saves for the whole process: saves of two threads mix or wait.
_SAVING = threading.Lock()


class DamagedError(FileError):
    """A checkpoint that differs from the saved state."""


def save(
    directory: str | os.PathLike,
    state: TrainState,
    *,
    loss: float | None = None,
    passing: bool = False,
) -> Path:
    """Saves the state under its number of updates, whole or not at all.

    `loss` is the mean since the checkpoint before, by which `prune` finds the best
    checkpoint. A `passing` checkpoint is removed when the next one exists.
    """
    # A flat dictionary, whose names orbax keeps.
    leaves = jax.tree.leaves(state)
    tree = {f"{i:04d}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    folder = Path(directory).resolve() / FOLDER
    # A directory that was removed or moved is not made again, without its records.
    folder.mkdir(exist_ok=True)
    path = folder / str(int(state.update))
    temporary = files.aside(path)
    try:
        write_arrays(temporary, tree)
        write_digest(temporary, loss=loss, passing=passing)
        for written in (*temporary.rglob("*"), temporary):
            files.sync(written)
        if path.exists():  # damaged, or of the same update before an interruption
            _remove(path)
        os.replace(temporary, path)
    except BaseException:
        # orbax adds an ending of its own.
        for leftover in folder.glob(f"{temporary.name}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        raise
    files.sync(folder)
    return path


def write_arrays(path: Path, tree: Any) -> None:
    """Writes nested dictionaries of arrays into a new directory, and reads them back.

    Raises:
        OSError: the disk is full, or the directory cannot be made.
        RunError: the file that was read back differs from the state that was written.
    """
    size = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(tree))
    # The errors are raised before orbax meets them: its threads would print hundreds of
    # lines, and wait for each other at the end of the process.
    path.mkdir()
    path.rmdir()
    if shutil.disk_usage(path.parent).free < size + _OWN_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    with (
        _SAVING,
        files.plain_path(path.parent) as parent,
        _checkpointer() as checkpointer,
    ):
        logger = logging.getLogger("absl")  # Has what orbax raises a second time.
        logger.disabled = True
        try:
            checkpointer.save(parent / path.name, tree)
            checkpointer.wait_until_finished()
        except Exception as error:
            # Not an OSError where the file is written by tensorstore.
            code = re.search(r"os_error_code='(\d+)'", str(error))
            if isinstance(error, OSError) or code is None:
                raise
            number = int(code[1])
            raise OSError(number, os.strerror(number), str(path)) from error
        finally:
            logger.disabled = False
        stored = checkpointer.restore(parent / path.name)
    if records.fingerprint(stored) != records.fingerprint(tree):
        raise RunError(f"{path}: {UNLIKE}")


def read_arrays(path: Path) -> Any:
    """Reads a directory that `write_arrays` wrote; a ValueError says what is broken."""
    with files.plain_path(path.parent) as parent, _checkpointer() as checkpointer:
        try:
            return checkpointer.restore(parent / path.name)
        except MemoryError:
            raise
        except Exception as error:
            # orbax raises bare exceptions too, caused by what tensorstore found.
            raise ValueError(files.reason(error.__cause__ or error)) from error


def updates(directory: str | os.PathLike) -> list[int]:
    """Returns the numbers of the saved updates, in order."""
    names: list[str] = []
    # A glob takes a directory that may not be read for an empty one.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = os.listdir(Path(directory) / FOLDER)
    # int reads digits of other scripts and leading zeros too.
    return sorted(int(name) for name in names if re.fullmatch("0|[1-9][0-9]*", name))


def restore(directory: str | os.PathLike, update: int, like: Any) -> Any:
    """Reads a state back, of the structure, shapes and types of `like`.

    If `like` is a tree of parameters, only these are read; their types and the
    optimiser may differ.
    """
    path = Path(directory).resolve() / FOLDER / str(update)
    if update not in updates(directory):
        raise FileError(
            f"{path}: no such checkpoint; expected one of {updates(directory)}"
        )
    # What may not be read is not damaged: a run would begin anew, and lose its records.
    for part in (path, *path.rglob("*")):
        if part.exists() and not os.access(part, os.R_OK):
            raise FileError(f"{part}: may not be read; expected read permission")
    if not is_whole(path):
        raise DamagedError(
            f"{path}: damaged; its files are not those that were saved: "
            "remove it, and an earlier checkpoint is used"
        )
    problem = f"{path}: not a state of this network"
    accepted = "; expected the checkpoint of a run of the same network"
    with files.broken_as(problem, accepted, FileError):
        tree = read_arrays(path)
    leaves = [np.asarray(tree[name]) for name in sorted(tree)]
    expected, full = jax.tree.leaves(like), isinstance(like, TrainState)
    if not full:  # The parameters are the first field of a state.
        leaves = leaves[: len(expected)]
    described = (
        [(leaf.shape, str(leaf.dtype) if full else "") for leaf in each]
        for each in (leaves, expected)
    )
    for stored, wanted in itertools.zip_longest(*described):
        if stored != wanted:
            raise FileError(
                f"{path}: not a state of this network (an array is {stored}, expected "
                f"{wanted})"
            )
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def run_of(path: Path) -> Path | None:
    """Returns the directory of the run whose checkpoint this is, or None."""
    numbered = path.parent.name == FOLDER and path.name.isdecimal()
    # A run of its own may be in such a place.
    own = numbered and (path / records.MANIFEST).exists()
    return path.parents[1] if numbered and not own else None


def newest(
    folders: Sequence[Path], like: list[Any], at_most: int
) -> tuple[int, list[Any]]:
    """Returns the last update, up to `at_most`, of which every run has a checkpoint.

    A damaged checkpoint is named on stderr and left. Returns the states too, structured
    as `like`; 0 and `like` itself where there is no checkpoint.
    """
    saved = set.intersection(*(set(updates(folder)) for folder in folders))
    if later := sorted(u for u in saved if u > at_most):
        log_line(
            f"{folders[0] / FOLDER / str(later[-1])}: {records.METRICS} has lines of "
            f"{at_most} updates only; not used"
        )
    for update in sorted((u for u in saved if u <= at_most), reverse=True):
        try:
            pairs = zip(folders, like, strict=True)
            return update, [restore(folder, update, state) for folder, state in pairs]
        except DamagedError as error:
            log_line(f"{error}; not used")
    return 0, like


def prune(directory: str | os.PathLike, update: int, keep: int, best: int = 0) -> None:
    """Removes all checkpoints but the last and the best by loss, and passing ones.

    Checkpoints later than the current update stay and do not count: a run that was
    continued has passed over them. With `keep` 0 all stay.
    """
    folder = Path(directory) / FOLDER

    def loss(path: Path) -> float:
        value = _digest(path).get("loss")
        return value if isinstance(value, float) else float("inf")

    saved = [folder / str(u) for u in updates(directory) if u <= update]
    passed = [path for path in saved[:-1] if _digest(path).get("passing")]
    older = [path for path in saved if path not in passed][:-keep] if keep else []
    for path in (*passed, *sorted(older, key=loss)[best:]):
        _remove(path)


def _remove(path: Path) -> None:
    """Removes a checkpoint: first hides it from readers, then deletes its files."""
    aside = files.aside(path)
    os.replace(path, aside)
    shutil.rmtree(aside)


def remove_leftovers(directory: str | os.PathLike, *, everything: bool = False) -> None:
    """Removes the leftovers of an interruption, or all checkpoints."""
    folder = Path(directory) / FOLDER
    for leftover in [folder] if everything else folder.glob(".*.tmp*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _checkpointer() -> ocp.StandardCheckpointer:
    """Returns a checkpointer that waits for no other process."""
    number = jax.process_index()
    own_process = ocp.options.MultiprocessingOptions(
        primary_host=number,
        active_processes={number},
        barrier_sync_key_prefix=f"process_{number}",
    )
    return ocp.StandardCheckpointer(multiprocessing_options=own_process)


def _names(folder: Path) -> list[str]:
    """Returns the paths, within a directory, of all files but the digest, in order."""
    paths = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != DIGEST)
    return [str(path.relative_to(folder)) for path in paths]


def _files_digest(folder: Path, names: Sequence[str]) -> str:
    """Returns the SHA-256 of the names and contents of files of a directory."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name} {files.digest(folder / name)}\n".encode())
    return digest.hexdigest()


def write_digest(folder: Path, **more: object) -> None:
    """Writes the digest of the files of a directory, by which `is_whole` knows them."""
    names = _names(folder)
    digest = {"files": names, "files_sha256": _files_digest(folder, names), **more}
    records.write_json(folder / DIGEST, digest)


def is_whole(folder: Path) -> bool:
    """Returns whether a directory still has the files of its digest as they were.

    Files beside them, such as those of a file manager, do not count. A digest of an
    earlier version has no names, so there all files count.
    """
    digest = _digest(folder)
    names = digest.get("files") or _names(folder)
    with contextlib.suppress(FileError, TypeError):  # A file is gone; no list of names.
        return digest.get("files_sha256") == _files_digest(folder, names)  # type: ignore[arg-type]
    return False


def _digest(path: Path) -> dict[str, object]:
    """Returns the content of `digest.json`; {} if it is missing or damaged."""
    try:
        content = records.read_json(path / DIGEST)
    except FileError:
        return {}
    return content if isinstance(content, dict) else {}
