"""Minimal filtering for 3x3 convolutions: Winograd's F(m, 3), along one axis or both.

F(m, 3) gives m outputs of a 3-tap correlation from m + 2 products instead of 3 m:

    y = A^T [ (G g) * (B^T d) ],   d: inputs, g: 3 taps, y: m outputs.

Along both axes (`tile`) the products become (m + 2)^2 matrix products over channels, a
saving of 2.25 (m = 2) or 4 (m = 4). Along the width alone (`strip`) they become m + 2
convolutions with 3x1 kernels, a saving of 1.5 or 2: less arithmetic is saved, but the
transforms touch a third of the memory, lose less precision and compile faster.

A nearest-neighbour x2 enlarged input repeats every value, so that one of the four
products of F(2, 3) vanishes: with d = (a, b, b, c) the rest are g0 (a - b),
(g0 + g1 + g2) b and g2 (c - b), all at the small size (`ENLARGED`): 9 products instead
of 36 for 2x2 outputs.

The filter gradient is the transpose in the filter, dg = G^T [(B^T d) * (A dy)], a
contraction over tiles and frames at once.

Source: Lavin & Gray, Fast Algorithms for Convolutional Neural Networks,
arXiv 1509.09308, section 4. `ENLARGED` is derived here.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float


class Filtering(NamedTuple):
    """The matrices of one minimal filtering algorithm for 3 taps.

    Attributes:
      bt: `[products, inputs]`, input transform.
      g: `[products, 3]`, filter transform.
      at: `[outputs, products]`, output transform.
      stride: inputs between the first inputs of neighbouring tiles.
    """

    bt: np.ndarray
    g: np.ndarray
    at: np.ndarray
    stride: int


F2 = Filtering(
    bt=np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], float),
    g=np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]]) / 2,
    at=np.array([[1, 1, 1, 0], [0, 1, -1, -1]], float),
    stride=2,
)
F4 = Filtering(
    bt=np.array(
        [
            [4, 0, -5, 0, 1, 0],
            [0, -4, -4, 1, 1, 0],
            [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0],
            [0, 2, -1, -2, 1, 0],
            [0, 4, 0, -5, 0, 1],
        ],
        float,
    ),
    g=np.array(
        [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]
    )
    / 24,
    at=np.array(
        [
            [1, 1, 1, 1, 1, 0],
            [0, 1, -1, 2, -2, 0],
            [0, 1, 1, 4, 4, 0],
            [0, 1, -1, 8, -8, 1],
        ],
        float,
    ),
    stride=4,
)
ENLARGED = Filtering(
    bt=np.array([[1, -1, 0], [0, 1, 0], [0, -1, 1]], float),
    g=np.array([[1, 0, 0], [1, 1, 1], [0, 0, 1]], float),
    at=np.array([[1, 1, 0], [0, 1, 1]], float),
    stride=1,
)


def phases(
    kernel: Float[Array, "3 3 Ci Co"],
) -> list[list[Float[Array, "2 2 Ci Co"]]]:
    """Returns the 2x2 kernels of the four phases of a convolved enlargement.

    Along one axis out[2y] = g0 h[y-1] + (g1 + g2) h[y] and
    out[2y+1] = (g0 + g1) h[y] + g2 h[y+1].
    """

    def split(taps: Sequence[jax.Array]) -> list[jax.Array]:
        g0, g1, g2 = taps
        return [jnp.stack([g0, g1 + g2]), jnp.stack([g0 + g1, g2])]

    return [
        [half.swapaxes(0, 1) for half in split(list(rows.swapaxes(0, 1)))]
        for rows in split(list(kernel))
    ]


def enlarged(
    x: Float[Array, "B H W Ci"], kernel: Sequence[Sequence[jax.Array]]
) -> Float[Array, "B 2H 2W Co"]:
    """Convolves the x2 enlargement of x without making it.

    Args:
      x: input `[B, H, W, Ci]`; zero 'same' padding is implied.
      kernel: what `phases` returned.

    Returns:
      `[B, 2H, 2W, Co]`.
    """
    batch, height, width, _ = x.shape
    y = jnp.stack(
        [
            jnp.stack(
                [_convolve(x, k, ((1 - p, p), (1 - q, q))) for q, k in enumerate(row)],
                3,
            )
            for p, row in enumerate(kernel)
        ],
        2,
    )
    return y.reshape(batch, 2 * height, 2 * width, y.shape[-1])


def enlarged_backward(kernel: Float[Array, "3 3 Ci Co"]) -> Float[Array, "4 4 Co Ci"]:
    """Returns the kernel with which `enlarged_input_gradient` convolves.

    Along one axis dh[y] = g2 dz[2y-1] + (g1 + g2) dz[2y] + (g0 + g1) dz[2y+1]
    + g0 dz[2y+2].
    """
    turned = kernel.swapaxes(2, 3)

    def widen(g: jax.Array) -> jax.Array:
        return jnp.stack([g[2], g[1] + g[2], g[0] + g[1], g[0]])

    return widen(widen(turned).swapaxes(0, 1)).swapaxes(0, 1)


def enlarged_input_gradient(
    dz: Float[Array, "B 2H 2W Co"], kernel: Float[Array, "4 4 Co Ci"]
) -> Float[Array, "B H W Ci"]:
    """Returns the input gradient of `enlarged`: one convolution of stride 2."""
    return _convolve(dz, kernel, ((1, 1), (1, 1)), stride=2)


def transform_strip(
    kernel: Float[Array, "3 3 Ci Co"], f: Filtering
) -> list[Float[Array, "3 Ci Co"]]:
    """Returns the kernel transformed along the width, an array for each product.

    Separate arrays, not a stack: within a scan a slice of a stack is a copy a step.
    """
    return _combine(f.g, [kernel[:, j] for j in range(3)])


def transform_tile(
    kernel: Float[Array, "3 3 Ci Co"], f: Filtering
) -> list[list[Float[Array, "Ci Co"]]]:
    """Returns the kernel transformed along both axes: by height, then by width."""
    half = _combine(f.g, list(kernel))
    return [_combine(f.g, [row[j] for j in range(3)]) for row in half]


def strip(
    x: Float[Array, "B H W Ci"], kernel: Sequence[Float[Array, "3 Ci Co"]], f: Filtering
) -> Float[Array, "B H W Co"]:
    """Convolves by f along the width and by XLA's convolution along the height.

    Args:
      x: input `[B, H, W, Ci]`; zero 'same' padding is implied.
      kernel: what `transform_strip` returned.
      f: `F2` or `F4`.

    Returns:
      `[B, H, W, Co]`.
    """
    batch, height, width, _ = x.shape
    products = [
        _convolve(d, g[:, None], ((1, 1), (0, 0)))
        for d, g in zip(_spread(x, 2, f), kernel, strict=True)
    ]
    y = jnp.stack(_combine(f.at, products), 3)
    return y.reshape(batch, height, -1, y.shape[-1])[:, :, :width]


def tile(
    x: Float[Array, "B H W Ci"], kernel: Sequence[Sequence[jax.Array]], f: Filtering
) -> Float[Array, "B H2 W2 Co"]:
    """Convolves by f along both axes: a matrix product over channels a product.

    Args:
      x: input `[B, H, W, Ci]`; zero 'same' padding is implied.
      kernel: what `transform_tile` returned.
      f: `F2` or `F4`.

    Returns:
      `[B, H, W, Co]`.
    """
    half = []
    for strips, g in zip(_spread(x, 1, f), kernel, strict=True):
        products = [
            jnp.einsum("bhwi,io->bhwo", d, g_ij)
            for d, g_ij in zip(_spread(strips, 2, f), g, strict=True)
        ]
        half.append(_combine(f.at, products))
    columns = [_combine(f.at, column) for column in zip(*half, strict=True)]
    y = jnp.stack([jnp.stack(row, 3) for row in zip(*columns, strict=True)], 2)
    return _merge(y, x, f)


def tile_filter_gradient(
    x: Float[Array, "N H W Ci"], dz: Float[Array, "N H2 W2 Co"], f: Filtering
) -> Float[Array, "3 3 Ci Co"]:
    """Returns the filter gradient of `tile`: one contraction over N and space."""
    products = [
        jnp.stack(
            [
                contract(d, e)
                for d, e in zip(_spread(d_i, 2, f), _gather(e_i, 2, f), strict=True)
            ]
        )
        for d_i, e_i in zip(_spread(x, 1, f), _gather(dz, 1, f), strict=True)
    ]
    g = _constant(f.g, x)
    return jnp.einsum("lh,kj,lkio->hjio", g, g, jnp.stack(products))


def contract(a: Float[Array, "*n I"], b: Float[Array, "*n O"]) -> Float[Array, "I O"]:
    """Sums the outer products of channels over every other axis."""
    a, b = a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1])
    return lax.dot_general(a, b, (((0,), (0,)), ((), ())))


def _convolve(
    x: jax.Array, kernel: jax.Array, padding: tuple, stride: int = 1
) -> jax.Array:
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def _spread(x: jax.Array, axis: int, f: Filtering) -> list[jax.Array]:
    """B^T d: arrays whose `axis` runs over tiles, one a product."""
    tiles = -(-x.shape[axis] // f.stride)
    inputs = f.bt.shape[1]
    blocks = _blocks(
        x, axis, f.stride, before=1, tiles=tiles + (inputs - 1) // f.stride
    )
    return _combine(
        f.bt,
        [
            lax.slice_in_dim(
                blocks[j % f.stride], j // f.stride, j // f.stride + tiles, axis=axis
            )
            for j in range(inputs)
        ],
    )


def _gather(dz: jax.Array, axis: int, f: Filtering) -> list[jax.Array]:
    """A dy: arrays whose `axis` runs over tiles, one a product."""
    outputs = f.at.shape[0]
    tiles = -(-dz.shape[axis] // outputs)
    return _combine(f.at.T, _blocks(dz, axis, outputs, before=0, tiles=tiles))


def _merge(y: jax.Array, x: jax.Array, f: Filtering) -> jax.Array:
    """Tiles `[B, th, m, tw, m, C]` to maps, without what stands over the border."""
    outputs = f.at.shape[0]
    scale = outputs // f.stride
    y = y.reshape(y.shape[0], y.shape[1] * outputs, y.shape[3] * outputs, y.shape[-1])
    return y[:, : x.shape[1] * scale, : x.shape[2] * scale]


def _blocks(x: jax.Array, axis: int, m: int, before: int, tiles: int) -> list:
    """Pads `axis` with zeros to m * tiles and returns each m-th entry, m arrays."""
    pads = [(0, 0, 0)] * x.ndim
    # Negative at the end where the last tile needs none of the last entries.
    pads[axis] = (before, tiles * m - before - x.shape[axis], 0)
    shape = (*x.shape[:axis], tiles, m, *x.shape[axis + 1 :])
    x = lax.pad(x, jnp.zeros((), x.dtype), pads).reshape(shape)
    return [lax.index_in_dim(x, j, axis + 1, keepdims=False) for j in range(m)]


def _combine(matrix: np.ndarray, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Matrix times a vector of arrays, written as sums: XLA fuses each row."""
    rows = []
    for row in matrix:
        terms = [
            x if c == 1 else -x if c == -1 else float(c) * x
            for c, x in zip(row, arrays, strict=True)
            if c
        ]
        rows.append(sum(terms[1:], terms[0]))
    return rows


def _constant(matrix: np.ndarray, like: jax.Array) -> jax.Array:
    return jnp.asarray(matrix, like.dtype)
