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
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from prednet_jax.config import PredNetConfig
from prednet_jax.models.cells import clip_above, lstm, max_pool

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
    """The state before the first frame of a sequence: all zero."""

    def zeros(widths: tuple[int, ...]) -> tuple[jax.Array, ...]:
        return tuple(
            jnp.zeros((batch, *config.size(layer), width), dtype)
            for layer, width in enumerate(widths)
        )

    lotter = config.order == "lotter"
    return PredNetState(
        hidden=zeros(config.recurrent),
        cell=zeros(config.recurrent),
        error=zeros(tuple(2 * c for c in config.channels)) if lotter else (),
        prediction=zeros(config.channels[:1] if lotter else config.channels),
    )


def to_pixels(frames: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Frames as floating point in [0, 1]; uint8 is divided by 255."""
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
    if config.order == "lotter":
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
    """Targets A and errors E of every layer, bottom first."""
    targets, errors = [frame], []
    for layer in range(config.layers):
        above = jax.nn.relu(predictions[layer] - targets[layer])
        below = jax.nn.relu(targets[layer] - predictions[layer])
        # The two variants stack the halves in opposite order.
        halves = [above, below] if config.order == "lotter" else [below, above]
        errors.append(jnp.concatenate(halves, axis=-1))
        if layer + 1 < config.layers:
            name = f"features_{layer}"
            features = conv({name: errors[layer]}) + others[name]["bias"]
            # relu(max) equals max(relu), in value and gradient, for a quarter of the
            # work.
            pooled = max_pool(features)
            if not config.ported:
                pooled = jax.nn.relu(pooled)
            targets.append(pooled)
    return tuple(targets), tuple(errors)


def _top_down(
    config: PredNetConfig,
    conv: Conv,
    others: Params,
    state: PredNetState,
    errors: tuple[jax.Array, ...],
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """Hidden states and cells of every layer, computed from the top down."""
    hidden, cells = list(state.hidden), list(state.cell)
    for layer in reversed(range(config.layers)):
        name = f"gates_{layer}"
        inputs: dict[str, Maps] = {name: (state.hidden[layer], errors[layer])}
        if layer + 1 < config.layers:
            inputs[f"top_down_{layer}"] = hidden[layer + 1]
        gates = conv(inputs) + others[name]["bias"]
        old = state.cell[layer]
        convolved = None
        if config.ported:
            convolved = conv({f"cell_{layer}": old})
        hidden[layer], cells[layer] = lstm(
            gates, old, others[name].get("peephole"), convolved
        )
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
