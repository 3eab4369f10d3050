"""Records that lie beside a comparison, or among the published ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prednet_jax import records


def find(places: Sequence[Path], name: str, listed: str) -> dict[str, Any] | None:
    """The first record of a name, or None.

    Args:
        places: directories, the first that has it wins.
        name: of the file.
        listed: a key whose list must hold something.

    Raises:
        RecordError: the file is broken.
    """
    path = next((p / name for p in places if (p / name).exists()), None)
    if path is None:
        return None
    found = records.read_json(path)
    if not isinstance(found, dict) or not found.get(listed):
        raise records.RecordError(f"{path}: expected an object with {listed}")
    return found
