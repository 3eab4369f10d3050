"""Writes files whole, also where several threads write the same one."""

import contextlib
import os


def write_whole(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file next to its place and moves it there.

    The temporary name belongs to this call alone: neither another process nor another
    thread has it. So a reader sees the old file or all of the new one.

    Raises:
        OSError: the file cannot be written; nothing is left of it.
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
