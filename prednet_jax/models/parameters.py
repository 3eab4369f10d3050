"""Parameters of the networks: the Linen module that declares them, and `init_params`.

Linen is used here and nowhere else in the models: for the names, shapes, initialisers
and keys of the parameters.

The published initialisers:
    lotter      Glorot uniform for each gate's convolution, zero biases (Keras 2)
    watanabe    N(0, 1/fan_in), not truncated, with the fan_in of each of Chainer's
                convolutions; zero biases; peepholes N(0, 1/(R H W)) (LeCunNormal)
    autoencoder N(0, 1/fan_in), zero biases (Chainer's LeCunNormal)
A PyTorch port is initialised as the variant with the same order, and cell_l as
top_down_l.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from prednet_jax.config import AutoencoderConfig, PredNetConfig, convolutions
from prednet_jax.errors import expect

# Number of values drawn in one call. The generator's unrolled rounds take a third of a
# second to compile per shape, so all parameters are drawn in blocks of one shape. The
# weights of a seed depend on this number.
#     time python -c "import jax, prednet_jax as p;
#         p.init_params(p.PredNetConfig(), jax.random.key(0))"
DRAW_BLOCK = 2**16


class Initializer(NamedTuple):
    """The shape of a parameter, and the function that draws it, float32, from a key."""

    shape: tuple[int, ...]
    draw: Callable[[jax.Array], jax.Array]


Table = dict[str, dict[str, Initializer]]
_signed_uniform = partial(jax.random.uniform, minval=-1, maxval=1)


@partial(jax.jit, static_argnums=0)
def _draw_block(sampler: Callable, key: jax.Array, index: int) -> jax.Array:
    return sampler(jax.random.fold_in(key, index), (DRAW_BLOCK,), jnp.float32)


def _library(x: jax.Array) -> ModuleType:
    """Returns NumPy unless x is traced: JAX would compile for each shape."""
    return jnp if isinstance(x, jax.core.Tracer) else np


def _drawn(sampler: Callable, shape: tuple[int, ...], scale: float) -> Initializer:
    def init(key: jax.Array) -> jax.Array:
        count = -(-math.prod(shape) // DRAW_BLOCK)
        blocks = [_draw_block(sampler, key, i) for i in range(count)]
        flat = _library(blocks[0]).concatenate(blocks)[: math.prod(shape)]
        return flat.reshape(shape) * np.float32(scale)

    return Initializer(shape, init)


def _normal(shape: tuple[int, ...], fan_in: int) -> Initializer:
    return _drawn(jax.random.normal, shape, 1 / math.sqrt(fan_in))


def _zeros(size: int) -> Initializer:
    return Initializer((size,), lambda key: _library(key).zeros((size,), np.float32))


def _stacked(parts: list[Initializer]) -> Initializer:
    """Makes one kernel of independent draws, along the input channels."""

    def init(key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, len(parts))
        drawn = [part.draw(k) for part, k in zip(parts, keys, strict=True)]
        return _library(drawn[0]).concatenate(drawn, axis=2)

    *taps, _, width = parts[0].shape
    return Initializer((*taps, sum(part.shape[2] for part in parts), width), init)


def initializers(config: PredNetConfig | AutoencoderConfig) -> Table:
    """Returns the initialiser of each parameter, `{group: {leaf: initialiser}}`."""
    if isinstance(config, AutoencoderConfig):
        widths = (config.pixels, *config.hidden, config.pixels)
        return {
            f"dense_{i}": {"kernel": _normal((n, m), n), "bias": _zeros(m)}
            for i, (n, m) in enumerate(pairwise(widths))
        }
    if not isinstance(config, PredNetConfig):
        raise TypeError(
            f"config of type {type(config).__name__}: expected PredNetConfig or "
            "AutoencoderConfig"
        )
    table: Table = {}
    for name, conv in convolutions(config).items():
        kind, layer = name.rsplit("_", 1)
        recurrent = config.recurrent[int(layer)]
        taps = conv.filter_size**2
        shape = (conv.filter_size, conv.filter_size, conv.in_channels)
        gate = kind in ("gates", "top_down", "cell")
        fan_out = (recurrent if gate else conv.out_channels) * taps
        if config.pass_order == "lotter":
            inputs = conv.in_channels
            if gate:
                # In Keras one convolution sees h, E and the layer above together.
                above = int(layer) + 1
                inputs = recurrent + 2 * config.channels[int(layer)]
                inputs += config.recurrent[above] if above < config.layers else 0
                inputs += recurrent if config.ported else 0
            limit = math.sqrt(6 / (inputs * taps + fan_out))
            kernel = _drawn(_signed_uniform, (*shape, conv.out_channels), limit)
        elif kind == "gates":
            # Chainer convolves h and E separately.
            parts = (recurrent, 2 * config.channels[int(layer)])
            kernel = _stacked(
                [_normal((*shape[:2], n, conv.out_channels), n * taps) for n in parts]
            )
        else:
            kernel = _normal((*shape, conv.out_channels), conv.in_channels * taps)
        table[name] = {"kernel": kernel}
        if kind not in ("top_down", "cell"):
            table[name]["bias"] = _zeros(conv.out_channels)
        if kind == "gates" and config.peepholes:
            maps = (conv.height, conv.width, recurrent)
            table[name]["peephole"] = _normal((3, *maps), math.prod(maps))
    return table


class _Group(nn.Module):
    """Declares the parameters of one group of the table."""

    leaves: dict[str, Initializer]

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        return {
            leaf: self.param(leaf, lambda key, draw=draw: jax.device_put(draw(key)))
            for leaf, (_, draw) in self.leaves.items()
        }


class Parameters(nn.Module):
    """Declares every parameter of a network; a call returns their tree."""

    config: PredNetConfig | AutoencoderConfig

    @nn.compact
    def __call__(self) -> dict[str, dict[str, jax.Array]]:
        """Returns the parameters: `{group: {leaf: array}}`."""
        return {
            name: _Group(leaves, name=name)()
            for name, leaves in initializers(self.config).items()
        }


def init_params(config: PredNetConfig | AutoencoderConfig, key: jax.Array) -> dict:
    """Initialises float32 parameters as published; consumes the PRNG key."""
    return Parameters(config).init(key)["params"]


def parameter_shapes(
    config: PredNetConfig | AutoencoderConfig,
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Returns the shape of each parameter, `{group: {leaf: shape}}`; draws none."""
    return {
        name: {leaf: initializer.shape for leaf, initializer in leaves.items()}
        for name, leaves in initializers(config).items()
    }


def resize(
    config: PredNetConfig, params: dict, *, height: int, width: int
) -> tuple[PredNetConfig, dict]:
    """Returns a network and its parameters for frames of another size.

    The filters stay as they are. The peepholes of `watanabe`, `[3, H, W, R]`, are the
    only parameters whose shape depends on the size; they are interpolated linearly. The
    network has learned motion in pixels a frame, so train it further if your frames
    are much larger. A height or width that its layers cannot halve is a UserError, as
    is a network that is no PredNet.
    """
    expect(isinstance(config, PredNetConfig), "config", config, "a PredNetConfig")
    resized = dataclasses.replace(config, height=height, width=width)
    shapes = parameter_shapes(resized)

    def fitted(path: tuple, leaf: jax.Array) -> jax.Array:
        shape = shapes[path[0].key][path[1].key]
        return leaf if leaf.shape == shape else jax.image.resize(leaf, shape, "linear")

    return resized, jax.tree_util.tree_map_with_path(fitted, params)


def first_not_finite(tree: Any) -> str | None:
    """Returns the name of the first tensor with NaN or infinity, or None."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not np.isfinite(np.asarray(leaf)).all():
            return jax.tree_util.keystr(path, simple=True, separator="/")
    return None
