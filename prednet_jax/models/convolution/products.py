"""Convolution as matrix products over shifted maps: `im2col` and `shifted`.

`im2col` is one matrix product, of neighbourhoods of k k C values with the whole kernel
(Chellapilla, Puri & Simard 2006; Caffe and Chainer do this). `shifted` adds k k
products over C values, one per tap of the kernel.
"""

from functools import partial

import jax
import jax.numpy as jnp

from prednet_jax.models.convolution.algorithm import by_turning, contract
from prednet_jax.models.convolution.wide import wide_filter_gradient


def _shifts(x: jax.Array, filter_size: int) -> list[jax.Array]:
    """The k k shifted, zero-padded copies of the maps, in the order of the taps."""
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
    products = [
        jnp.einsum("bhwi,io->bhwo", v, t) for v, t in zip(views, taps, strict=True)
    ]
    return sum(products[1:], products[0])


def _shifted_filter_gradient(
    x: jax.Array, dz: jax.Array, filter_size: int
) -> jax.Array:
    products = [contract(v, dz) for v in _shifts(x, filter_size)]
    shape = (filter_size, filter_size, x.shape[-1], dz.shape[-1])
    return jnp.stack(products).reshape(shape)


IM2COL = by_turning(_im2col, partial(wide_filter_gradient, m=1))
SHIFTED = by_turning(_shifted, _shifted_filter_gradient)
