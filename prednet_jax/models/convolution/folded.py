"""The x2 enlargement of the input folded into the kernel: `folded`.

A 3x3 convolution of the nearest-neighbour enlargement equals four 2x2 convolutions of
the small map, one per phase of the output (even or odd row, even or odd column): 4
multiplications per output instead of 9. The filter gradient is minimal filtering
(`winograd.ENLARGED`).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from prednet_jax.models.convolution import winograd
from prednet_jax.models.convolution.algorithm import Algorithm, Transformed, convolve


def _phases(kernel: Float[Array, "3 3 Ci Co"]) -> list[list[Float[Array, "2 2 Ci Co"]]]:
    """The 2x2 kernels of the four phases of a convolved enlargement.

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
    """The kernel of the input gradient.

    Along one axis dh[y] = g2 dz[2y-1] + (g1 + g2) dz[2y] + (g0 + g1) dz[2y+1]
    + g0 dz[2y+2].
    """
    turned = kernel.swapaxes(2, 3)

    def widen(g: jax.Array) -> jax.Array:
        return jnp.stack([g[2], g[1] + g[2], g[0] + g[1], g[0]])

    return widen(widen(turned).swapaxes(0, 1)).swapaxes(0, 1)


def _transform(kernel: jax.Array, backward: bool) -> Transformed:
    return _backward_kernel(kernel) if backward else _phases(kernel)


def _forward(
    x: Float[Array, "B H W Ci"], kernel: Sequence[Sequence[jax.Array]]
) -> Float[Array, "B 2H 2W Co"]:
    """Convolves the enlargement of x phase by phase, without making it."""
    batch, height, width, _ = x.shape
    y = jnp.stack(
        [
            jnp.stack(
                [convolve(x, k, ((1 - p, p), (1 - q, q))) for q, k in enumerate(row)],
                3,
            )
            for p, row in enumerate(kernel)
        ],
        2,
    )
    return y.reshape(batch, 2 * height, 2 * width, y.shape[-1])


def _input_gradient(
    dz: Float[Array, "B 2H 2W Co"], kernel: Float[Array, "4 4 Co Ci"]
) -> Float[Array, "B H W Ci"]:
    """One convolution of stride 2."""
    return convolve(dz, kernel, ((1, 1), (1, 1)), (2, 2))


def _filter_gradient(
    x: Float[Array, "N H W Ci"], dz: Float[Array, "N 2H 2W Co"], filter_size: int
) -> Float[Array, "3 3 Ci Co"]:
    del filter_size
    x, dz = lax.optimization_barrier((x, dz))
    return winograd.filter_gradient(x, dz, winograd.ENLARGED)


FOLDED = Algorithm(
    transform=_transform,
    forward=_forward,
    input_gradient=_input_gradient,
    filter_gradient=_filter_gradient,
    only_3x3=True,
    enlarges=True,
)
