"""The interface of a convolution algorithm, and the plain algorithms.

m outputs that lie side by side can be computed as further channels of one output: the
kernel, placed at m neighbouring pixels, becomes a `[k, k + m - 1, in, m out]` kernel of
stride m. This takes (k + m - 1)/k times as many multiplications, but with few channels
only such a wide matrix product fills the processor's registers. The filter gradient can
do the same: one product of the neighbourhoods of m outputs together, k rows of
k + m - 1 pixels, with the m outputs. `direct` is XLA's convolution with this filter
gradient for m = 2; `im2col` uses it with m = 1.

Source of `im2col`: Chellapilla, Puri & Simard 2006; Caffe and Chainer do this.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from prednet_jax.models.products import sum_dtype

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
    """Returns an algorithm whose input gradient is its own `forward`, applied to dz.

    For the input gradient the kernel is rotated by 180 degrees, and its input and
    output channels are exchanged.
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
    """Returns the algorithm applied to the nearest-neighbour x2 enlargement of x."""

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
    """Enlarges maps x2 by nearest neighbours."""
    b, h, w, c = x.shape
    x = jnp.broadcast_to(x[:, :, None, :, None, :], (b, h, 2, w, 2, c))
    return x.reshape(b, 2 * h, 2 * w, c)


def convolve(
    x: jax.Array,
    kernel: jax.Array,
    padding: str | Sequence[tuple[int, int]] = "SAME",
    strides: tuple[int, int] = (1, 1),
) -> jax.Array:
    """Computes XLA's own convolution, `[B, H, W, Ci]` with `[kh, kw, Ci, Co]`."""
    return lax.conv_general_dilated(
        x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def contract(a: Float[Array, "*n I"], b: Float[Array, "*n O"]) -> Float[Array, "I O"]:
    """Sums the outer products of channels over every other axis."""
    a, b = a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1])
    axes = (((0,), (0,)), ((), ()))
    return lax.dot_general(a, b, axes, preferred_element_type=sum_dtype(a.dtype))


def _widen(kernel: jax.Array, m: int) -> jax.Array:
    """Places the kernel at m neighbouring pixels: `[k, k + m - 1, in, m out]`."""
    places = [
        jnp.pad(kernel, ((0, 0), (i, m - 1 - i), (0, 0), (0, 0))) for i in range(m)
    ]
    return jnp.concatenate(places, axis=-1)


def _wide(x: jax.Array, kernel: jax.Array, m: int) -> jax.Array:
    """Convolves with a kernel of `_widen`: m outputs along the width per stride."""
    b, height, width, _ = x.shape
    reach = kernel.shape[0] // 2
    beyond = -width % m
    y = convolve(x, kernel, ((reach, reach), (reach, reach + beyond)), (1, m))
    return y.reshape(b, height, width + beyond, -1)[:, :, :width]


def wide_filter_gradient(
    x: jax.Array, dz: jax.Array, filter_size: int, m: int
) -> jax.Array:
    """Computes the filter gradient `[k, k, Ci, Co]` for m outputs together."""
    k, reach = filter_size, filter_size // 2
    if k == 1:
        m = 1  # The neighbourhoods of a 1x1 kernel do not overlap.
    images, height, width, inputs = x.shape
    blocks = -(-width // m)
    beyond = blocks * m - width
    # A neighbourhood begins with a block of m pixels and ends `after` blocks later.
    after = -(-(k - 1) // m)
    end = after * m + beyond - reach
    x = lax.pad(
        x,
        jnp.zeros((), x.dtype),
        ((0, 0, 0), (reach, reach, 0), (reach, end, 0), (0, 0, 0)),
    ).reshape(images, height + 2 * reach, blocks + after, m * inputs)
    columns = [
        x[:, :, i : i + blocks, : min(m, k + m - 1 - i * m) * inputs]
        for i in range(after + 1)
    ]
    rows = jnp.concatenate(columns, -1)
    neighbourhoods = jnp.concatenate([rows[:, i : i + height] for i in range(k)], -1)
    dz = jnp.pad(dz, ((0, 0), (0, 0), (0, beyond), (0, 0)))
    dz = dz.reshape(images, height, blocks, -1)
    wide = contract(neighbourhoods, dz)
    wide = wide.reshape(k, k + m - 1, inputs, m, -1)
    places = [wide[:, i : i + k, :, i] for i in range(m)]
    return sum(places[1:], places[0])


def _xla_filter_gradient(x: jax.Array, dz: jax.Array, filter_size: int) -> jax.Array:
    """Computes XLA's own filter gradient, the transpose of its convolution."""
    shape = (filter_size, filter_size, x.shape[-1], dz.shape[-1])
    kernel = jax.ShapeDtypeStruct(shape, x.dtype)
    (gradient,) = jax.linear_transpose(lambda k: convolve(x, k), kernel)(dz)
    return gradient


def _shifts(x: jax.Array, filter_size: int) -> list[jax.Array]:
    """Returns the k k shifted, zero-padded copies of the maps, in tap order."""
    reach = filter_size // 2
    _, height, width, _ = x.shape
    padded = jnp.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)))
    return [
        padded[:, i : i + height, j : j + width]
        for i in range(filter_size)
        for j in range(filter_size)
    ]


def _im2col(x: jax.Array, kernel: jax.Array) -> jax.Array:
    views = _shifts(x, kernel.shape[0])
    flat = kernel.reshape(-1, kernel.shape[-1])
    return jnp.einsum("bhwi,io->bhwo", jnp.concatenate(views, -1), flat)


def _shifted(x: jax.Array, kernel: jax.Array) -> jax.Array:
    views = _shifts(x, kernel.shape[0])
    taps = kernel.reshape(-1, *kernel.shape[2:])
    product = partial(
        jnp.einsum, "bhwi,io->bhwo", preferred_element_type=sum_dtype(x.dtype)
    )
    products = [product(v, t) for v, t in zip(views, taps, strict=True)]
    return sum(products[1:], products[0])


def _shifted_filter_gradient(
    x: jax.Array, dz: jax.Array, filter_size: int
) -> jax.Array:
    products = [contract(v, dz) for v in _shifts(x, filter_size)]
    shape = (filter_size, filter_size, x.shape[-1], dz.shape[-1])
    return jnp.stack(products).reshape(shape)


XLA = by_turning(convolve, _xla_filter_gradient, in_chunks=False)
DIRECT = by_turning(convolve, partial(wide_filter_gradient, m=2))
WIDE4 = by_turning(
    partial(_wide, m=4),
    partial(wide_filter_gradient, m=4),
    transform=partial(_widen, m=4),
)
IM2COL = by_turning(_im2col, partial(wide_filter_gradient, m=1))
SHIFTED = by_turning(_shifted, _shifted_filter_gradient)
