"""A lock that lets one process at a time work in a directory.

The lock is `flock` on the file `.lock` in the directory. The kernel releases it when
the process ends, in whatever way, so a lock never has to be removed by hand. The file
holds the id of the process and is removed when the lock is released.
"""

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from prednet_jax.errors import UserError

FILE = ".lock"
# `check` holds the lock for a moment; `hold` tries again instead of refusing for that.
_TRIES, _PAUSE_SECONDS = 5, 0.05


class LockedError(UserError):
    """Another process works in the directory."""


def check(folder: str | os.PathLike) -> None:
    """Refuses a directory in which another process works. Creates no file.

    Raises:
        LockedError: another process holds it.
    """
    try:
        file = os.open(Path(folder) / FILE, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        if not _locked(file, fcntl.LOCK_SH):
            raise LockedError(_refusal(folder, file))
    finally:
        os.close(file)


@contextlib.contextmanager
def hold(*folders: str | os.PathLike) -> Iterator[None]:
    """Locks directories while the block runs; missing ones are created.

    Args:
        folders: the directories; either all are locked or none.

    Raises:
        LockedError: another process holds one of them. Directories created by this call
            are removed again.
    """
    made: list[Path] = []
    with contextlib.ExitStack() as held:
        try:
            for folder in map(Path, folders):
                made += _make(folder)
                held.callback(_release, *_acquire(folder))
        except LockedError:
            held.close()
            for folder in reversed(made):
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise
        yield


def _make(folder: Path) -> list[Path]:
    """Creates a directory and its parents; returns the new ones, outermost first."""
    missing: Iterable[Path] = (p for p in (folder, *folder.parents) if not p.exists())
    missing = list(missing)[::-1]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _acquire(folder: Path) -> tuple[Path, int]:
    path = folder / FILE
    for tried in range(1, _TRIES + 1):
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if _locked(file, fcntl.LOCK_EX):
            if _is(path, file):
                os.ftruncate(file, 0)
                os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
                return path, file
        elif tried == _TRIES:
            message = _refusal(folder, file)
            os.close(file)
            raise LockedError(message)
        os.close(file)
        time.sleep(_PAUSE_SECONDS)
    raise LockedError(f"{folder}: another process begins and ends there; expected one")


def _release(path: Path, file: int) -> None:
    # Removed while the lock is still held: a process that has opened the file meanwhile
    # then sees, once it has the lock, that the file is gone.
    if _is(path, file):
        path.unlink(missing_ok=True)
    os.close(file)


def _is(path: Path, file: int) -> bool:
    """Whether the path still names this open file (a holder removes it at its end)."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _locked(file: int, kind: int) -> bool:
    """Tries to lock an open file; False if another process has it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        print(f"no lock: {error.strerror}; nothing guards the directory",
              file=sys.stderr)  # fmt: skip
    return True


def _refusal(folder: str | os.PathLike, file: int) -> str:
    holder = os.pread(file, 20, 0).decode(errors="replace").strip()
    process = f"process {holder}" if holder.isdigit() else "another process"
    return f"{folder}: in use by {process}; expected another directory, or its end"
