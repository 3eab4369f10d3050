"""Weights of the Keras original, HDF5 files (coxlab/prednet).

A PredNet layer holds `layer_{a,ahat,c,f,i,o}_{l}/{kernel:0,bias:0}`, kernels HWIO over
[R_l, E_l, up(R_{l+1})]. `save_weights` puts layers at the root, `model.save` and
ModelCheckpoint under `model_weights/`; the layer's own name is whatever Keras counted
up to, so the layer is found by its weights. The other groups of a training model
(time_distributed, dense) hold the loss weights and are left out.
"""

import os
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.weights.chainer import check_shapes

# Our gate order i, f, o, g against Keras's names; its candidate g is called c.
GATES = ("i", "f", "o", "c")
_LEAF = re.compile(r"layer_(a|ahat|c|f|i|o)_(\d+)/(kernel|bias)(?::0)?$")


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
    return config, params


def _read(path: str | os.PathLike) -> dict[str, np.ndarray]:
    import h5py

    if not Path(path).is_file():
        raise UserError(f"{path}: no such file; expected a Keras HDF5 weight file")
    arrays: dict[str, np.ndarray] = {}

    def visit(name: str, node: object) -> None:
        match = _LEAF.search(name)
        if match and isinstance(node, h5py.Dataset):
            if name.startswith("optimizer_weights"):
                return
            arrays[match.group().removesuffix(":0")] = node[()]

    try:
        with h5py.File(path, "r") as file:
            file.visititems(visit)
    except OSError as error:
        raise UserError(
            f"{path}: unreadable ({error}); expected a Keras HDF5 weight file"
        ) from None
    if not arrays:
        raise UserError(f"{path}: no PredNet layer; expected layer_i_0/kernel:0 ...")
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


def to_keras(config: PredNetConfig, params: dict) -> dict[str, np.ndarray]:
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
