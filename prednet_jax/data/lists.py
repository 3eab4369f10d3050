"""Text lists of files, as the published trainer reads them.

`load_list` of main.py (quadjr/PredNet, eijwat/prednet_in_chainer_py3) takes the first
word of every line and joins it to `--root`, by default the working directory.

A list may come from somebody else. So the files that it names have to lie, after
following links, below the folder of the list that the user named. And a message quotes
a line only if the list itself lies there, so that no message shows a line of another
file.
"""

import os
import stat

from prednet_jax import files
from prednet_jax.data.source import DataError

# Most lines of a list, and most frames of a list of lists. Ten million paths take 2 GB.
ENTRIES = 10**7
# Largest list in bytes: ten million paths of a hundred characters.
_BYTES = 2**30
_SHOWN = 80


class Lists:
    """Reads a list, and the lists that it names, inside one folder."""

    def __init__(self, path: str | os.PathLike, *, allow_outside: bool = False):
        """Remembers the folder.

        Args:
            path: The list that the user named.
            allow_outside: Whether files may lie anywhere.
        """
        self._folder = os.path.dirname(os.path.abspath(path))
        self._root = os.path.realpath(self._folder)
        self._allow_outside = allow_outside
        self._real: dict[str, str] = {}

    def read(self, path: str | os.PathLike) -> list[str]:
        """The files that a text list names, in its order.

        Args:
            path: The list; UTF-8, one path per line, empty lines ignored.

        Returns:
            The files; each exists and is a regular file.

        Raises:
            DataError: If the list is unreadable or empty, or a file is missing or lies
                outside the folder.
        """
        path = os.fspath(path)
        try:
            lines = files.read_text(path, _BYTES).splitlines()
        except files.FileError as error:
            raise DataError(
                f"not a text list: {error}; accepted is one path per line"
            ) from None
        if len(lines) > ENTRIES:
            raise DataError(
                f"{path}: {len(lines)} lines; accepted are at most {ENTRIES}"
            )
        quoted = self._inside(os.path.realpath(path))
        entries = [
            self._resolve(line.strip(), number, path, quoted)
            for number, line in enumerate(lines, 1)
            if line.strip()
        ]
        if not entries:
            raise DataError(f"{path}: the list is empty; accepted is one path per line")
        return entries

    def _resolve(self, line: str, number: int, path: str, quoted: bool) -> str:
        """The file of one line: the whole line, or its first word as published."""
        for text in dict.fromkeys((line, line.split()[0])):
            for folder in (os.path.dirname(path), ""):
                # join ignores the folder if the path is absolute.
                found = os.path.join(folder, text)
                real = self._regular(found)
                if real is None:
                    continue
                if self._allow_outside or self._inside(real):
                    return found
                raise DataError(
                    f"{path}, line {number}: names a file outside {self._root}; "
                    "accepted are files below it, or any with --allow_outside"
                )
        shown = f" {line[:_SHOWN]!r}" if quoted else ""
        raise DataError(
            f"{path}, line {number}: no file{shown}, neither beside the list nor in "
            "the working directory"
        )

    def _regular(self, path: str) -> str | None:
        """The path of a regular file after following links; None: there is none."""
        try:
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode):
                found = os.stat(path)
                real = os.path.realpath(path)
            else:
                folder, name = os.path.split(path)
                if folder not in self._real:
                    self._real[folder] = os.path.realpath(folder)
                real = os.path.join(self._real[folder], name)
        except (OSError, ValueError):  # ValueError: a zero byte in the name.
            return None
        return real if stat.S_ISREG(found.st_mode) else None

    def _inside(self, real: str) -> bool:
        root = self._root if self._root.endswith(os.sep) else self._root + os.sep
        return real.startswith(root)
