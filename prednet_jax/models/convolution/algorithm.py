"""The interface of a convolution algorithm, and pieces that several of them share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

# A kernel in the form that its algorithm works with: an array, or a tree of arrays.
Transformed = Any


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One way to compute a convolution and its two gradients.

    Attributes:
      transform: `transform(kernel, backward)` prepares a kernel for `forward`, or if
        `backward` for `input_gradient`.
      forward: `forward(x, transformed)` is the output `[B, H, W, Co]`.
      input_gradient: `input_gradient(dz, transformed)`, `[B, H, W, Ci]`.
      filter_gradient: `filter_gradient(x, dz, k)`, `[k, k, Ci, Co]`, summed over images
        and space.
      only_3x3: whether it works for filter size 3 only.
      enlarges: whether x is the input of an upsampled convolution before its x2
        enlargement; `input_gradient` then returns the gradient of that x.
      in_chunks: whether a long filter gradient is summed over chunks of images.
    """

    transform: Callable[[jax.Array, bool], Transformed]
    forward: Callable[[jax.Array, Transformed], jax.Array]
    input_gradient: Callable[[jax.Array, Transformed], jax.Array]
    filter_gradient: Callable[[jax.Array, jax.Array, int], jax.Array]
    only_3x3: bool = False
    enlarges: bool = False
    in_chunks: bool = True


def by_turning(
    forward: Callable[[jax.Array, Transformed], jax.Array],
    filter_gradient: Callable[[jax.Array, jax.Array, int], jax.Array],
    transform: Callable[[jax.Array], Transformed] = lambda kernel: kernel,
    **properties: bool,
) -> Algorithm:
    """An algorithm whose input gradient is its own `forward`, applied to dz.

    For that the kernel is turned by 180 degrees, with its input and output channels
    exchanged.
    """

    def either(kernel: jax.Array, backward: bool) -> Transformed:
        return transform(kernel[::-1, ::-1].swapaxes(2, 3) if backward else kernel)

    return Algorithm(
        transform=either,
        forward=forward,
        input_gradient=forward,
        filter_gradient=filter_gradient,
        **properties,
    )


def of_enlarged(algorithm: Algorithm) -> Algorithm:
    """The same algorithm, applied to the nearest-neighbour x2 enlargement of x."""

    def input_gradient(dz: jax.Array, kernel: Transformed) -> jax.Array:
        dx = algorithm.input_gradient(dz, kernel)
        b, h, w, c = dx.shape
        return dx.reshape(b, h // 2, 2, w // 2, 2, c).sum((2, 4))

    return Algorithm(
        transform=algorithm.transform,
        forward=lambda x, kernel: algorithm.forward(upsample(x), kernel),
        input_gradient=input_gradient,
        filter_gradient=lambda x, dz, k: algorithm.filter_gradient(upsample(x), dz, k),
        enlarges=True,
        in_chunks=algorithm.in_chunks,
    )


def upsample(x: Float[Array, "B H W C"]) -> Float[Array, "B 2H 2W C"]:
    """Nearest-neighbour x2 enlargement."""
    b, h, w, c = x.shape
    x = jnp.broadcast_to(x[:, :, None, :, None, :], (b, h, 2, w, 2, c))
    return x.reshape(b, 2 * h, 2 * w, c)


def convolve(
    x: jax.Array,
    kernel: jax.Array,
    padding: str | Sequence[tuple[int, int]] = "SAME",
    strides: tuple[int, int] = (1, 1),
) -> jax.Array:
    """XLA's own convolution, `[B, H, W, Ci]` with `[kh, kw, Ci, Co]`."""
    return lax.conv_general_dilated(
        x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def contract(a: Float[Array, "*n I"], b: Float[Array, "*n O"]) -> Float[Array, "I O"]:
    """Sums the outer products of channels over every other axis."""
    a, b = a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1])
    return lax.dot_general(a, b, (((0,), (0,)), ((), ())))
