"""Writes files atomically, also when threads or processes write the same one."""

import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO

from prednet_jax.noise.errors import NoiseError, expect


def open_binary(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file for reading; a pipe without a writer reads as an empty file."""
    waiting = getattr(os, "O_NONBLOCK", 0)  # Not on Windows.
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | waiting))


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a temporary file in the same directory and moves it to its final name.

    The temporary name is unique to this call. So a reader sees either the old file or
    the complete new file.

    Raises:
        NoiseError: the file cannot be written; the temporary file is removed.
    """
    check_path(path)
    folder = os.path.dirname(os.path.abspath(path))
    temporary = os.path.join(folder, f".{os.getpid()}.{os.urandom(8).hex()}.tmp")
    try:
        # A move would put a file in place of /dev/null.
        if os.path.exists(path) and not os.path.isfile(path):
            raise ValueError("it is a directory, a pipe or a device")
        with open(temporary, "xb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError, ValueError):
            os.remove(temporary)
        if not isinstance(error, OSError | ValueError):  # ValueError: a NUL byte.
            raise
        reason = getattr(error, "strerror", None) or error
        raise NoiseError(
            f"{printable(path)}: {reason}: expected a file that can be written"
        ) from None


@contextlib.contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Lets one thread or process at a time into the block, for each directory.

    The lock is one of the directory itself and leaves no file. A directory that cannot
    be opened, and a system without such locks, are not locked.
    """
    with contextlib.ExitStack() as opened:
        with contextlib.suppress(ImportError, OSError):
            import fcntl  # Not on Windows.

            descriptor = os.open(folder, os.O_RDONLY)
            opened.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def check_path(path: object) -> None:
    """Refuses what is no path; a number would be an open file, which is then closed."""
    expect(isinstance(path, str | os.PathLike), "path", path, "the path of a file")


def printable(path: str | os.PathLike[str]) -> str:
    """Returns a path as a message shows it: in quotes if it has control characters."""
    name = os.fspath(path)
    return name if name.isprintable() else repr(name)
