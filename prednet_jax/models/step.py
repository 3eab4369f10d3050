"""One frame of PredNet, in its published variants.

`lotter` (arXiv 1605.08104, eqs. 1-4; Keras code coxlab/prednet), at each frame x_t:
    top-down, l = L-1..0:  u = [R_l, E_l, up(R_{l+1})]
        i, f, o = hs(conv u), g = tanh(conv u), c = f c + i g, R = o tanh(c)
    bottom-up, A_0 = x_t:  Ahat_l = relu(conv R_l), Ahat_0 = min(Ahat_0, pixel_max)
        E_l = [relu(Ahat_l - A_l), relu(A_l - Ahat_l)], A_{l+1} = pool(relu(conv E_l))
with hs(x) = clip(0.2 x + 0.5, 0, 1). The prediction Ahat_0 is made before x_t is seen.

`watanabe` (Chainer code quadjr/PredNet), at each frame x_t:
    bottom-up, A_0 = x_t:  E_l = [relu(A_l - P_l), relu(P_l - A_l)],
        A_{l+1} = pool(relu(conv E_l))
    top-down, l = L-1..0:  z = conv [h_l, E_l] + conv up(h_{l+1})
        i, f, o = sigmoid(z + W_c c_l) (elementwise peepholes, all from the old c),
        g = tanh(z), c = f c + i g, h = o tanh(c), P_l = relu(conv h)
    P_0 = min(P_0, pixel_max) is the prediction of x_{t+1}.

`lotter_pytorch` (leido/pytorch-prednet) and `watanabe_pytorch` (the authors' port,
eijwat/prednet_in_pytorch) have the order above of that name, and, z as above,
    i, f, o = sigmoid(z + conv c_l) (a convolution in place of the peepholes),
    g = tanh(z), and A_{l+1} = pool(conv E_l), without a rectifier.

Parameters, `[k, k, in, out]` kernels, l the layer, four gates in the order i, f, o, g:
    gates_l       kernel over [h_l, E_l], bias [4 R], peephole [3, H, W, R] (watanabe)
    top_down_l    kernel over up(h_{l+1}); absent in the top layer
    cell_l        kernel over c_l, [3 R] for i, f, o; in the two ports only
    prediction_l  kernel, bias of P_l or Ahat_l
    features_l    kernel, bias of A_{l+1}; absent in the top layer

The cell with peepholes and the pooling have custom reverse rules that keep only what
the gradient needs, since back-propagation through time stores it for every frame.
Forward mode over reverse mode works; forward mode alone does not.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from prednet_jax.config import PredNetConfig

# A map, or several maps to be concatenated along their channels.
Maps = jax.Array | tuple[jax.Array, ...]
Params = Mapping[str, Mapping[str, jax.Array]]
Conv = Callable[[Mapping[str, Maps]], jax.Array]


class PredNetState(NamedTuple):
    """The state carried from frame to frame; each field has one map per layer.

    Attributes:
        hidden: R or h, `[B, H_l, W_l, R_l]`.
        cell: c, `[B, H_l, W_l, R_l]`.
        error: E, `[B, H_l, W_l, 2 C_l]`; `lotter` only, empty in `watanabe`.
        prediction: P, `[B, H_l, W_l, C_l]`; in `lotter` of the bottom layer only.
    """

    hidden: tuple[jax.Array, ...]
    cell: tuple[jax.Array, ...]
    error: tuple[jax.Array, ...]
    prediction: tuple[jax.Array, ...]


class StepOutputs(NamedTuple):
    """The quantities of the equations for one frame; each has one map per layer.

    hidden and error are as in the state; target is A, `[B, H_l, W_l, C_l]`; prediction
    is Ahat of this frame in `lotter`, and P of the next one in `watanabe`.
    """

    hidden: tuple[jax.Array, ...]
    target: tuple[jax.Array, ...]
    prediction: tuple[jax.Array, ...]
    error: tuple[jax.Array, ...]


def initial_state(
    config: PredNetConfig, batch: int, dtype: jnp.dtype = jnp.float32
) -> PredNetState:
    """Returns the state before the first frame of a sequence: all zero."""

    def zeros(widths: tuple[int, ...]) -> tuple[jax.Array, ...]:
        return tuple(
            jnp.zeros((batch, *config.size(layer), width), dtype)
            for layer, width in enumerate(widths)
        )

    lotter = config.pass_order == "lotter"
    return PredNetState(
        hidden=zeros(config.recurrent),
        cell=zeros(config.recurrent),
        error=zeros(tuple(2 * c for c in config.channels)) if lotter else (),
        prediction=zeros(config.channels[:1] if lotter else config.channels),
    )


def to_pixels(frames: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Converts frames to floating point in [0, 1]; uint8 is divided by 255."""
    if frames.dtype == jnp.uint8:
        return frames.astype(dtype) / jnp.asarray(255, dtype)
    return frames.astype(dtype)


def step(
    config: PredNetConfig,
    conv: Conv,
    others: Params,
    state: PredNetState,
    frame: Float[Array, "B H W C"],
) -> tuple[PredNetState, StepOutputs]:
    """Shows one frame `[B, H, W, C]`, pixels in [0, pixel_max], to the network.

    `conv({name: x, ...})` convolves each x, a map or several maps, with the kernel of
    that name and adds the results; `others` are the biases and peepholes.

    Returns the state after the frame, and every intermediate quantity.
    """
    if config.pass_order == "lotter":
        hidden, cell = _top_down(config, conv, others, state, state.error)
        predictions = _predictions(config, conv, others, hidden)
        targets, errors = _bottom_up(config, conv, others, predictions, frame)
        state = PredNetState(hidden, cell, errors, predictions[:1])
        return state, StepOutputs(hidden, targets, predictions, errors)
    targets, errors = _bottom_up(config, conv, others, state.prediction, frame)
    hidden, cell = _top_down(config, conv, others, state, errors)
    predictions = _predictions(config, conv, others, hidden)
    state = PredNetState(hidden, cell, (), predictions)
    return state, StepOutputs(hidden, targets, predictions, errors)


def _bottom_up(
    config: PredNetConfig,
    conv: Conv,
    others: Params,
    predictions: tuple[jax.Array, ...],
    frame: jax.Array,
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """Computes the targets A and errors E of every layer, bottom first."""
    targets, errors = [frame], []
    for layer in range(config.layers):
        above = jax.nn.relu(predictions[layer] - targets[layer])
        below = jax.nn.relu(targets[layer] - predictions[layer])
        # The two variants stack the halves in opposite order.
        halves = [above, below] if config.pass_order == "lotter" else [below, above]
        errors.append(jnp.concatenate(halves, axis=-1))
        if layer + 1 < config.layers:
            name = f"features_{layer}"
            features = conv({name: errors[layer]}) + others[name]["bias"]
            # relu(max) is max(relu), in value and gradient, for a quarter of the work.
            pooled = max_pool(features)
            targets.append(pooled if config.ported else jax.nn.relu(pooled))
    return tuple(targets), tuple(errors)


def _top_down(
    config: PredNetConfig,
    conv: Conv,
    others: Params,
    state: PredNetState,
    errors: tuple[jax.Array, ...],
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """Computes hidden states and cells of every layer, from the top down."""
    hidden, cells = list(state.hidden), list(state.cell)
    for layer in reversed(range(config.layers)):
        name = f"gates_{layer}"
        inputs: dict[str, Maps] = {name: (state.hidden[layer], errors[layer])}
        if layer + 1 < config.layers:
            inputs[f"top_down_{layer}"] = hidden[layer + 1]
        gates = conv(inputs) + others[name]["bias"]
        old = state.cell[layer]
        peephole = others[name].get("peephole")
        convolved = conv({f"cell_{layer}": old}) if config.ported else None
        hidden[layer], cells[layer] = lstm(gates, old, peephole, convolved)
    return tuple(hidden), tuple(cells)


def _predictions(
    config: PredNetConfig, conv: Conv, others: Params, hidden: tuple[jax.Array, ...]
) -> tuple[jax.Array, ...]:
    predictions = []
    for layer in range(config.layers):
        name = f"prediction_{layer}"
        prediction = jax.nn.relu(conv({name: hidden[layer]}) + others[name]["bias"])
        if layer == 0:
            prediction = clip_above(prediction, config.pixel_max)
        predictions.append(prediction)
    return tuple(predictions)


def lstm(
    gates: Float[Array, "B H W 4R"],
    cell: Float[Array, "B H W R"],
    peephole: Float[Array, "3 H W R"] | None,
    convolved: Float[Array, "B H W 3R"] | None = None,
) -> tuple[Float[Array, "B H W R"], Float[Array, "B H W R"]]:
    """Returns the new hidden state and cell: the elementwise part of the cells.

    With peepholes (`watanabe`) the gates are logistic, and each of i, f, o sees the old
    cell. With the cell convolved (the PyTorch ports) each gate also sees the
    neighbouring cells. Otherwise (`lotter`) the gates are Keras's hard sigmoid,
    clip(0.2 x + 0.5, 0, 1).

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
    d_gates = [d_i, d_f, d_o, d_g]
    if len(cell) > 1:
        # Else XLA computes each gate's gradient anew for every output of the sum over
        # the batch: a tenth of an update at 64x48.
        together = jax.lax.optimization_barrier(jnp.concatenate(d_gates, axis=-1))
        d_gates = jnp.split(together, 4, axis=-1)
    d_peephole = jnp.stack([(d * cell).sum(0) for d in d_gates[:3]])
    return jnp.concatenate(d_gates, axis=-1), d_cell, d_peephole


_peephole_lstm.defvjp(_peephole_lstm_fwd, _peephole_lstm_bwd)


def hard_sigmoid(x: jax.Array) -> jax.Array:
    """Keras 2's hard sigmoid, clip(0.2 x + 0.5, 0, 1); jax.nn has another one."""
    y = 0.2 * x + 0.5
    # At its bounds Keras's clip passes the whole gradient; jnp.clip halves it.
    return jnp.where(y < 0, 0.0, jnp.where(y > 1, 1.0, y))


def clip_above(x: jax.Array, bound: float) -> jax.Array:
    """Returns min(x, bound); at equality x gets the whole gradient, not half."""
    return jnp.where(x <= bound, x, jnp.asarray(bound, x.dtype))


@jax.custom_vjp
def max_pool(x: Float[Array, "B H W C"]) -> Float[Array, "B H/2 W/2 C"]:
    """Takes 2x2 maxima; at a tie the first one (row-major) gets the whole gradient.

    The result is NaN where one of the four is. The four strided views are compared: the
    gradient of `reduce_window` is nondeterministic on GPUs and slow on CPUs.
    """
    return _max_pool_fwd(x)[0]


def _max_pool_fwd(x):
    views = [x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
    largest, argmax = views[0], jnp.zeros(views[0].shape, jnp.uint8)
    for i, view in enumerate(views[1:], 1):
        # Not `view > largest`: a NaN has to replace a number, never the reverse.
        greater = ~(largest >= view) & (largest == largest)
        largest = jnp.where(greater, view, largest)
        argmax = jnp.where(greater, jnp.uint8(i), argmax)
    return largest, argmax


def _max_pool_bwd(argmax, dy):
    b, h, w, c = dy.shape
    position = jnp.arange(4, dtype=jnp.uint8).reshape(2, 1, 2, 1)
    argmax, dy = (a[:, :, None, :, None] for a in (argmax, dy))
    dx = jnp.where(argmax == position, dy, jnp.zeros((), dy.dtype))
    return (dx.reshape(b, 2 * h, 2 * w, c),)


max_pool.defvjp(_max_pool_fwd, _max_pool_bwd)
