"""Weights of the Chainer implementation, `*.model` npz files (quadjr/PredNet).

Names, in front of each `predictor/`; convolutions are OIHW:
    ConvA{l}/{W,b}       l = 1..L-1, E_{l-1} -> A_l
    ConvP{l}/{W,b}       l = 0..L-1, h_l -> P_l
    ConvLSTM{l}/x_{g}0/W E_l -> gate g in i, f, c, o
    ConvLSTM{l}/x_{g}1/W up(h_{l+1}) -> gate g; absent in the top layer
    ConvLSTM{l}/h_{g}/{W,b}  h_l -> gate g
    ConvLSTM{l}/c_{g}/W  (1, C, H, W), peepholes of g in i, f, o
The file says nothing of frame size but through the peepholes, which tie it.
"""

import io
import os
import re
from collections.abc import Mapping

import numpy as np

from prednet_jax import files, records
from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.weights.arrays import (
    as_parameters,
    check_arrays,
    of_one_network,
    reading,
)

# Our gate order i, f, o, g against Chainer's names; its candidate g is called c.
GATES = ("i", "f", "o", "c")
Arrays = dict[str, np.ndarray]
_NAME = re.compile(r"(?P<name>Conv(A|P|LSTM)\d{1,3}/([xhc]_[ifoc]\d?/)?[Wb])$")


def load_chainer(path: str | os.PathLike) -> tuple[PredNetConfig, dict]:
    """Reads a `*.model` npz file.

    Returns:
        The network (`watanabe`, frame size from the peepholes) and its parameters,
        float32.

    Raises:
        UserError: the file is missing, is no npz, or is not a PredNet of this form.
    """
    try:
        stored = files.read_npz(path)
    except files.FileError as error:
        raise UserError(f"{error}; expected a Chainer model (npz)") from None
    arrays = of_one_network(path, stored, _NAME)
    check_arrays(path, arrays)

    def sizes(name: str, numbers: range, axis: int) -> tuple[int, ...]:
        return tuple(arrays[name.format(i)].shape[axis] for i in numbers)

    with reading(path, "a model file of the Chainer PredNet"):
        layers = range(sum(f"ConvLSTM{i}/h_i/W" in arrays for i in range(len(arrays))))
        if not layers:
            raise KeyError("ConvLSTM0/h_i/W")
        _, _, height, width = arrays["ConvLSTM0/c_i/W"].shape
        config = PredNetConfig(
            channels=sizes("ConvP{}/W", layers, 0),
            variant="watanabe",
            height=height,
            width=width,
            r_channels=sizes("ConvLSTM{}/h_i/W", layers, 0),
            a_filters=sizes("ConvA{}/W", layers[1:], 2),
            ahat_filters=sizes("ConvP{}/W", layers, 2),
            r_filters=sizes("ConvLSTM{}/h_i/W", layers, 2),
        )
        return config, from_chainer(config, arrays)


def from_chainer(config: PredNetConfig, arrays: Mapping[str, np.ndarray]) -> dict:
    """Parameters from arrays under Chainer's names without `predictor/`.

    Raises:
        KeyError: an array is missing.
        UserError: an array has another shape than the network's.
    """

    def kernel(names: list[str]) -> np.ndarray:
        """OIHW kernels of the four gates -> HWIO, gates side by side."""
        return np.concatenate([arrays[f"{n}/W"] for n in names]).transpose(2, 3, 1, 0)

    params: dict = {}
    for layer in range(config.layers):
        cell = f"ConvLSTM{layer}"
        of_h = kernel([f"{cell}/h_{g}" for g in GATES])
        of_e = kernel([f"{cell}/x_{g}0" for g in GATES])
        params[f"gates_{layer}"] = {
            "kernel": np.concatenate([of_h, of_e], axis=2),
            "bias": np.concatenate([arrays[f"{cell}/h_{g}/b"] for g in GATES]),
            "peephole": np.stack(
                [arrays[f"{cell}/c_{g}/W"][0].transpose(1, 2, 0) for g in GATES[:3]]
            ),
        }
        params[f"prediction_{layer}"] = {
            "kernel": kernel([f"ConvP{layer}"]),
            "bias": arrays[f"ConvP{layer}/b"],
        }
        if layer + 1 < config.layers:
            params[f"top_down_{layer}"] = {
                "kernel": kernel([f"{cell}/x_{g}1" for g in GATES])
            }
            params[f"features_{layer}"] = {
                "kernel": kernel([f"ConvA{layer + 1}"]),
                "bias": arrays[f"ConvA{layer + 1}/b"],
            }
    return as_parameters(config, params)


def to_chainer(config: PredNetConfig, params: Mapping) -> Arrays:
    """Arrays under Chainer's names, with `predictor/`; the inverse of from_chainer.

    Raises:
        UserError: the network is not of the `watanabe` form.
    """
    if config.variant != "watanabe":
        raise UserError(f"variant={config.variant!r}: expected 'watanabe'")
    out: Arrays = {}
    for name, leaves in params.items():
        kind, layer = name.rsplit("_", 1)
        index = int(layer)
        cell = f"predictor/ConvLSTM{layer}"
        kernel = np.asarray(leaves["kernel"]).transpose(3, 2, 0, 1)
        if kind == "gates":
            width = config.recurrent[index]
            bias = np.split(np.asarray(leaves["bias"]), 4)
            for gate, part, b in zip(GATES, np.split(kernel, 4), bias, strict=True):
                out[f"{cell}/h_{gate}/W"] = part[:, :width]
                out[f"{cell}/h_{gate}/b"] = b
                out[f"{cell}/x_{gate}0/W"] = part[:, width:]
            for gate, peephole in zip(
                GATES[:3], np.asarray(leaves["peephole"]), strict=True
            ):
                out[f"{cell}/c_{gate}/W"] = peephole.transpose(2, 0, 1)[None]
        elif kind == "top_down":
            for gate, part in zip(GATES, np.split(kernel, 4), strict=True):
                out[f"{cell}/x_{gate}1/W"] = part
        else:
            link = f"ConvP{index}" if kind == "prediction" else f"ConvA{index + 1}"
            out[f"predictor/{link}/W"] = kernel
            out[f"predictor/{link}/b"] = np.asarray(leaves["bias"])
    return {name: np.ascontiguousarray(value) for name, value in out.items()}


def save_chainer(
    path: str | os.PathLike, config: PredNetConfig, params: Mapping
) -> None:
    """Writes, whole or not at all, what Chainer's `serializers.load_npz` reads.

    Raises:
        UserError: the network is not of the `watanabe` form.
    """
    arrays = to_chainer(config, params)
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    records.write_bytes(path, content.getvalue())
