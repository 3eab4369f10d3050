"""A lock that lets one process at a time work in a directory.

The lock is `flock` on the file `.lock` in the directory, which holds the id of the
process. The kernel releases it when the process ends, in whatever way.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import filelock

from prednet_jax.errors import UserError
from prednet_jax.messages import say

FILE = ".lock"
# `check` holds the lock for a moment; others try again instead of refusing for that.
_PATIENCE, _PAUSE = 0.25, 0.05
# What `flock` answers on file systems that have no locks, such as some network ones.
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class LockedError(UserError):
    """Another process works in the directory."""


def check(folder: str | os.PathLike) -> None:
    """Refuses a directory in which another process works. Leaves no file."""
    # Of a directory that cannot be written something else will complain.
    if os.access(Path(folder) / FILE, os.W_OK):
        with _locked(Path(folder), _PATIENCE):
            pass


@contextlib.contextmanager
def hold(*folders: str | os.PathLike, wait: bool = False) -> Iterator[None]:
    """Locks directories, all or none, while the block runs; missing ones are created.

    Those that this call created and that are still empty are removed at its end. With
    `wait` it waits for other processes instead of refusing.
    """
    with contextlib.ExitStack() as held:
        for folder in map(Path, folders):
            for missing in reversed([folder, *folder.parents]):
                if not missing.exists():
                    missing.mkdir(exist_ok=True)
                    held.callback(_remove_empty, missing)
            held.enter_context(_locked(folder, -1 if wait else _PATIENCE))
        yield


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


@contextlib.contextmanager
def _locked(folder: Path, seconds: float) -> Iterator[None]:
    path = folder / FILE
    lock = filelock.FileLock(path, fallback_to_soft=False, poll_interval=_PAUSE)
    try:
        lock.acquire(timeout=seconds)
    except filelock.Timeout:
        holder = ""
        with contextlib.suppress(OSError):
            holder = path.read_text(errors="replace").strip()
        holder = f"process {holder}" if holder.isdigit() else "another process"
        raise LockedError(
            f"{folder}: in use by {holder}; expected another directory, or its end"
        ) from None
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _WITHOUT_LOCKS:
            raise
        say(f"no lock ({error}); nothing guards {folder}")
        yield
        return
    try:
        path.write_text(f"{os.getpid()}\n")
        yield
    finally:
        # Removed while the lock is held: who has opened the file meanwhile sees, once
        # it has the lock, that the file has no name any more.
        path.unlink(missing_ok=True)
        lock.release()
