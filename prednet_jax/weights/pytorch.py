"""Weights of the PyTorch ports, state dicts in .pth and safetensors files.

The authors' port (eijwat/prednet_in_pytorch, `watanabe_pytorch`) and the one of
coxlab's code (leido/pytorch-prednet, `lotter_pytorch`) share their names, perhaps with
a prefix in front; convolutions are OIHW:
    cell{l}.weight_ih   [E_l, up(R_{l+1})] -> gates i, f, g, o; bias_ih
    cell{l}.weight_hh   R_l -> the same; bias_hh
    cell{l}.weight_ch   c_l -> gates i, f, o; bias_ch
    conv{l}.0.weight    R_l -> Ahat_l; bias
    update_A{l}.0.weight  E_l -> A_{l+1}; bias
In both E_l = [relu(Ahat - A), relu(A - Ahat)]; `watanabe_pytorch` has the halves the
other way round here, as `watanabe`, and so have the kernels that read them.

A .pth file is a zip, as PyTorch writes it since 1.6, of a pickle and files of its
arrays. Unpickling can run any program: docs/api/file_formats.md lists the objects that
this reader accepts.
"""

import functools
import io
import math
import os
import pickle
import re
import zipfile
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np

from prednet_jax import errors, files
from prednet_jax.config import PredNetConfig
from prednet_jax.errors import one_of, positive
from prednet_jax.weights.arrays import for_fractions, of_one_network, reading, sizes
from prednet_jax.weights.tensors import METADATA, is_safetensors, read_safetensors

# The largest value of a pixel of the port's frames.
PORTS = {"watanabe_pytorch": 1.0, "lotter_pytorch": 255.0}
_WANTED = "a state dict of a PyTorch port of PredNet"
_NAME = re.compile(
    r"(?P<name>cell\d{1,3}\.(weight|bias)_[ihc]h"
    r"|(conv|update_A)\d{1,3}\.0\.(weight|bias))$"
)
# Blocks of their gates i, f, g, o in our order i, f, o, g.
_GATES = (0, 1, 3, 2)
# The pickle of a state dict takes some hundred bytes an array; checkpoints more.
_PICKLE_LIMIT = 16 * 2**20
# Dictionaries within dictionaries: a checkpoint, its model, its state.
_DEEPEST = 8
_TYPES: dict[str, Any] = {
    "Double": "<f8",
    "Float": "<f4",
    "Half": "<f2",
    "BFloat16": jnp.bfloat16,
}
_TYPES |= {"Long": "<i8", "Int": "<i4", "Short": "<i2", "Char": "i1", "Byte": "u1"}
_TYPES |= {"Bool": "?"}
_STORAGES = {f"{name}Storage": np.dtype(kind) for name, kind in _TYPES.items()}


def load_pytorch(
    path: str | os.PathLike,
    *,
    variant: str | None = None,
    height: int | None = None,
    width: int | None = None,
    pixel_max: float | None = None,
) -> tuple[PredNetConfig, dict]:
    """Reads a state dict of a PyTorch port: the network and its float32 parameters.

    The file is a .pth of PyTorch 1.6 or later or a safetensors file. It does not
    contain its `variant`, the size of its frames, or `pixel_max`, the largest pixel
    that the port was trained on. The variant is `watanabe_pytorch` (the authors' port,
    the default, with a message) or `lotter_pytorch` (the port of coxlab's code); the
    others default to `PredNetConfig` and `PORTS`. Parameters are scaled so that frames
    are in [0, 1]. Another file is a UserError.
    """
    if variant is None:
        variant = "watanabe_pytorch"
        errors.log_line(
            f"{path}: {_WANTED}, read as {variant}; variant lotter_pytorch is the "
            "port of coxlab's code"
        )
    one_of("variant", variant, tuple(PORTS))
    scale = PORTS[variant] if pixel_max is None else pixel_max
    positive("pixel_max", scale)
    stored = read_safetensors(path)[0] if is_safetensors(path) else read_pth(path)
    arrays = of_one_network(path, stored, _NAME)
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    frame: dict[str, Any] = {"height": height, "width": width}
    with reading(path, _WANTED):
        layers = range(sum(f"conv{i}.0.weight" in arrays for i in range(len(arrays))))
        if not layers:
            raise KeyError("conv0.0.weight")
        config = PredNetConfig(
            channels=sizes(arrays, "conv{}.0.weight", layers, 0),
            variant=variant,
            r_channels=sizes(arrays, "cell{}.weight_hh", layers, 1),
            a_filters=sizes(arrays, "update_A{}.0.weight", layers[:-1], 2),
            ahat_filters=sizes(arrays, "conv{}.0.weight", layers, 2),
            r_filters=sizes(arrays, "cell{}.weight_hh", layers, 2),
            **{name: value for name, value in frame.items() if value is not None},
        )
        params = from_pytorch(config, arrays, scale)
    if height is None or width is None:
        errors.log_line(
            f"{path}: holds no frame size; assumed are {config.height} rows and "
            f"{config.width} columns; give height and width for others"
        )
    return config, params


def from_pytorch(
    config: PredNetConfig, arrays: Mapping[str, np.ndarray], scale: float
) -> dict:
    """Converts arrays, of a network for frames in [0, scale], to parameters."""
    swapped = config.pass_order == "watanabe"

    def kernel(weight: np.ndarray) -> np.ndarray:
        return weight.transpose(2, 3, 1, 0)

    def over_errors(weight: np.ndarray) -> np.ndarray:
        """Returns a kernel over E_l, its halves in our order."""
        first, second = np.split(kernel(weight), 2, axis=2)
        halves = (second, first) if swapped else (first, second)
        return np.concatenate(halves, axis=2)

    def gates(array: np.ndarray) -> np.ndarray:
        parts = np.split(array, 4)
        return np.concatenate([parts[i] for i in _GATES])

    params: dict = {}
    for layer in range(config.layers):
        cell = f"cell{layer}."
        errors = 2 * config.channels[layer]
        of_inputs = gates(arrays[cell + "weight_ih"])
        bias = gates(arrays[cell + "bias_ih"] + arrays[cell + "bias_hh"])
        bias[: -config.recurrent[layer]] += arrays[cell + "bias_ch"]
        of_hidden = kernel(gates(arrays[cell + "weight_hh"]))
        own = [of_hidden, over_errors(of_inputs[:, :errors])]
        params[f"gates_{layer}"] = {"kernel": np.concatenate(own, axis=2), "bias": bias}
        params[f"cell_{layer}"] = {"kernel": kernel(arrays[cell + "weight_ch"])}
        params[f"prediction_{layer}"] = {
            "kernel": kernel(arrays[f"conv{layer}.0.weight"]),
            "bias": arrays[f"conv{layer}.0.bias"],
        }
        if layer + 1 < config.layers:
            name = f"update_A{layer}.0."
            params[f"top_down_{layer}"] = {"kernel": kernel(of_inputs[:, errors:])}
            params[f"features_{layer}"] = {
                "kernel": over_errors(arrays[name + "weight"]),
                "bias": arrays[name + "bias"],
            }
    return for_fractions(config, params, scale)


def is_port(path: str | os.PathLike) -> bool:
    """Returns whether a path is a port's .pth or safetensors file, not one of ours."""
    if not os.path.isfile(path):
        return False
    if not is_safetensors(path):
        return _pickle_of(files.zip_names(path)) is not None
    arrays, metadata = read_safetensors(path)
    return METADATA not in metadata and any(map(_NAME.search, arrays))


def read_pth(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Reads the tensors of a .pth file by name; nested names are joined by dots."""
    content = files.read_bytes(path)
    wanted = f"; expected {_WANTED}, as torch.save(model.state_dict(), path) writes it"
    also = pickle.UnpicklingError, AttributeError
    with files.broken_as(f"{path}: not readable", wanted, also=also):
        return _tensors(_read_zip(io.BytesIO(content)))


def _pickle_of(names: list[str]) -> str | None:
    """Returns the member of a zip in which `torch.save` puts its pickle, or None."""
    pickles = [name for name in names if re.fullmatch(r"[^/]+/data\.pkl", name)]
    return pickles[0] if len(pickles) == 1 else None


def _read_zip(stream: io.BytesIO) -> Any:
    with zipfile.ZipFile(stream) as archive:
        name = _pickle_of(archive.namelist())
        if name is None:
            raise ValueError("no data.pkl in the archive")
        root = name.removesuffix("data.pkl")
        files.check_members(archive)
        if archive.getinfo(name).file_size > _PICKLE_LIMIT:
            raise ValueError(f"{name} takes more than {_PICKLE_LIMIT} bytes")
        order = f"{root}byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise ValueError("written on a big-endian machine")

        @functools.cache
        def storage(dtype: np.dtype, key: str, count: int) -> np.ndarray:
            content = archive.read(f"{root}data/{key}")
            if len(content) != count * dtype.itemsize:
                raise ValueError(f"a storage of {len(content)} bytes for {count}")
            return np.frombuffer(content, dtype)

        return _Unpickler(io.BytesIO(archive.read(name)), storage).load()


class _Storage(NamedTuple):
    """The numbers of a storage, which tensors are views of."""

    numbers: np.ndarray


def _tensor(storage: _Storage, offset: int, size: tuple, stride: tuple, *_: Any) -> Any:
    """Makes a view of a storage, as torch's `_rebuild_tensor_v2`."""
    numbers = storage.numbers
    sizes = (offset, *size, *stride)
    if len(size) != len(stride) or any(type(n) is not int or n < 0 for n in sizes):
        raise ValueError(f"a tensor of size {size}, stride {stride}, offset {offset}")
    if 0 in size:
        return np.empty(0, numbers.dtype)
    last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    # A stride of zero would make a large array of a small file.
    if math.prod(size) > len(numbers) or offset + last >= len(numbers):
        raise ValueError(f"a tensor of size {size} in a storage of {len(numbers)}")
    strides = tuple(step * numbers.itemsize for step in stride)
    return np.lib.stride_tricks.as_strided(numbers[offset:], size, strides)


_KNOWN = {
    ("collections", "OrderedDict"): dict,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
}


class _Unpickler(pickle._Unpickler):
    """Unpickles state dicts and nothing else, in Python's own language."""

    # C's unpickler takes memory for any number of an entry that a file names.

    def __init__(self, stream: io.BytesIO, storage: Any):
        super().__init__(stream)
        self._read_storage = storage

    def find_class(self, module: str, name: str) -> Any:
        """Returns the few objects that a state dict needs."""
        if module in ("torch", "torch.cuda") and name in _STORAGES:
            return _STORAGES[name]
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not run")
        return _KNOWN[module, name]

    def persistent_load(self, identity: Any) -> _Storage:
        """Returns a storage by `("storage", type, key, device, count, ...)`."""
        word, dtype, key, _, count, *extra = identity
        valid = isinstance(dtype, np.dtype) and type(count) is int and count >= 0
        if word != "storage" or not valid or any(extra):
            raise pickle.UnpicklingError(f"an object {identity!r} outside the pickle")
        return _Storage(self._read_storage(dtype, str(key), count))

    def _forget_attributes(self: Any) -> None:
        self.stack.pop()  # Of the dictionary: the versions of its modules.

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        pickle.BUILD[0]: _forget_attributes,
    }


def _tensors(tree: Any) -> dict[str, np.ndarray]:
    """Returns the arrays of nested dictionaries by name, shared ones once."""
    arrays: dict[str, np.ndarray] = {}
    waiting: list[tuple[tuple[str, ...], Any]] = [((), tree)]
    seen: set[int] = set()
    while waiting:
        path, node = waiting.pop()
        if isinstance(node, np.ndarray):
            bfloat16 = node.dtype == jnp.bfloat16
            arrays[".".join(path)] = node.astype(np.float32) if bfloat16 else node
        # Each is visited once: references to references would take for ever.
        elif isinstance(node, dict) and id(node) not in seen and len(path) < _DEEPEST:
            seen.add(id(node))
            waiting += [((*path, str(key)), value) for key, value in node.items()]
    return arrays
