"""Opens files that somebody else may have made, and locks directories.

What is no regular file (a pipe, a device, a socket), and what would fill the memory, is
refused before it is read; the rest is the job of the libraries that read the formats.
"""

import contextlib
import errno
import hashlib
import io
import os
import stat
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Container, Iterator
from pathlib import Path

import filelock
import numpy as np

from prednet_jax.errors import UserError, say

# The most bytes that one file may put into memory. Frames beyond it belong in image
# files, a video or an .npy, which are read piece by piece.
LIMIT = 4 * 2**30

_STARTS = {b"PK\x03\x04": "zip", b"PK\x05\x06": "zip", b"\x93NUMPY": "npy"}
_STARTS |= {b"\x89HDF\r\n\x1a\n": "hdf5"}
# What readers of binary formats raise on broken bytes. A header may also claim an array
# that no memory holds.
BROKEN = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, struct.error, OverflowError, MemoryError),
    *(SyntaxError, tokenize.TokenError),  # NumPy reads its headers as Python's.
)

# The lock of a directory: `flock` on this file, which holds the id of its process. The
# kernel releases it when the process ends, in whatever way.
LOCK = ".lock"
# `check` holds the lock for a moment; others try again instead of refusing for that.
_PATIENCE, _PAUSE = 0.25, 0.05
# What `flock` answers on file systems that have no locks, such as some network ones.
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class FileError(UserError):
    """A file that cannot be opened, or is not what it should be."""


def open_binary(path: str | os.PathLike) -> io.BufferedReader:
    """Opens a regular file for reading; a FileError says why that cannot be."""
    try:
        # A pipe would wait here for who writes into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except ValueError:  # A zero byte in the name.
        raise FileError(f"{os.fsdecode(path)!r}: no such file") from None
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        what = "a directory" if stat.S_ISDIR(mode) else "a pipe, a device or a socket"
        raise FileError(f"{path}: is {what}, not a regular file")
    return os.fdopen(descriptor, "rb")


def read_bytes(path: str | os.PathLike, limit: int = LIMIT) -> bytes:
    """The whole content of a regular file of at most `limit` bytes."""
    with open_binary(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise FileError(f"{path}: {size} bytes, more than {limit}")
        return file.read()


def digest(path: str | os.PathLike) -> str:
    """SHA-256 of a regular file, 64 hexadecimal digits."""
    with open_binary(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_text(path: str | os.PathLike, limit: int = LIMIT) -> str:
    """The whole content of a UTF-8 file; a byte-order mark is left out."""
    try:
        return read_bytes(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: not UTF-8 at byte {error.start}") from None


def kind(path: str | os.PathLike) -> str | None:
    """`zip`, `npy` or `hdf5` by a file's first bytes; None: none of them."""
    with open_binary(path) as file:
        head = file.read(8)
    return next((_STARTS[start] for start in _STARTS if head.startswith(start)), None)


@contextlib.contextmanager
def open_npz(path: str | os.PathLike) -> Iterator[np.lib.npyio.NpzFile]:
    """An .npz of at most `LIMIT` bytes of arrays, which are loaded by their names.

    A FileError, also where an array is loaded: it is missing or not such an archive.
    """
    with open_binary(path) as file:
        try:
            # The size that the archive states is the most that is read of a member.
            with zipfile.ZipFile(file) as archive:
                size = sum(member.file_size for member in archive.infolist())
            if size > LIMIT:
                raise FileError(f"{path}: its arrays take more than {LIMIT} bytes")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                yield arrays
        except UserError:
            raise
        except BROKEN as error:
            raise FileError(
                f"{path}: not a readable .npz archive ({reason(error)})"
            ) from None


def read_npz(
    path: str | os.PathLike, names: Container[str] | None = None
) -> dict[str, np.ndarray]:
    """The arrays of an .npz by name, in its order; those of `names`, None: all."""
    with open_npz(path) as arrays:
        wanted = [name for name in arrays.files if names is None or name in names]
        stored = {name: arrays[name] for name in wanted}
        for name, array in stored.items():
            if not isinstance(array, np.ndarray):  # A member that is no .npy.
                raise FileError(f"{path}: {name!r} is no array")
        return stored


def reason(error: BaseException) -> str:
    """What a library said of a broken file: its words on one line, cut short."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= 160 else f"{words[:157]}..."


def check_unlocked(folder: str | os.PathLike) -> None:
    """Refuses a directory in which another process works. Leaves no file."""
    # Of a directory that cannot be written something else will complain.
    if os.access(Path(folder) / LOCK, os.W_OK):
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
    path = folder / LOCK
    lock = filelock.FileLock(path, fallback_to_soft=False, poll_interval=_PAUSE)
    try:
        lock.acquire(timeout=seconds)
    except filelock.Timeout:
        holder = ""
        with contextlib.suppress(OSError):
            holder = path.read_text(errors="replace").strip()
        holder = f"process {holder}" if holder.isdigit() else "another process"
        raise UserError(
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
