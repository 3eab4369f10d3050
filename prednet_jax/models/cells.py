"""The parts of PredNet between its convolutions, as functions of whole maps.

The cell with peepholes and the pooling have custom reverse rules that keep only what
the gradient needs, since back-propagation through time stores it for every frame.
Forward mode over reverse mode works; forward mode alone does not.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def lstm(
    gates: Float[Array, "B H W 4R"],
    cell: Float[Array, "B H W R"],
    peephole: Float[Array, "3 H W R"] | None,
    convolved: Float[Array, "B H W 3R"] | None = None,
) -> tuple[Float[Array, "B H W R"], Float[Array, "B H W R"]]:
    """The elementwise part of the three ConvLSTM cells; the new hidden state and cell.

    With peepholes (`watanabe`): logistic gates; each of i, f, o sees the old cell.
    With the cell convolved (the PyTorch ports): the same, but of all the cells around.
    Without (`lotter`): gates with Keras's hard sigmoid, clip(0.2 x + 0.5, 0, 1).

    The pre-activations `gates` are in the order i, f, o, g; `convolved` is the old
    cell's part in i, f and o.
    """
    if peephole is not None:
        return _peephole_lstm(gates, cell, peephole)
    i, f, o, g = jnp.split(gates, 4, axis=-1)
    if convolved is None:
        i, f, o = hard_sigmoid(i), hard_sigmoid(f), hard_sigmoid(o)
    else:
        of_cell = jnp.split(convolved, 3, axis=-1)
        i, f, o = (
            jax.nn.sigmoid(x + y) for x, y in zip((i, f, o), of_cell, strict=True)
        )
    cell = f * cell + i * jnp.tanh(g)
    return o * jnp.tanh(cell), cell


@jax.custom_vjp
def _peephole_lstm(gates, cell, peephole):
    return _peephole_lstm_fwd(gates, cell, peephole)[0]


def _peephole_lstm_fwd(gates, cell, peephole):
    i, f, o, g = jnp.split(gates, 4, axis=-1)
    i = jax.nn.sigmoid(i + peephole[0] * cell)
    f = jax.nn.sigmoid(f + peephole[1] * cell)
    o = jax.nn.sigmoid(o + peephole[2] * cell)
    g = jnp.tanh(g)
    new = f * cell + i * g
    squashed = jnp.tanh(new)
    return (o * squashed, new), (i, f, o, g, squashed, cell, peephole)


def _peephole_lstm_bwd(residuals, cotangents):
    i, f, o, g, squashed, cell, peephole = residuals
    d_hidden, d_new = cotangents
    d_new = d_new + d_hidden * o * (1 - squashed * squashed)
    # Gradients of the pre-activations, with sigmoid' = s (1 - s), tanh' = 1 - t^2.
    d_i = d_new * g * (i * (1 - i))
    d_f = d_new * cell * (f * (1 - f))
    d_o = d_hidden * squashed * (o * (1 - o))
    d_g = d_new * i * (1 - g * g)
    d_cell = d_new * f + d_i * peephole[0] + d_f * peephole[1] + d_o * peephole[2]
    d_peephole = jnp.stack([(d * cell).sum(0) for d in (d_i, d_f, d_o)])
    return jnp.concatenate([d_i, d_f, d_o, d_g], axis=-1), d_cell, d_peephole


_peephole_lstm.defvjp(_peephole_lstm_fwd, _peephole_lstm_bwd)


def hard_sigmoid(x: jax.Array) -> jax.Array:
    """Keras 2's hard sigmoid, clip(0.2 x + 0.5, 0, 1); that of jax.nn differs."""
    y = 0.2 * x + 0.5
    # At its bounds Keras's clip passes the whole gradient; jnp.clip halves it.
    return jnp.where(y < 0, 0.0, jnp.where(y > 1, 1.0, y))


def clip_above(x: jax.Array, bound: float) -> jax.Array:
    """min(x, bound); at equality x gets the whole gradient (jnp.minimum halves it)."""
    return jnp.where(x <= bound, x, jnp.asarray(bound, x.dtype))


@jax.custom_vjp
def max_pool(x: Float[Array, "B H W C"]) -> Float[Array, "B H/2 W/2 C"]:
    """2x2 maxima; at a tie the first maximum (row-major) gets the whole gradient.

    NaN where one of the four is. The four strided views are compared: the gradient of
    `reduce_window` is nondeterministic on GPUs and slow on CPUs.
    """
    return _max_pool_fwd(x)[0]


def _max_pool_fwd(x):
    views = [x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
    largest, place = views[0], jnp.zeros(views[0].shape, jnp.uint8)
    for i, view in enumerate(views[1:], 1):
        # Not `view > largest`: a NaN has to replace a number, never the reverse.
        greater = ~(largest >= view) & (largest == largest)
        largest = jnp.where(greater, view, largest)
        place = jnp.where(greater, jnp.uint8(i), place)
    return largest, place


def _max_pool_bwd(place, dy):
    b, h, w, c = dy.shape
    here = jnp.arange(4, dtype=jnp.uint8).reshape(2, 1, 2, 1)
    place, dy = (a[:, :, None, :, None] for a in (place, dy))
    dx = jnp.where(place == here, dy, jnp.zeros((), dy.dtype))
    return (dx.reshape(b, 2 * h, 2 * w, c),)


max_pool.defvjp(_max_pool_fwd, _max_pool_bwd)
