"""Weights of the Keras original, HDF5 files (coxlab/prednet).

A PredNet layer holds `layer_{a,ahat,c,f,i,o}_{l}/{kernel:0,bias:0}`, kernels HWIO over
[R_l, E_l, up(R_{l+1})]. `save_weights` puts layers at the root, `model.save` and
ModelCheckpoint under `model_weights/`; the layer's own name is whatever Keras counted
up to, so the layer is found by its weights. Other groups are left out.
"""

import io
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax import files, records
from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError, expect
from prednet_jax.weights.arrays import (
    GATES,
    as_parameters,
    of_one_network,
    reading,
    sizes,
)

_LEAF = re.compile(r"(?P<name>layer_(a|ahat|c|f|i|o)_\d{1,3}/(kernel|bias))(:0)?$")


def load_keras(
    path: str | os.PathLike,
    *,
    height: int | None = None,
    width: int | None = None,
    pixel_max: float | None = None,
) -> tuple[PredNetConfig, dict]:
    """Reads a network (`lotter`) and its float32 parameters from a file of Keras.

    Rows and columns of the frames, and the upper clip of the bottom prediction, are
    those of the model where they are None: in the file (a full-model file) or in one of
    its name and the suffix .json beside it; else the defaults of `PredNetConfig`.
    Another file is a UserError.
    """
    arrays, model = _read(path)
    asked = {"height": height, "width": width, "pixel_max": pixel_max}
    model |= {name: value for name, value in asked.items() if value is not None}
    with reading(path, "a whole PredNet layer"):
        layers = range(1 + max(_layer_and_kind(name)[0] for name in arrays))
        config = PredNetConfig(
            channels=sizes(arrays, "layer_ahat_{}/kernel", layers, 3),
            variant="lotter",
            r_channels=sizes(arrays, "layer_i_{}/kernel", layers, 3),
            a_filters=sizes(arrays, "layer_a_{}/kernel", layers[:-1], 0),
            ahat_filters=sizes(arrays, "layer_ahat_{}/kernel", layers, 0),
            r_filters=sizes(arrays, "layer_i_{}/kernel", layers, 0),
            **model,
        )
        return config, from_keras(config, arrays)


def _read(path: str | os.PathLike) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    import h5py

    datasets: dict[str, Any] = {}

    def see(name: str, node: Any) -> None:
        if _LEAF.search(name) and not name.startswith("optimizer_weights"):
            if node.external or node.is_virtual:
                raise UserError(f"{path}: {name!r} lies in another file")
            datasets[name] = node

    try:
        with files.open_binary(path) as opened, h5py.File(opened, "r") as file:
            file.visititems(see)
            if sum(node.nbytes for node in datasets.values()) > files.LIMIT:
                raise UserError(f"{path}: takes more than {files.LIMIT} bytes")
            arrays = {name: np.asarray(node[()]) for name, node in datasets.items()}
            text = file.attrs.get("model_config")
    except UserError:
        raise
    except files.BROKEN as error:
        raise UserError(
            f"{path}: not a readable HDF5 file ({files.reason(error)}); expected a "
            "Keras HDF5 weight file"
        ) from None
    arrays = of_one_network(path, arrays, _LEAF)
    if not arrays:
        raise UserError(f"{path}: no PredNet layer; expected layer_i_0/kernel:0 ...")
    beside = Path(path).with_suffix(".json")
    try:
        if text is None and beside.is_file():
            text = files.read_text(beside)
        return arrays, _frames_of(json.loads(text)) if text else {}
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return arrays, {}  # Another file of that name.


def _frames_of(model: dict) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    shape: Any = None
    for layer in model["config"]["layers"]:
        own = layer["config"]
        if layer["class_name"] == "InputLayer":
            shape = own["batch_input_shape"]
        elif layer["class_name"] == "PredNet":
            settings["pixel_max"] = float(own["pixel_max"])
            first = "channels_first" in own.values() or "th" in own.values()
            shape = own.get("batch_input_shape", shape)  # of a Sequential model
            sides = shape[-2:] if first else shape[-3:-1]
            settings |= {"height": int(sides[0]), "width": int(sides[1])}
    return settings


def from_keras(config: PredNetConfig, arrays: dict[str, np.ndarray]) -> dict:
    """Parameters from arrays under Keras's names, such as `layer_a_0/kernel`."""

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
    """Arrays under Keras's names, such as `layer_a_0/kernel`; from_keras's inverse."""
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
    """Writes an HDF5 file as Keras's `save_weights`, and the model's JSON beside it.

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
    model = json.dumps(_model(config, layer))
    records.write_bytes(Path(path).with_suffix(".json"), model.encode())
    records.write_bytes(path, image.getvalue())


def _layer_and_kind(name: str) -> tuple[int, bool]:
    _, _, rest = name.split("_")
    layer, leaf = rest.split("/")
    return int(layer), leaf == "bias"


def _model(config: PredNetConfig, layer: str) -> dict:
    frame = [config.height, config.width, config.channels[0]]
    off = ("return_state", "go_backwards", "stateful", "unroll")
    own = {
        "name": layer,
        "trainable": True,
        "return_sequences": True,
        **dict.fromkeys(off, False),
        "implementation": 0,
        "stack_sizes": list(config.channels),
        "R_stack_sizes": list(config.recurrent),
        "A_filt_sizes": np.asarray(config.a_filters).tolist(),
        "Ahat_filt_sizes": np.asarray(config.ahat_filters).tolist(),
        "R_filt_sizes": np.asarray(config.r_filters).tolist(),
        "pixel_max": config.pixel_max,
        "error_activation": "relu",
        "A_activation": "relu",
        "LSTM_activation": "tanh",
        "LSTM_inner_activation": "hard_sigmoid",
        "data_format": "channels_last",
        "extrap_start_time": None,
        "output_mode": "prediction",
    }
    # The number of time steps is open.
    source = {
        "batch_input_shape": [None, None, *frame],
        "dtype": "float32",
        "sparse": False,
        "name": "input_1",
    }
    layers = [
        {"name": "input_1", "class_name": "InputLayer", "config": source}
        | {"inbound_nodes": []},
        {"name": layer, "class_name": "PredNet", "config": own}
        | {"inbound_nodes": [[["input_1", 0, 0, {}]]]},
    ]
    ends = {"input_layers": [["input_1", 0, 0]], "output_layers": [[layer, 0, 0]]}
    return {
        "class_name": "Model",
        "config": {"name": "model_1", "layers": layers} | ends,
        "keras_version": "2.2.4",
        "backend": "tensorflow",
    }
