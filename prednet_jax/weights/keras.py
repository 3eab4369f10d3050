"""Weights of the Keras original, HDF5 files (coxlab/prednet).

A PredNet layer holds `layer_{a,ahat,c,f,i,o}_{l}/{kernel:0,bias:0}`, kernels HWIO over
[R_l, E_l, up(R_{l+1})]. `save_weights` puts layers at the root, `model.save` and
ModelCheckpoint under `model_weights/`; the layer's own name is whatever Keras counted
up to, so the layer is found by its weights. The other groups of a training model
(time_distributed, dense) hold the loss weights and are left out.
"""

import io
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from prednet_jax import files, records
from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.weights.arrays import check_arrays, one_place
from prednet_jax.weights.chainer import check_shapes

# Our gate order i, f, o, g against Keras's names; its candidate g is called c.
GATES = ("i", "f", "o", "c")
_LEAF = re.compile(r"layer_(a|ahat|c|f|i|o)_(\d{1,3})/(kernel|bias)(?::0)?$")


def load_keras(
    path: str | os.PathLike, *, height: int, width: int, pixel_max: float = 1.0
) -> tuple[PredNetConfig, dict]:
    """Reads PredNet weights from a weights-only or full-model HDF5 file.

    Args:
        path: the HDF5 file.
        height: rows of the frames; the file does not say (any multiple of
            2^(layers - 1), the weights are convolutions).
        width: columns of the frames.
        pixel_max: upper clip of the bottom prediction; the weights do not say.

    Returns:
        The network (`lotter`) and its parameters, float32.

    Raises:
        UserError: the file is missing, is no HDF5, or holds no PredNet layer.
    """
    arrays = _read(path)
    try:
        layers = 1 + max(int(name.split("_")[2].split("/")[0]) for name in arrays)
        recurrent = tuple(arrays[f"layer_i_{i}/kernel"].shape[3] for i in range(layers))
        config = PredNetConfig(
            channels=tuple(
                arrays[f"layer_ahat_{i}/kernel"].shape[3] for i in range(layers)
            ),
            variant="lotter",
            height=height,
            width=width,
            r_channels=recurrent,
            pixel_max=pixel_max,
            a_filters=tuple(
                arrays[f"layer_a_{i}/kernel"].shape[0] for i in range(layers - 1)
            ),
            ahat_filters=tuple(
                arrays[f"layer_ahat_{i}/kernel"].shape[0] for i in range(layers)
            ),
            r_filters=tuple(
                arrays[f"layer_i_{i}/kernel"].shape[0] for i in range(layers)
            ),
        )
        params = from_keras(config, arrays)
    except KeyError as error:
        raise UserError(
            f"{path}: no array {error}; expected a whole PredNet layer"
        ) from None
    except (ValueError, IndexError) as error:
        raise UserError(f"{path}: {error}; expected a PredNet layer") from None
    return config, params


def _read(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """The arrays of one PredNet layer, by name without what stands in front."""

    def found(name: str) -> re.Match[str] | None:
        optimizer = name.startswith("optimizer_weights")
        return None if optimizer else _LEAF.search(name)

    try:
        stored = files.read_hdf5(path, lambda name: found(name) is not None)
    except files.FileError as error:
        raise UserError(f"{error}; expected a Keras HDF5 weight file") from None
    matches = {name: match for name in stored if (match := found(name))}
    one_place(path, {name[: match.start()] for name, match in matches.items()})
    arrays = {
        match.group().removesuffix(":0"): stored[name]
        for name, match in matches.items()
    }
    if not arrays:
        raise UserError(f"{path}: no PredNet layer; expected layer_i_0/kernel:0 ...")
    check_arrays(path, arrays)
    return arrays


def from_keras(config: PredNetConfig, arrays: dict[str, np.ndarray]) -> dict:
    """Parameters from arrays under Keras's names, such as `layer_a_0/kernel`.

    Raises:
        KeyError: an array is missing.
        UserError: an array has another shape than the network's.
    """
    params: dict = {}
    for layer in range(config.layers):
        own = config.recurrent[layer] + 2 * config.channels[layer]
        kernel = np.concatenate(
            [arrays[f"layer_{g}_{layer}/kernel"] for g in GATES], axis=3
        )
        bias = np.concatenate([arrays[f"layer_{g}_{layer}/bias"] for g in GATES])
        params[f"gates_{layer}"] = {"kernel": kernel[:, :, :own], "bias": bias}
        params[f"prediction_{layer}"] = {
            leaf: arrays[f"layer_ahat_{layer}/{leaf}"] for leaf in ("kernel", "bias")
        }
        if layer + 1 < config.layers:
            params[f"top_down_{layer}"] = {"kernel": kernel[:, :, own:]}
            params[f"features_{layer}"] = {
                leaf: arrays[f"layer_a_{layer}/{leaf}"] for leaf in ("kernel", "bias")
            }
    check_shapes(config, params)
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)


def to_keras(config: PredNetConfig, params: Mapping) -> dict[str, np.ndarray]:
    """Arrays under Keras's names, such as `layer_a_0/kernel`; from_keras's inverse.

    Raises:
        UserError: the network is not of the `lotter` form.
    """
    if config.variant != "lotter":
        raise UserError(f"variant={config.variant!r}: expected 'lotter'")
    out: dict[str, np.ndarray] = {}
    for layer in range(config.layers):
        kernel = np.asarray(params[f"gates_{layer}"]["kernel"])
        if layer + 1 < config.layers:
            above = np.asarray(params[f"top_down_{layer}"]["kernel"])
            kernel = np.concatenate([kernel, above], axis=2)
            for leaf in ("kernel", "bias"):
                value = params[f"features_{layer}"][leaf]
                out[f"layer_a_{layer}/{leaf}"] = np.asarray(value)
        kernels = np.split(kernel, 4, axis=3)
        biases = np.split(np.asarray(params[f"gates_{layer}"]["bias"]), 4)
        for gate, k, b in zip(GATES, kernels, biases, strict=True):
            out[f"layer_{gate}_{layer}/kernel"] = k
            out[f"layer_{gate}_{layer}/bias"] = b
        for leaf in ("kernel", "bias"):
            value = params[f"prediction_{layer}"][leaf]
            out[f"layer_ahat_{layer}/{leaf}"] = np.asarray(value)
    return out


def save_keras(path: str | os.PathLike, config: PredNetConfig, params: Mapping) -> None:
    """Writes an HDF5 file as Keras's `save_weights`, and the model's JSON beside it.

    coxlab/prednet reads the two with `model_from_json(text, {"PredNet": PredNet})` and
    `load_weights(path)`; `path` with the suffix `.json` holds the text. The model is an
    input and the PredNet layer, without the layers of its training.

    Args:
        path: the HDF5 file.
        config: the network, `lotter`.
        params: its parameters.

    Raises:
        UserError: the network is not of the `lotter` form.
    """
    import h5py

    arrays = to_keras(config, params)
    layer = "pred_net_1"
    # Keras lists weights by kind, then by layer, kernels before biases.
    names = sorted(arrays, key=lambda n: (n.split("_")[1], *_place(n)))
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


def _place(name: str) -> tuple[int, bool]:
    _, _, rest = name.split("_")
    layer, leaf = rest.split("/")
    return int(layer), leaf == "bias"


def _model(config: PredNetConfig, layer: str) -> dict:
    """The model as Keras 2.2.4 describes it in JSON."""
    frame = [config.height, config.width, config.channels[0]]
    own = {
        "name": layer,
        "trainable": True,
        "return_sequences": True,
        "return_state": False,
        "go_backwards": False,
        "stateful": False,
        "unroll": False,
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
