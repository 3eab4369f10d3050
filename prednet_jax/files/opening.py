"""Regular files only, of a bounded size, known by their first bytes."""

import io
import os
import stat

from prednet_jax.errors import UserError

# What one file may put into memory: arrays of an .npz or an HDF5 file. Frames beyond
# it belong in image files or a video, which are read one by one.
LIMIT = 4 * 2**30

# So much of a file is looked at to know its kind.
_HEAD = 1024

_STARTS = (
    ("zip", 0, b"PK\x03\x04"),
    ("zip", 0, b"PK\x05\x06"),
    ("hdf5", 0, b"\x89HDF\r\n\x1a\n"),
    ("video", 4, b"ftyp"),  # MP4, QuickTime.
    ("video", 4, b"moov"),
    ("video", 4, b"mdat"),
    ("video", 0, b"\x1a\x45\xdf\xa3"),  # Matroska, WebM.
    ("video", 8, b"AVI "),
    ("video", 0, b"FLV\x01"),
    ("video", 0, b"OggS"),
    ("video", 0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11"),  # WMV.
    ("video", 0, b"\x00\x00\x01\xba"),  # MPEG program stream.
    ("video", 0, b"\x00\x00\x01\xb3"),  # MPEG video.
)

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class FileError(UserError):
    """A file that cannot be opened, or is not what it should be.

    The message says what is wrong; whoever asked for the file adds what is accepted.
    """


def open_binary(path: str | os.PathLike) -> io.BufferedReader:
    """Opens a regular file for reading.

    Raises:
        FileError: it is missing, may not be read, or is no regular file.
    """
    return os.fdopen(_descriptor(path), "rb")


def read_bytes(path: str | os.PathLike, limit: int = LIMIT) -> bytes:
    """The whole content of a regular file.

    Args:
        path: the file.
        limit: bytes that it may hold.

    Raises:
        FileError: as `open_binary`, or the file is longer.
    """
    descriptor = _descriptor(path)
    try:
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise FileError(f"{path}: {size} bytes, more than {limit}")
        # Files of /proc say 0; a file may grow while it is read.
        parts, left = [], limit + 1
        while left > 0 and (part := os.read(descriptor, min(left, size + 65536))):
            parts.append(part)
            left -= len(part)
            if len(part) == size:
                break
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from None
    finally:
        os.close(descriptor)
    if left <= 0:
        raise FileError(f"{path}: more than {limit} bytes")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_text(path: str | os.PathLike, limit: int = LIMIT) -> str:
    """The whole content of a UTF-8 file; a byte-order mark is left out.

    Raises:
        FileError: as `read_bytes`, or it is not UTF-8.
    """
    try:
        return read_bytes(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: not UTF-8 at byte {error.start}") from None


def read_head(path: str | os.PathLike) -> bytes:
    """The first bytes of a regular file, for `kind`.

    Raises:
        FileError: as `open_binary`.
    """
    with open_binary(path) as file:
        return file.read(_HEAD)


def kind(head: bytes) -> str | None:
    """What a file is by its first bytes: `zip`, `hdf5`, `video`, or None: not told.

    The signatures are those of the formats' specifications. A transport stream has a
    packet of 188 bytes (or 192, with a time stamp in front) after the other.
    """
    for name, offset, start in _STARTS:
        if head[offset : offset + len(start)] == start:
            return name
    for first, step in ((0, 188), (4, 192)):
        if len(head) > 4 * step and set(head[first::step]) == {0x47}:
            return "video"
    return None


def reason(error: BaseException) -> str:
    """What a library said of a broken file: its words on one line, cut short."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= 160 else f"{words[:157]}..."


def _descriptor(path: str | os.PathLike) -> int:
    """A regular file's descriptor; what else lies there is never opened."""
    if "\0" in os.fsdecode(path):
        raise FileError(f"{os.fsdecode(path)!r}: no such file")
    try:
        _check_regular(path, os.stat(path))
        # Should a pipe have come in its place by now: it would not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        _check_regular(path, os.fstat(descriptor))
    except FileError:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(path: str | os.PathLike, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        what = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise FileError(f"{path}: is {what}, not a regular file")
