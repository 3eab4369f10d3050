"""Writes files atomically, also when several threads write the same one."""

import contextlib
import os


def write_whole(path: str | os.PathLike, content: bytes) -> None:
    """Writes a temporary file in the same directory and moves it to its final name.

    The temporary name is unique to this call. So a reader sees either the old file or
    the complete new file.

    Raises:
        OSError: the file cannot be written; the temporary file is removed.
    """
    folder = os.path.dirname(os.path.abspath(path))
    temporary = os.path.join(folder, f".{os.getpid()}.{os.urandom(8).hex()}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise
