"""XLA's convolution, and several neighbouring outputs at once: `direct` and `wide4`.

m outputs that lie side by side are further channels of one output: the kernel at m
neighbouring places is a `[k, k + m - 1, in, m out]` kernel of stride m. That takes more
multiplications, by (k + m - 1)/k, but the matrix product is wide enough for the
processor's registers where channels are few.

The filter gradient gains as well: one product of the neighbourhoods of m outputs, k
rows of k + m - 1 pixels, with the m outputs side by side. A pixel is copied
k (k + m - 1)/m times instead of k k. `direct` is XLA's convolution with this filter
gradient for m = 2; `im2col` has it for m = 1.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from prednet_jax.models.convolution.algorithm import by_turning, contract, convolve


def _widen(kernel: jax.Array, m: int) -> jax.Array:
    """The kernel at m neighbouring places: `[k, k + m - 1, in, m out]`."""
    places = [
        jnp.pad(kernel, ((0, 0), (i, m - 1 - i), (0, 0), (0, 0))) for i in range(m)
    ]
    return jnp.concatenate(places, axis=-1)


def _wide(x: jax.Array, kernel: jax.Array, m: int) -> jax.Array:
    """Convolves with a kernel of `_widen`, m outputs along the width at a step."""
    b, height, width, _ = x.shape
    reach = kernel.shape[0] // 2
    beyond = -width % m
    y = convolve(x, kernel, ((reach, reach), (reach, reach + beyond)), (1, m))
    return y.reshape(b, height, width + beyond, -1)[:, :, :width]


def wide_filter_gradient(
    x: jax.Array, dz: jax.Array, filter_size: int, m: int
) -> jax.Array:
    """The gradient of `_widen`'s kernel, its m places summed: `[k, k, Ci, Co]`."""
    k, reach = filter_size, filter_size // 2
    if k == 1:
        m = 1  # A 1x1 neighbourhood has nothing to share.
    images, height, width, inputs = x.shape
    blocks = -(-width // m)
    beyond = blocks * m - width
    # A neighbourhood begins with a block of m pixels and ends in one of those after it.
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
    """XLA's own, the transpose of its convolution."""
    shape = (filter_size, filter_size, x.shape[-1], dz.shape[-1])
    kernel = jax.ShapeDtypeStruct(shape, x.dtype)
    (gradient,) = jax.linear_transpose(lambda k: convolve(x, k), kernel)(dz)
    return gradient


XLA = by_turning(convolve, _xla_filter_gradient, in_chunks=False)
DIRECT = by_turning(convolve, partial(wide_filter_gradient, m=2))
WIDE4 = by_turning(
    partial(_wide, m=4),
    partial(wide_filter_gradient, m=4),
    transform=partial(_widen, m=4),
)
