"""Minimal filtering for 3x3 convolutions: `strip2`, `strip4`, `mixed` and `folded`.

F(m, 3) computes m outputs of a 3-tap correlation with m + 2 products instead of 3 m:

    y = A^T [ (G g) * (B^T d) ],   d: inputs, g: 3 taps, y: m outputs.

It is used along the width only: m + 2 convolutions with 3x1 kernels, fewer
multiplications by a factor of 1.5 (m = 2) or 2 (m = 4). Along both axes the transforms
would touch three times the memory, lose precision and take longer to compile.

The filter gradient is the transpose in the filter, along both axes,

    dg = G^T [(B^T d) * (A dy)] G,

one contraction over tiles and images. `strip2`, `strip4` and `mixed` use F(2, 3).

An input that is enlarged x2 by its nearest neighbours repeats every value. One of the
four products of F(2, 3) is then zero: with d = (a, b, b, c) the other three are
g0 (a - b), (g0 + g1 + g2) b and g2 (c - b), all computed from the small map
(`ENLARGED`). Along both axes 9 products replace 36 for 2x2 outputs.

`folded` makes of a 3x3 convolution of such an enlargement four 2x2 convolutions of the
small map, one per phase of the output (even or odd row, even or odd column): 4
multiplications per output instead of 9. Its filter gradient uses `ENLARGED`.

Source: Lavin & Gray, arXiv 1509.09308, section 4. `ENLARGED` is derived here.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from prednet_jax.models.convolution.algorithm import (
    Algorithm,
    by_turning,
    contract,
    convolve,
)


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


def _forward(
    x: Float[Array, "B H W Ci"], kernel: Sequence[Float[Array, "3 Ci Co"]], f: Filtering
) -> Float[Array, "B H W Co"]:
    """Convolves by f along the width and by XLA's convolution along the height."""
    # Without the barriers XLA computes the inputs of the transform (gates, errors)
    # again within each of its many outputs, and takes long to compile that.
    x = lax.optimization_barrier(x)
    batch, height, width, _ = x.shape
    products = [
        convolve(d, g[:, None], ((1, 1), (0, 0)))
        for d, g in zip(_input_tiles(x, 2, f), kernel, strict=True)
    ]
    y = jnp.stack(_combine(f.at, products), 3)
    y = y.reshape(batch, height, -1, y.shape[-1])[:, :, :width]
    return lax.optimization_barrier(y)


def _filter_gradient(
    x: Float[Array, "N H W Ci"],
    dz: Float[Array, "N H2 W2 Co"],
    filter_size: int,
    f: Filtering,
) -> Float[Array, "3 3 Ci Co"]:
    """Computes the kernel's gradient by `F2` or `ENLARGED`, product by product."""
    del filter_size
    x, dz = lax.optimization_barrier((x, dz))

    def paired(x: jax.Array, dz: jax.Array, axis: int) -> Iterator:
        inputs, outputs = _input_tiles(x, axis, f), f.at.shape[0]
        tiles = -(-dz.shape[axis] // outputs)
        blocks = _blocks(dz, axis, outputs, before=0, tiles=tiles)
        return zip(inputs, _combine(f.at.T, blocks), strict=True)

    products = [
        jnp.stack([contract(d, e) for d, e in paired(d_row, e_row, 2)])
        for d_row, e_row in paired(x, dz, 1)
    ]
    g = jnp.asarray(f.g, products[0].dtype)
    return jnp.einsum("lh,kj,lkio->hjio", g, g, jnp.stack(products))


def _strip(f: Filtering) -> Algorithm:
    return by_turning(
        partial(_forward, f=f),
        partial(_filter_gradient, f=F2),
        # Along the width, one array per product. They are not stacked: within a scan
        # every slice of a stack would be a copy per step.
        transform=lambda kernel: _combine(f.g, [kernel[:, j] for j in range(3)]),
        only_3x3=True,
    )


def _input_tiles(x: jax.Array, axis: int, f: Filtering) -> list[jax.Array]:
    """Computes B^T d: one array per product, whose `axis` runs over tiles."""
    tiles = -(-x.shape[axis] // f.stride)
    # Input j of a tile: how many tiles later it lies, and in which block.
    inputs = [divmod(j, f.stride) for j in range(f.bt.shape[1])]
    blocks = _blocks(x, axis, f.stride, before=1, tiles=tiles + inputs[-1][0])
    shifted = [lax.slice_in_dim(blocks[b], i, i + tiles, axis=axis) for i, b in inputs]
    return _combine(f.bt, shifted)


def _blocks(x: jax.Array, axis: int, m: int, before: int, tiles: int) -> list:
    """Pads `axis` with zeros to m * tiles; array j of m has entries j, j + m, ..."""
    pads = [(0, 0, 0)] * x.ndim
    # The padding at the end is negative where no tile needs the last entries.
    pads[axis] = (before, tiles * m - before - x.shape[axis], 0)
    shape = (*x.shape[:axis], tiles, m, *x.shape[axis + 1 :])
    x = lax.pad(x, jnp.zeros((), x.dtype), pads).reshape(shape)
    return [lax.index_in_dim(x, j, axis + 1, keepdims=False) for j in range(m)]


def _combine(matrix: np.ndarray, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Multiplies a matrix by a vector of arrays, as sums, so that XLA fuses rows."""
    rows = []
    for row in matrix:
        terms = [
            x if c == 1 else -x if c == -1 else float(c) * x
            for c, x in zip(row, arrays, strict=True)
            if c
        ]
        rows.append(sum(terms[1:], terms[0]))
    return rows


STRIP2, STRIP4 = _strip(F2), _strip(F4)
MIXED = by_turning(convolve, partial(_filter_gradient, f=F2), only_3x3=True)


def _phases(kernel: Float[Array, "3 3 Ci Co"]) -> list[list[Float[Array, "2 2 Ci Co"]]]:
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


def _backward_kernel(kernel: Float[Array, "3 3 Ci Co"]) -> Float[Array, "4 4 Co Ci"]:
    """Returns the kernel of the input gradient.

    Along one axis dh[y] = g2 dz[2y-1] + (g1 + g2) dz[2y] + (g0 + g1) dz[2y+1]
    + g0 dz[2y+2].
    """
    turned = kernel.swapaxes(2, 3)

    def widen(g: jax.Array) -> jax.Array:
        return jnp.stack([g[2], g[1] + g[2], g[0] + g[1], g[0]])

    return widen(widen(turned).swapaxes(0, 1)).swapaxes(0, 1)


def _folded_forward(
    x: Float[Array, "B H W Ci"], kernel: Sequence[Sequence[jax.Array]]
) -> Float[Array, "B 2H 2W Co"]:
    """Convolves the enlargement of x phase by phase, without making it."""
    batch, height, width, _ = x.shape
    rows = []
    for p, row in enumerate(kernel):
        phases = [convolve(x, k, ((1 - p, p), (1 - q, q))) for q, k in enumerate(row)]
        rows.append(jnp.stack(phases, 3))
    y = jnp.stack(rows, 2)
    return y.reshape(batch, 2 * height, 2 * width, y.shape[-1])


FOLDED = Algorithm(
    transform=lambda kernel, back: (_backward_kernel if back else _phases)(kernel),
    forward=_folded_forward,
    # dz [B 2H 2W Co] with kernel [4 4 Co Ci], of stride 2: [B H W Ci].
    input_gradient=partial(convolve, padding=((1, 1), (1, 1)), strides=(2, 2)),
    filter_gradient=partial(_filter_gradient, f=ENLARGED),
    only_3x3=True,
    enlarges=True,
)
