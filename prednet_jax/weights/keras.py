"""Weights of the Keras original, HDF5 files (coxlab/prednet).

A PredNet layer holds `layer_{a,ahat,c,f,i,o}_{l}/{kernel:0,bias:0}`, kernels HWIO over
[R_l, E_l, up(R_{l+1})]. `save_weights` puts layers at the root, `model.save` and
ModelCheckpoint under `model_weights/`; the layer's own name is whatever Keras counted
up to, so the layer is found by its weights. Other groups are left out. The HDF5 of
Keras 3, `.weights.h5`, names the two `vars/0` and `vars/1`; a `.keras` archive is a zip
of it and of the model. They hold the names of convolutions only if these are attributes
of their layer.
"""

import io
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax import errors, files, records
from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError, expect
from prednet_jax.weights import keras_model
from prednet_jax.weights.arrays import (
    GATES,
    as_parameters,
    of_one_network,
    reading,
    sizes,
)
from prednet_jax.weights.keras_model import Model

_LEAF = re.compile(r"(?P<name>layer_(a|ahat|c|f|i|o)_\d{1,3}/(kernel|bias))(:0)?$")
_KERAS_3 = {"vars/0": "kernel", "vars/1": "bias"}
_ARCHIVED = "model.weights.h5", "config.json"


def load_keras(
    path: str | os.PathLike,
    *,
    height: int | None = None,
    width: int | None = None,
    pixel_max: float | None = None,
) -> tuple[PredNetConfig, dict]:
    """Reads a network (`lotter`) and its float32 parameters from a file of Keras.

    The size of the frames and the upper clip of the bottom prediction are given, or
    come from the model (`keras_model`), in the file or in the JSON next to it, such as
    `prednet_kitti_model.json` of `prednet_kitti_weights.hdf5`. Without both, the size
    is KITTI's, 128 rows and 160 columns, and one line reports it. A stored
    `extrap_start_time` is printed; `extrapolation` returns it. Another file, or a model
    with options that this package does not compute, is a UserError.
    """
    arrays, model = _read(path)
    asked = {"height": height, "width": width, "pixel_max": pixel_max}
    overrides = {name: value for name, value in asked.items() if value is not None}
    settings = {**keras_model.KITTI, **model.settings, **overrides}
    with reading(path, "a whole PredNet layer"):
        layers = range(1 + max(_layer_and_kind(name)[0] for name in arrays))
        config = PredNetConfig(
            channels=sizes(arrays, "layer_ahat_{}/kernel", layers, 3),
            variant="lotter",
            r_channels=sizes(arrays, "layer_i_{}/kernel", layers, 3),
            a_filters=sizes(arrays, "layer_a_{}/kernel", layers[:-1], 0),
            ahat_filters=sizes(arrays, "layer_ahat_{}/kernel", layers, 0),
            r_filters=sizes(arrays, "layer_i_{}/kernel", layers, 0),
            **settings,
        )
        params = from_keras(config, arrays)
    model.check(config)
    if model.source not in ("", str(path)):
        errors.log_once(f"{path}: read with the model {model.source}")
    for name, value in overrides.items():
        if (own := model.settings.get(name, value)) != value:
            errors.log_once(f"{path}: {name} is {value}, as given; its model has {own}")
    if not {"height", "width"} <= {*model.settings, *overrides}:
        errors.log_once(
            f"{path}: holds no frame size, and has no model next to it; assumed are "
            f"{config.height} rows and {config.width} columns, as KITTI's; give height "
            "and width for others"
        )
    if model.extrapolate_from is not None:
        errors.log_once(
            f"{model.source}: extrap_start_time is {model.extrapolate_from}: from this "
            f"frame on (extrapolate_from={model.extrapolate_from}) the network saw its "
            "own predictions"
        )
    return config, params


def extrapolation(path: str | os.PathLike) -> int | None:
    """Returns the frame from which on weights were trained on their own predictions.

    Only a model of Keras has it, as `extrap_start_time`; other files give None.
    """
    return _read(path)[1].extrapolate_from if is_keras(path) else None


def is_keras(path: str | os.PathLike) -> bool:
    """Returns whether a path is an HDF5 file or a `.keras` archive."""
    if not os.path.isfile(path):
        return False
    return files.kind(path) == "hdf5" or _ARCHIVED[0] in files.zip_names(path)


def _unpacked(file: io.BufferedReader) -> tuple[Any, str | None]:
    """Returns the HDF5 file in an archive, and the text of its model."""
    if not zipfile.is_zipfile(file):
        return file, None
    with zipfile.ZipFile(file) as archive:
        files.check_members(archive)
        weights, model = (archive.read(name) for name in _ARCHIVED)
        return io.BytesIO(weights), model.decode()


def _read(path: str | os.PathLike) -> tuple[dict[str, np.ndarray], Model]:
    import h5py

    datasets: dict[str, Any] = {}
    unnamed: list[str] = []

    def see(name: str, node: Any) -> None:
        stem, leaf = name[:-6], name[-6:]
        own = stem + _KERAS_3.get(leaf, leaf)
        dataset = isinstance(node, h5py.Dataset)
        if dataset and _LEAF.search(own) and not name.startswith("optimizer_weights"):
            if node.external or node.is_virtual:
                raise UserError(
                    f"{path}: {name!r} lies in another file; expected one file "
                    "that holds all weights"
                )
            datasets[own] = node
        elif re.search(r"conv\w*(/vars/0|_W(:0)?)$", name, re.IGNORECASE):
            unnamed.append(name)

    broken = f"{path}: not a readable HDF5 file", "; expected a Keras HDF5 weight file"
    with files.broken_as(*broken), files.open_binary(path) as opened:
        content, text = _unpacked(opened)
        with h5py.File(content, "r") as file:
            file.visititems(see)
            if sum(node.nbytes for node in datasets.values()) > files.LIMIT:
                raise UserError(f"{path}: takes more than {files.LIMIT} bytes")
            arrays = {name: np.asarray(node[()]) for name, node in datasets.items()}
            text = text or file.attrs.get("model_config")
            backend = file.attrs.get("backend")
    arrays = of_one_network(path, arrays, _LEAF)
    if not arrays and unnamed:
        raise UserError(
            f"{path}: names its convolutions by number ({unnamed[0]}), so the gates "
            "cannot be told apart; load it in Keras 2 or 3 and call model.save('w.h5')"
        )
    if not arrays:
        raise UserError(f"{path}: no PredNet layer; expected layer_i_0/kernel:0 ...")
    if "theano" in str(backend):  # A text, bytes, or an array of one of them.
        raise UserError(
            f"{path}: of Keras with Theano, whose convolutions flip their kernels; "
            "expected weights for TensorFlow, as coxlab's tensorflow_weights/"
        )
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return arrays, keras_model.read(path, text)


def from_keras(config: PredNetConfig, arrays: dict[str, np.ndarray]) -> dict:
    """Converts arrays under Keras's names (`layer_a_0/kernel`) to parameters."""

    def link(name: str) -> dict[str, np.ndarray]:
        return {leaf: arrays[f"layer_{name}/{leaf}"] for leaf in ("kernel", "bias")}

    params: dict = {}
    for layer in range(config.layers):
        own = config.recurrent[layer] + 2 * config.channels[layer]
        gates = [link(f"{gate}_{layer}") for gate in GATES]
        kernel = np.concatenate([gate["kernel"] for gate in gates], axis=3)
        bias = np.concatenate([gate["bias"] for gate in gates])
        params[f"gates_{layer}"] = {"kernel": kernel[:, :, :own], "bias": bias}
        params[f"prediction_{layer}"] = link(f"ahat_{layer}")
        if layer + 1 < config.layers:
            params[f"top_down_{layer}"] = {"kernel": kernel[:, :, own:]}
            params[f"features_{layer}"] = link(f"a_{layer}")
    return as_parameters(config, params)


def to_keras(config: PredNetConfig, params: Mapping) -> dict[str, np.ndarray]:
    """Converts parameters to arrays under Keras's names, such as `layer_a_0/kernel`."""
    expect(config.variant == "lotter", "variant", config.variant, "'lotter'")
    out: dict[str, Any] = {}
    for layer in range(config.layers):
        kernel, bias = (params[f"gates_{layer}"][leaf] for leaf in ("kernel", "bias"))
        links = {"ahat": params[f"prediction_{layer}"]}
        if layer + 1 < config.layers:
            above = params[f"top_down_{layer}"]["kernel"]
            kernel = np.concatenate([kernel, above], axis=2)
            links["a"] = params[f"features_{layer}"]
        for gate, k, b in zip(
            GATES, np.split(kernel, 4, axis=3), np.split(bias, 4), strict=True
        ):
            links[gate] = {"kernel": k, "bias": b}
        for link, leaves in links.items():
            for leaf in ("kernel", "bias"):
                out[f"layer_{link}_{layer}/{leaf}"] = np.asarray(leaves[leaf])
    return out


def save_keras(path: str | os.PathLike, config: PredNetConfig, params: Mapping) -> None:
    """Writes an HDF5 file like Keras's `save_weights`, and the model's JSON next to it.

    coxlab/prednet reads the two with `model_from_json(text, {"PredNet": PredNet})` and
    `load_weights(path)`; `path` with the suffix `.json` holds the text. The model is an
    input and the PredNet layer. Another variant than `lotter` is a UserError.
    """
    import h5py

    arrays = to_keras(config, params)
    layer = "pred_net_1"
    # Keras lists weights by kind, then by layer, kernels before biases.
    names = sorted(arrays, key=lambda n: (n.split("_")[1], *_layer_and_kind(n)))
    image = io.BytesIO()
    with h5py.File(image, "w") as file:
        file.attrs["layer_names"] = np.array(["input_1", layer], "S")
        file.attrs["backend"] = "tensorflow"
        file.attrs["keras_version"] = "2.2.4"
        file.create_group("input_1").attrs["weight_names"] = np.array([])
        group = file.create_group(layer)
        weights = np.array([f"{layer}/{name}:0" for name in names], "S")
        group.attrs["weight_names"] = weights
        for name in names:
            value = np.asarray(arrays[name], np.float32)
            group.create_dataset(f"{layer}/{name}:0", data=value)
    model = keras_model.text(config, layer)
    records.write_bytes(Path(path).with_suffix(".json"), model.encode())
    records.write_bytes(path, image.getvalue())


def _layer_and_kind(name: str) -> tuple[int, bool]:
    _, _, rest = name.split("_")
    layer, leaf = rest.split("/")
    return int(layer), leaf == "bias"
