r"""PredNet's weights on a saddle that comes from a symmetry: every channel has a twin.

Equal hidden units (twins) have equal gradients, so in exact arithmetic gradient
descent, momentum and Adam keep them equal for ever (Fukumizu and Amari, Neural Networks
13(3), 2000). Let s exchange the twins, channel i with channel i + n/2, in all paired
layers at once: in all even widths but the frame's own channels. With W the weights and
f the loss,

    f(s W) = f(W),   s s W = W,   grad f (s W) = s grad f (W).

W = s W is the symmetric start. A kernel from paired channels to paired channels then
has four blocks [[P, Q], [Q, P]], and f depends on P + Q only. Two kinds of blocks,
which training keeps, give the same function but different arithmetic:

    equal     P = Q: a unit adds the same terms as its twin, in the same order. If a
              program rounds all columns alike, twins stay equal bit for bit.
    mirrored  P != Q: a unit adds the same terms as its twin in another order, so
              rounding separates the twins.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from prednet_jax import errors
from prednet_jax.config import PredNetConfig

BLOCKS = ("equal", "mirrored")
Params = Mapping[str, Mapping[str, jax.Array]]


def exchange(params: Params, config: PredNetConfig) -> dict:
    """The weights with all twins exchanged; the network computes the same."""

    def exchanged(x: jax.Array, orders: dict[int, np.ndarray]) -> jax.Array:
        for axis, order in orders.items():
            x = jnp.take(x, order, axis=axis)
        return x

    return _mapped(exchanged, params, config)


def symmetrise(params: Params, config: PredNetConfig, *, blocks: str = "equal") -> dict:
    """Makes the channels of every pair twins, bit for bit.

    Both get the incoming weights of the first, and the mean of both outgoing ones, so
    that the inputs of the next layer keep their variance. Twins keep their bits. With
    `blocks` `mirrored`, D is added to the blocks P and -D to the blocks Q of kernels
    between paired channels, with D the part of `params` that has these signs.
    """
    errors.one_of("blocks", blocks, BLOCKS)

    def paired(x: jax.Array, orders: dict[int, np.ndarray]) -> jax.Array:
        *inputs, (last, outputs) = orders.items()
        y = jnp.take(x, np.minimum(outputs, np.arange(len(outputs))), axis=last)
        for axis, order in inputs:
            # Addition commutes: both twins get the same bits.
            y = (y + jnp.take(y, order, axis=axis)) * jnp.asarray(0.5, x.dtype)
            if blocks == "mirrored":
                other = jnp.take(x, order, axis=axis)
                whole = x + jnp.take(other, outputs, axis=last)
                half = other + jnp.take(x, outputs, axis=last)
                y = y + (whole - half) * jnp.asarray(0.25, x.dtype)
        return y

    return _mapped(paired, params, config)


def split(params: Params, config: PredNetConfig, delta: float, key: jax.Array) -> dict:
    """Moves twins apart: w becomes w (1 + delta u), with opposite u for the two twins.

    u is standard normal apart from that, and zero for weights that the exchange does
    not move; the key is consumed for it. With `delta`, from 0 to below 1, the asymmetry
    becomes about 2 delta. 1e-8 changes only the few weights with |u| above 3.
    """
    if not 0 <= delta < 1:
        raise errors.UserError(f"delta={delta!r}: expected a number from 0 to below 1")
    params = {name: dict(group) for name, group in params.items()}
    flat, unravel = ravel_pytree(jax.tree.map(lambda x: x.astype(jnp.float32), params))
    u = unravel(jax.random.normal(key, flat.shape, jnp.float32))

    def moved(x: jax.Array, u: jax.Array, other: jax.Array) -> jax.Array:
        # In double precision on the host: 1 + 1e-8 u is 1 in float32.
        opposite = (np.asarray(u, np.float64) - np.asarray(other)) / np.sqrt(2.0)
        return jnp.asarray((np.asarray(x) * (1.0 + delta * opposite)).astype(x.dtype))

    return jax.tree.map(moved, params, u, exchange(u, config))


def asymmetry(params: Params, config: PredNetConfig) -> jax.Array:
    """Norm of (weights - exchanged weights) over the norm of the weights, a scalar.

    It is 0 for twins, and about sqrt(2) for independent weights that are all paired.
    """
    other = exchange(params, config)
    away = jax.tree.map(lambda a, b: jnp.sum(jnp.square(a - b)), dict(params), other)
    whole = jax.tree.map(lambda a: jnp.sum(jnp.square(a)), dict(params))
    return jnp.sqrt(sum(jax.tree.leaves(away)) / sum(jax.tree.leaves(whole)))


def unequal(params: Params, config: PredNetConfig) -> jax.Array:
    """How many weights differ from their exchanged weights; this cannot underflow."""
    other = exchange(params, config)
    counts = jax.tree.map(lambda a, b: jnp.sum(a != b, dtype=jnp.int32), params, other)
    return sum(jax.tree.leaves(counts), jnp.zeros((), jnp.int32))


def _mapped(function: Callable, params: Params, config: PredNetConfig) -> dict:
    return jax.tree.map_with_path(
        lambda path, x: function(x, _orders(config, *(entry.key for entry in path))),
        dict(params),
    )


def _orders(config: PredNetConfig, group: str, leaf: str) -> dict[int, np.ndarray]:
    """The axes of a parameter that hold channels, with the permutation along each.

    The output channels, the last axis of every leaf, come last.
    """
    kind, number = group.rsplit("_", 1)
    layer = int(number)

    def order(width: int) -> np.ndarray:
        return np.roll(np.arange(width), width // 2 if width % 2 == 0 else 0)

    def features(layer: int) -> np.ndarray:
        width = config.channels[layer]
        return order(width) if layer else np.arange(width)

    own, both_errors = order(config.recurrent[layer]), [features(layer)] * 2
    if leaf == "peephole":
        return {3: own}
    if kind == "gates":
        inputs, outputs = [own, *both_errors], [own] * 4
    elif kind == "top_down":
        inputs, outputs = [order(config.recurrent[layer + 1])], [own] * 4
    elif kind == "prediction":
        inputs, outputs = [own], [features(layer)]
    else:
        inputs, outputs = both_errors, [features(layer + 1)]
    if leaf == "bias":
        return {0: _side_by_side(outputs)}
    return {2: _side_by_side(inputs), 3: _side_by_side(outputs)}


def _side_by_side(orders: list[np.ndarray]) -> np.ndarray:
    """One permutation for several concatenated blocks of channels."""
    starts = np.cumsum([0, *map(len, orders[:-1])])
    return np.concatenate([o + start for o, start in zip(orders, starts, strict=True)])
