"""Which convolutions a network has, and how a scan over time runs them.

The gates of a layer see the layer above through up(h), the nearest-neighbour x2
enlargement. Those convolutions are marked `upsampled`: their input arrives at half the
size, so that an algorithm may fold the enlargement into the kernel, since
conv(up(h), K) is four 2x2 convolutions of h, one for each phase of the output, 16 taps
at a quarter of the pixels instead of 9 at all of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """One convolution of the network: odd filter, stride 1, zero 'same' padding.

    Attributes:
        height: rows of the output map.
        width: columns of the output map.
        in_channels: channels of the input.
        out_channels: channels of the output.
        filter_size: odd k of the k x k kernel.
        upsampled: the input comes at half height and width and is enlarged first.
        algorithm: one of `config.CONVOLUTIONS`.
    """

    height: int
    width: int
    in_channels: int
    out_channels: int
    filter_size: int
    upsampled: bool = False
    algorithm: str = "auto"


def upsample(x: jax.Array) -> jax.Array:
    """Nearest-neighbour x2: `[B, H, W, C]` -> `[B, 2H, 2W, C]`."""
    b, h, w, c = x.shape
    x = jnp.broadcast_to(x[:, :, None, :, None, :], (b, h, 2, w, 2, c))
    return x.reshape(b, 2 * h, 2 * w, c)


def convolve(kernel: jax.Array, plan: Convolution, x: jax.Array) -> jax.Array:
    """Convolves `[B, H, W, in]` (half of H and W where upsampled) as planned."""
    if plan.upsampled:
        x = upsample(x)
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def unroll(
    body: Callable,
    kernels: Mapping[str, jax.Array],
    others: Any,
    carry: Any,
    xs: Any,
    *,
    convolutions: Mapping[str, Convolution],
) -> tuple[Any, Any]:
    """Scans `body(conv, others, carry, x) -> (carry, y)` over xs's leading axis."""

    def conv(name: str, x: jax.Array) -> jax.Array:
        return convolve(kernels[name], convolutions[name], x)

    return jax.lax.scan(lambda c, x: body(conv, others, c, x), carry, xs)
