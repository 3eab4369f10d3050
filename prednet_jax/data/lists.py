"""Text lists of files, as the published trainer reads them.

`load_list` of main.py (quadjr/PredNet, eijwat/prednet_in_chainer_py3) takes the first
word of every line and joins it to `--root`, by default the working directory.
"""

import pathlib

from prednet_jax.data.source import DataError


def read_list(path: pathlib.Path) -> list[pathlib.Path]:
    """The files that a text list names, in its order.

    Args:
        path: The list; UTF-8, one path a line, empty lines left out.

    Returns:
        The files; each exists.

    Raises:
        DataError: If the list is unreadable or empty, or a file is missing.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not a text list (not UTF-8 at byte {error.start}); accepted is "
            "one path a line"
        ) from error
    entries = [
        _resolve(line.strip(), number, path)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not entries:
        raise DataError(f"{path}: the list is empty; accepted is one path a line")
    return entries


def _resolve(line: str, number: int, list_path: pathlib.Path) -> pathlib.Path:
    """The file of one line: the whole line, or its first word as published."""
    for text in (line, line.split()[0]):
        for folder in (list_path.parent, pathlib.Path()):
            # An absolute path swallows the folder.
            if (folder / text).is_file():
                return folder / text
    raise DataError(
        f"{list_path}, line {number}: no file {line!r}, neither beside the list nor "
        "in the working directory"
    )
