"""Weights of the Chainer implementation, `*.model` npz files (quadjr/PredNet).

Names, each with the prefix `predictor/`; convolutions are OIHW:
    ConvA{l}/{W,b}       l = 1..L-1, E_{l-1} -> A_l
    ConvP{l}/{W,b}       l = 0..L-1, h_l -> P_l
    ConvLSTM{l}/x_{g}0/W E_l -> gate g in i, f, c, o
    ConvLSTM{l}/x_{g}1/W up(h_{l+1}) -> gate g; absent in the top layer
    ConvLSTM{l}/h_{g}/{W,b}  h_l -> gate g
    ConvLSTM{l}/c_{g}/W  (1, C, H, W), peepholes of g in i, f, o
The file gives the frame size only through its peepholes, whose shape depends on it.
"""

import os
import re
from collections.abc import Mapping

import jax
import numpy as np

from prednet_jax import files, records
from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError, expect
from prednet_jax.models.parameters import parameter_shapes
from prednet_jax.weights.arrays import (
    GATES,
    as_parameters,
    of_one_network,
    reading,
    sizes,
)

_NAME = re.compile(r"(?P<name>Conv(A|P|LSTM)\d{1,3}/([xhc]_[ifoc]\d?/)?[Wb])$")


def load_chainer(path: str | os.PathLike) -> tuple[PredNetConfig, dict]:
    """Reads a `*.model` npz file: a network of `watanabe` and its float32 parameters.

    The peepholes give the frame size; another file is a UserError.
    """
    arrays = of_one_network(path, files.read_npz(path), _NAME)
    with reading(path, "a model file of the Chainer PredNet"):
        layers = range(sum(f"ConvLSTM{i}/c_i/W" in arrays for i in range(len(arrays))))
        _, _, height, width = arrays["ConvLSTM0/c_i/W"].shape
        config = PredNetConfig(
            channels=sizes(arrays, "ConvP{}/W", layers, 0),
            variant="watanabe",
            height=height,
            width=width,
            r_channels=sizes(arrays, "ConvLSTM{}/h_i/W", layers, 0),
            a_filters=sizes(arrays, "ConvA{}/W", layers[1:], 2),
            ahat_filters=sizes(arrays, "ConvP{}/W", layers, 2),
            r_filters=sizes(arrays, "ConvLSTM{}/h_i/W", layers, 2),
        )
        return config, from_chainer(config, arrays)


def is_chainer(path: str | os.PathLike) -> bool:
    """Returns whether a path is an archive, as NumPy and Chainer write it."""
    return files.kind(path) == "zip"


def from_chainer(config: PredNetConfig, arrays: Mapping[str, np.ndarray]) -> dict:
    """Converts arrays under Chainer's names without `predictor/` to parameters."""
    params = {
        group: {leaf: np.empty(shape, np.float32) for leaf, shape in leaves.items()}
        for group, leaves in parameter_shapes(config).items()
    }
    for name, view in _views(config, params).items():
        # This precedes writing, since empty arrays have taken no memory yet.
        if arrays[name].shape != view.shape:
            raise UserError(
                f"{name} of shape {arrays[name].shape}: expected {view.shape}"
            )
        view[...] = arrays[name]
    return as_parameters(config, params)


def to_chainer(config: PredNetConfig, params: Mapping) -> dict[str, np.ndarray]:
    """Converts parameters to arrays under Chainer's names, with `predictor/`."""
    expect(config.variant == "watanabe", "variant", config.variant, "'watanabe'")
    own = config.pixel_max
    expect(own == 1, "pixel_max", own, "1, as Chainer has it")
    return {
        f"predictor/{name}": np.ascontiguousarray(view)
        for name, view in _views(config, jax.tree.map(np.asarray, dict(params))).items()
    }


def _views(
    config: PredNetConfig, params: Mapping[str, Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Returns views of the parameters by Chainer's names, in its layout."""
    views: dict[str, np.ndarray] = {}
    for group, leaves in params.items():
        kind, number = group.rsplit("_", 1)
        layer = int(number)
        cell = f"ConvLSTM{layer}"
        kernel = leaves["kernel"].transpose(3, 2, 0, 1)
        if kind == "gates":
            width = config.recurrent[layer]
            parts = np.split(kernel, 4), np.split(leaves["bias"], 4)
            for gate, part, bias in zip(GATES, *parts, strict=True):
                views[f"{cell}/h_{gate}/W"] = part[:, :width]
                views[f"{cell}/x_{gate}0/W"] = part[:, width:]
                views[f"{cell}/h_{gate}/b"] = bias
            for gate, peephole in zip("ifo", leaves["peephole"], strict=True):
                views[f"{cell}/c_{gate}/W"] = peephole.transpose(2, 0, 1)[None]
        elif kind == "top_down":
            for gate, part in zip(GATES, np.split(kernel, 4), strict=True):
                views[f"{cell}/x_{gate}1/W"] = part
        else:
            link = f"ConvP{layer}" if kind == "prediction" else f"ConvA{layer + 1}"
            views[f"{link}/W"], views[f"{link}/b"] = kernel, leaves["bias"]
    return views


def save_chainer(
    path: str | os.PathLike, config: PredNetConfig, params: Mapping
) -> None:
    """Writes a file for Chainer's `serializers.load_npz`; `watanabe` only."""
    records.write_tree(path, to_chainer(config, params), compressed=True)
