"""Opens files that somebody else may have made, and locks directories.

A path that is not a regular file (a pipe, a device, a socket) and a file that would
fill the memory are refused before they are read. All other checks are left to the
libraries that read the formats.
"""

import contextlib
import errno
import hashlib
import io
import os
import re
import stat
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from prednet_jax.errors import UserError, log_line

# The most bytes that one file may put into memory. Frames beyond it belong in image
# files, a video or an .npy, which are read piece by piece.
LIMIT = 4 * 2**30

_AS_IT_WAS = "expected the file that was opened"
_STARTS = {b"PK\x03\x04": "zip", b"PK\x05\x06": "zip", b"\x93NUMPY": "npy"}
_STARTS |= {b"\x89HDF\r\n\x1a\n": "hdf5"}
# Errors that readers of binary formats raise on broken bytes. A header may also claim
# an array that no memory can hold.
BROKEN = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, struct.error, OverflowError, MemoryError),
    *(SyntaxError, tokenize.TokenError),  # NumPy reads its headers as Python's.
)

# Characters that no library reads as a pattern, an escape or the scheme of an address.
_PLAIN = re.compile(r"[A-Za-z0-9/._-]*")

# The lock of a directory: `flock` on this file, which holds the id of its process. The
# kernel releases it when the process ends for any reason.
LOCK = ".lock"
# `check` holds the lock for a moment; others try again instead of refusing for that.
_PATIENCE, _PAUSE = 0.25, 0.05
# Errors of a system about a path that it does not accept, or that is gone.
PATH_ERRORS = (
    *(errno.ENOENT, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EILSEQ, errno.EEXIST),
)
# Errors of `flock` on file systems without locks, such as some network ones.
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class FileError(UserError):
    """A file that cannot be opened, or does not have the expected content."""


def open_binary(path: str | os.PathLike) -> io.BufferedReader:
    """Opens a regular file for reading; a FileError gives the reason if it cannot."""
    try:
        # Opening a pipe would wait here for a writer.
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
    """Reads a regular file of at most `limit` bytes."""
    with open_binary(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise FileError(
                f"{path}: {size} bytes, more than {limit}; expected a smaller file"
            )
        return file.read()


def digest(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a regular file, 64 hexadecimal digits."""
    with open_binary(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_text(path: str | os.PathLike, limit: int = LIMIT) -> str:
    """Reads a UTF-8 file without its byte-order mark."""
    try:
        return read_bytes(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(
            f"{path}: not UTF-8 at byte {error.start}; expected a text"
        ) from None


def kind(path: str | os.PathLike) -> str | None:
    """Returns `zip`, `npy` or `hdf5` by a file's first bytes, or None."""
    with open_binary(path) as file:
        head = file.read(8)
    return next((_STARTS[start] for start in _STARTS if head.startswith(start)), None)


def zip_names(path: str | os.PathLike) -> list[str]:
    """Returns the names of the members of a zip archive; [] for another file."""
    with open_binary(path) as file, contextlib.suppress(*BROKEN):
        return zipfile.ZipFile(file).namelist()
    return []


def check_members(archive: Any) -> None:
    """Refuses, with a ValueError, a `ZipFile` that would fill the memory.

    The size that an archive states is the most that is read of a member.
    """
    if sum(member.file_size for member in archive.infolist()) > LIMIT:
        raise ValueError(f"takes more than {LIMIT} bytes")


def changed(path: str | os.PathLike) -> FileError:
    """Returns the error about a file that is another one than when it was opened."""
    return FileError(f"{path}: changed while it was in use; {_AS_IT_WAS}")


class Unchanged:
    """A file that has to stay as it was opened, while its parts are read over hours.

    Its size and time show a change. Where the time alone is another one, the content
    decides, since a file that was only touched is the same.

    Attributes:
        content: what `digest`, which reads the whole file, returned at first.
    """

    def __init__(self, path: str | os.PathLike, digest: Callable[[], str]):
        self._path, self._digest = path, digest
        try:
            self._stat = os.stat(path)
        except OSError as error:
            raise FileError(f"{path}: {error.strerror}") from None
        self.content = digest()

    def check(self, *, anew: bool = False) -> None:
        """Refuses the file, by a FileError, if it has changed.

        A file that was removed or replaced stays readable where it is open, and is
        refused only if it is opened `anew`.
        """
        try:
            now = os.stat(self._path)
        except OSError as error:
            if anew:
                raise FileError(
                    f"{self._path}: {error.strerror}; {_AS_IT_WAS}"
                ) from None
            return
        same = os.path.samestat(self._stat, now)
        size, time = now.st_size, now.st_mtime_ns
        unchanged = size == self._stat.st_size and time == self._stat.st_mtime_ns
        if (same and unchanged) or not (same or anew):
            return
        if size != self._stat.st_size or self._digest() != self.content:
            raise changed(self._path)
        self._stat = now


@contextlib.contextmanager
def open_npz(path: str | os.PathLike) -> Iterator[np.lib.npyio.NpzFile]:
    """Opens an .npz of at most `LIMIT` bytes, whose arrays are loaded by name.

    A file that is missing or not such an archive is a FileError, also while an array is
    loaded.
    """
    with (
        open_binary(path) as file,
        broken_as(f"{path}: not a readable .npz archive", kind=FileError),
        np.lib.npyio.NpzFile(file, allow_pickle=False) as arrays,
    ):
        check_members(arrays.zip)
        yield arrays


def read_npz(
    path: str | os.PathLike, names: Container[str] | None = None
) -> dict[str, np.ndarray]:
    """Reads the arrays of an .npz by name: only the given `names`, or all."""
    with open_npz(path) as arrays:
        wanted = [name for name in arrays.files if names is None or name in names]
        stored = {name: arrays[name] for name in wanted}
        for name, array in stored.items():
            if not isinstance(array, np.ndarray):  # A member that is no .npy.
                raise FileError(f"{path}: {name!r} is no array; expected arrays alone")
        return stored


def reason(error: BaseException) -> str:
    """Returns a library's message about a broken file, on one line, cut short."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= 160 else f"{words[:157]}..."


@contextlib.contextmanager
def broken_as(
    problem: str,
    expected: str = "",
    kind: type[UserError] = UserError,
    also: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Turns an error about broken content into one sentence, a `kind`.

    The errors are `BROKEN`, and those that a library raises `also`.
    """
    try:
        yield
    except UserError:
        raise
    except BROKEN + also as error:
        raise kind(f"{problem} ({reason(error)}){expected}") from None


@contextlib.contextmanager
def plain_path(folder: str | os.PathLike) -> Iterator[Path]:
    """Yields a path to a directory that libraries cannot read as a pattern.

    orbax and tensorstore read `a[1]`, a backslash or `gs:/` as something else than a
    name. A path with such characters is reached through a link with a plain name, which
    exists while the block runs; another path is yielded resolved.

    Raises:
        FileError: the system's directory for temporary files has such a name itself.
    """
    folder = Path(folder).resolve()
    if _PLAIN.fullmatch(str(folder)):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="prednet_jax_") as temporary_dir:
        link = Path(temporary_dir).resolve() / "link"
        if not _PLAIN.fullmatch(str(link)):
            raise FileError(
                f"{folder}: cannot be reached through {temporary_dir}; set TMPDIR to a "
                "directory whose path has letters, digits and ._- only"
            )
        link.symlink_to(folder, target_is_directory=True)
        yield link


def check_writable(path: str | os.PathLike) -> None:
    """Checks that a new file or directory can be made, without making it.

    Raises:
        FileError: no part of the path is a directory in which this process can write,
            or a name is longer than the file system allows; or the path is an address
            such as gs://bucket/run, which would be a directory `gs:` here.
    """
    if "\0" in os.fspath(path):
        raise FileError(f"{os.fspath(path)!r}: a NUL byte is not allowed in a path")
    folder = Path(path).absolute()
    # A link that leads nowhere does not exist, and cannot be made either.
    nearest = next(p for p in (folder, *folder.parents) if os.path.lexists(p))
    missing = folder.relative_to(nearest).parts
    if missing and re.match("[A-Za-z][A-Za-z0-9+]+:/", os.fspath(path)):
        raise FileError(
            f"{path}: an address; expected a path of this machine, such as one below "
            "a mounted directory"
        )
    if ".." in missing:  # The path would lead nowhere once empty directories are gone.
        raise FileError(f"{path}: {missing[0]}, before .., does not exist; expected it")
    try:
        if folder == nearest and os.path.isfile(folder):
            nearest = nearest.parent
        # Some file systems, such as /proc, are writable in their permissions only.
        with tempfile.TemporaryFile(dir=nearest):
            pass
        longest = os.pathconf(nearest, "PC_NAME_MAX")
    except OSError as error:
        raise FileError(
            f"{path}: {nearest} is no directory that can be written "
            f"({error.strerror}); expected one, or a path below one"
        ) from None
    for name in missing:
        if len(os.fsencode(name)) > longest:
            raise FileError(
                f"{path}: the name {name[:20]}... has {len(os.fsencode(name))} bytes; "
                f"expected at most {longest}"
            )


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Writes files that belong together, by name: all of them or none.

    Each file is written next to its final path, under a name that no other thread or
    process uses, and all reach the disk before the first is moved. So a reader always
    sees a whole file, and the old files remain on a full disk or after a power failure.
    """
    temporaries = {name: aside(folder / name) for name in contents}
    path = folder
    try:
        for path in (folder / name for name in contents):
            if path.exists() and not path.is_file():  # Such as /dev/null.
                raise FileError(
                    f"{path}: is no regular file; expected one, or a new path"
                )
        for name, temporary in temporaries.items():
            with open(temporary, "xb") as file:
                file.write(contents[name])
                file.flush()
                os.fsync(file.fileno())
        for name, temporary in temporaries.items():
            os.replace(temporary, folder / name)
    except BaseException as error:
        for temporary in temporaries.values():
            with contextlib.suppress(OSError, ValueError):
                temporary.unlink(missing_ok=True)
        if getattr(error, "errno", None) in PATH_ERRORS or "\0" in str(path):
            why = getattr(error, "strerror", None) or error
            shown = str(path) if str(path).isprintable() else repr(str(path))
            raise FileError(
                f"{shown}: {why}; expected a path that can be written"
            ) from None
        raise
    sync(folder)


def aside(path: Path) -> Path:
    """Returns a path next to another one that nothing else uses.

    It does not repeat the name, which may already be as long as the system allows.
    """
    return path.with_name(f".{os.getpid()}.{os.urandom(8).hex()}.tmp")


def sync(path: str | os.PathLike) -> None:
    """Forces a file's content, or the names in a directory, to the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def check_unlocked(folder: str | os.PathLike) -> None:
    """Refuses a directory in which another process works. Leaves no file."""
    # A directory that cannot be written is refused elsewhere.
    if os.access(Path(folder) / LOCK, os.W_OK):
        with _locked(Path(folder), _PATIENCE):
            pass


@contextlib.contextmanager
def hold(*folders: str | os.PathLike, wait: bool = False) -> Iterator[None]:
    """Locks directories, all or none, while the block runs; missing ones are created.

    Directories that this call created and that are still empty are removed at its end.
    With `wait` it waits for other processes instead of refusing.
    """
    with contextlib.ExitStack() as locks:
        for folder in map(Path, folders):
            for missing in reversed([folder, *folder.parents]):
                if not missing.exists():
                    missing.mkdir(exist_ok=True)
                    locks.callback(_remove_empty, missing)
            locks.enter_context(_locked(folder, -1 if wait else _PATIENCE))
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
            f"{folder}: in use by {holder}; wait for its end, or choose another "
            "directory"
        ) from None
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _WITHOUT_LOCKS:
            raise
        log_line(
            f"{folder}: cannot be locked ({error}), so do not start a second process "
            "that writes there"
        )
        yield
        return
    try:
        path.write_text(f"{os.getpid()}\n")
        yield
    finally:
        # The file is removed while the lock is held: a process that opened it meanwhile
        # sees, once it has the lock, that the file no longer has a name. A directory
        # that lost its permissions keeps the file, and the error of the block counts.
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        lock.release()
