"""Reads files that other packages ship, without importing those packages."""

import importlib.util
import pathlib

from prednet_jax.data.source import DataError


def shipped_bytes(data: str, package: str, file: str, *, requirement: str) -> bytes:
    """A file of an installed package.

    Args:
        data: Name of the source that needs it, for the message.
        package: Name under which the package is imported.
        file: Path inside the package.
        requirement: The pip requirement to install if it is missing.

    Returns:
        The bytes of the file.

    Raises:
        DataError: If the package or the file is missing.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"data={data}: needs {requirement}; pip install '.[data]'")
    path = pathlib.Path(spec.submodule_search_locations[0]) / file
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"data={data}: {path} of the installed {package} cannot be read "
            f"({error.strerror}); pip install '{requirement}'"
        ) from error
