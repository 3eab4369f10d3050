"""Weights together with their network: safetensors files and orbax directories.

Arrays are named `<module>/<leaf>`, such as `gates_0/kernel`, in this package's layout:
HWIO kernels, gates side by side in the order i, f, o, g. The network is the JSON text
of its `PredNetConfig`: in a safetensors file under `prednet_jax` in the metadata, in an
orbax directory in `network.json`.
"""

import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from prednet_jax import files, records
from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.training import checkpoints
from prednet_jax.weights.arrays import as_parameters, check_arrays, reading

METADATA = "prednet_jax"
NETWORK = "network.json"
_ARRAYS = "params"


def is_safetensors(path: str | os.PathLike) -> bool:
    """Returns whether a file begins as safetensors: eight bytes, then JSON."""
    with files.open_binary(path) as file:
        start = file.read(9)
        size = os.fstat(file.fileno()).st_size
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") < size


def save_safetensors(
    path: str | os.PathLike, config: PredNetConfig, params: Mapping
) -> None:
    """Writes a safetensors file, whole or not at all."""
    from safetensors.numpy import save

    arrays = {
        f"{module}/{leaf}": np.ascontiguousarray(value)
        for module, leaves in params.items()
        for leaf, value in leaves.items()
    }
    records.write_bytes(path, save(arrays, metadata={METADATA: _text(config)}))


def read_safetensors(
    path: str | os.PathLike,
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Reads the arrays of a safetensors file by name, and its metadata."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    content = files.read_bytes(path)
    # Types that NumPy does not have are a TypeError or a KeyError.
    broken = f"{path}: not a whole file", "; expected a safetensors file"
    with files.broken_as(*broken, also=(SafetensorError,)):
        arrays = load(content)
        # The file begins with the length of its header, which is JSON.
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return arrays, header.get("__metadata__") or {}


def load_safetensors(path: str | os.PathLike) -> tuple[PredNetConfig, dict]:
    """Reads a file of `save_safetensors`; another file is a UserError."""
    arrays, metadata = read_safetensors(path)
    text = metadata.get(METADATA)
    if text is None:
        raise UserError(
            f"{path}: no network in its metadata; expected a file that "
            "weights.save_safetensors wrote, or the state dict of a PyTorch port"
        )
    params: dict = {}
    for name, value in arrays.items():
        module, _, leaf = name.rpartition("/")
        params.setdefault(module, {})[leaf] = value
    return _checked(path, text, params)


def save_orbax(path: str | os.PathLike, config: PredNetConfig, params: Mapping) -> None:
    """Writes an orbax checkpoint, and the network, into a new directory."""
    files.check_writable(path)
    folder = Path(path).absolute()
    if folder.exists():
        raise UserError(f"{path}: exists; expected the path of a new directory")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = files.aside(folder)
    try:
        temporary.mkdir()
        checkpoints.write_arrays(temporary / _ARRAYS, dict(params))
        records.write_bytes(temporary / NETWORK, _text(config).encode())
        checkpoints.write_digest(temporary / _ARRAYS)
        os.rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def load_orbax(path: str | os.PathLike) -> tuple[PredNetConfig, dict]:
    """Reads a directory of `save_orbax`; anything else is a UserError."""
    folder = Path(path).absolute()
    text = files.read_text(folder / NETWORK)
    with files.broken_as(f"{path}: broken", "; expected the network's arrays"):
        arrays = folder / _ARRAYS
        # Before orbax reads: of damaged files its threads print hundreds of lines.
        if not checkpoints.is_whole(arrays):
            raise ValueError("its files are not those that were saved")
        params = checkpoints.read_arrays(arrays)
    return _checked(path, text, params)


def _text(config: PredNetConfig) -> str:
    return json.dumps(dataclasses.asdict(config))


def _checked(
    path: str | os.PathLike, text: str, params: dict
) -> tuple[PredNetConfig, dict]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    name = functools.partial(jax.tree_util.keystr, simple=True, separator="/")
    check_arrays(path, {name(key_path): np.asarray(leaf) for key_path, leaf in leaves})
    try:
        config = PredNetConfig(**json.loads(text))
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path}: no network in its text ({files.reason(error)}); expected the "
            "fields of PredNetConfig as JSON"
        ) from None
    with reading(path, "a whole network"):
        return config, as_parameters(config, params)
