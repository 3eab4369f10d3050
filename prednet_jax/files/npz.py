"""Arrays of .npz and .npy, whose sizes are read before anything is loaded.

An .npz is a zip archive of .npy files. `numpy.load` believes the shape that the header
of each states, and takes the memory first; here a header has to agree with the length
that the archive states, and both with a limit.
"""

import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Container
from typing import IO, NamedTuple

import numpy as np

from prednet_jax.files.opening import LIMIT, FileError, open_binary, reason

# What the readers of zip and .npy raise on broken bytes (encrypted ones: RuntimeError).
_BROKEN = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, struct.error, OverflowError),
    *(SyntaxError, tokenize.TokenError),  # Headers are read as Python's literals.
)
# Arrays in one archive; PredNet of four layers has 70.
_MEMBERS = 10_000


class _Member(NamedTuple):
    """One array of the archive, by its headers."""

    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype


def read_npz(
    path: str | os.PathLike,
    *,
    names: Container[str] | None = None,
    limit: int = LIMIT,
) -> dict[str, np.ndarray]:
    """Reads an .npz.

    Args:
        path: the archive.
        names: arrays to read, where they are there; None: all.
        limit: bytes that the arrays may take in memory, together.

    Returns:
        The arrays by name, in the archive's order.

    Raises:
        FileError: the file is missing, no such archive, encrypted, holds Python
            objects, or more than `limit`.
    """
    with open_binary(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = _members(path, archive, names, limit)
                return {n: _array(archive, member) for n, member in members.items()}
        except FileError:
            raise
        except _BROKEN as error:
            raise _unreadable(path, error) from None


def npz_names(path: str | os.PathLike) -> list[str]:
    """Names of an archive's arrays, in its order.

    Raises:
        FileError: the file is missing or no such archive.
    """
    with open_binary(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return [name.removesuffix(".npy") for name in archive.namelist()]
        except _BROKEN as error:
            raise _unreadable(path, error) from None


def map_npy(path: str | os.PathLike) -> np.ndarray:
    """Maps the array of an .npy into memory, read-only; nothing is loaded.

    Raises:
        FileError: the file is missing, no .npy, not a whole one, or holds Python
            objects.
    """
    with open_binary(path) as file:
        try:
            shape, fortran, dtype = _npy_header(file)
            start = file.tell()
            size = math.prod(shape) * dtype.itemsize
            held = os.fstat(file.fileno()).st_size - start
            if dtype.hasobject or size != held:
                raise ValueError(f"claims {size} bytes of {dtype} and holds {held}")
            return np.memmap(
                file, dtype, "r", start, shape, order="F" if fortran else "C"
            )
        except _BROKEN as error:
            raise FileError(f"{path}: not a whole .npy ({reason(error)})") from None


def _unreadable(path: str | os.PathLike, error: BaseException) -> FileError:
    return FileError(f"{path}: not a readable .npz archive ({reason(error)})")


def _members(
    path: str | os.PathLike,
    archive: zipfile.ZipFile,
    names: Container[str] | None,
    limit: int,
) -> dict[str, _Member]:
    """The headers of the arrays asked for, checked."""
    found: dict[str, _Member] = {}
    left = limit
    infos = archive.infolist()
    if len(infos) > _MEMBERS:
        raise FileError(f"{path}: {len(infos)} arrays, more than {_MEMBERS}")
    for info in infos:
        name = info.filename.removesuffix(".npy")
        if name in found:
            raise FileError(f"{path}: holds the array {name!r} twice")
        if names is not None and name not in names:
            continue
        if info.flag_bits & 1:
            raise FileError(f"{path}: encrypted")
        member, start = _header(archive, info)
        if member.dtype.hasobject:
            raise FileError(f"{path}: {name!r} holds pickled objects")
        size = math.prod(member.shape) * member.dtype.itemsize
        if size + start != info.file_size:
            raise FileError(
                f"{path}: {name!r} claims {size} bytes and its place holds "
                f"{max(0, info.file_size - start)}"
            )
        left -= size
        if left < 0:
            raise FileError(f"{path}: its arrays take more than {limit} bytes")
        found[name] = member
    return found


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[_Member, int]:
    """Shape and type that an .npy header states, and its length."""
    with archive.open(info) as stream:
        shape, _, dtype = _npy_header(stream)
        return _Member(info, shape, dtype), stream.tell()


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether in Fortran's order, and type; the stream is then at the values."""
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    shape, fortran, dtype = read(stream)
    if any(type(side) is not int or side < 0 for side in shape):
        raise ValueError("a side of its shape is no whole number")
    return shape, fortran, dtype


def _array(archive: zipfile.ZipFile, member: _Member) -> np.ndarray:
    with archive.open(member.info) as stream:
        array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
    return array
