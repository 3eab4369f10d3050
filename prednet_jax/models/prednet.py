"""PredNet in its two published forms, as pure functions of a parameter tree.

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

Parameters, `[k, k, in, out]` kernels, l the layer, four gates in the order i, f, o, g:
    gates_l       kernel over [h_l, E_l], bias [4 R], peephole [3, H, W, R] (watanabe)
    top_down_l    kernel over up(h_{l+1}); absent in the top layer
    prediction_l  kernel, bias of P_l or Ahat_l
    features_l    kernel, bias of A_{l+1}; absent in the top layer
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from prednet_jax.config import PredNetConfig
from prednet_jax.models.cells import clip_above, lstm, max_pool
from prednet_jax.models.plan import Convolution
from prednet_jax.models.unroll import Maps, algorithm, unroll

Params = Mapping[str, Mapping[str, jax.Array]]
Conv = Callable[[Mapping[str, Maps]], jax.Array]


class PredNetState(NamedTuple):
    """What is carried from frame to frame; each field has one map a layer.

    Attributes:
        hidden: R or h, `[B, H_l, W_l, R_l]`.
        cell: c, `[B, H_l, W_l, R_l]`.
        error: E, `[B, H_l, W_l, 2 C_l]`; `lotter` only, empty in `watanabe`.
        prediction: P, `[B, H_l, W_l, C_l]`; `lotter` keeps the bottom one only, for
            extrapolation.
    """

    hidden: tuple[jax.Array, ...]
    cell: tuple[jax.Array, ...]
    error: tuple[jax.Array, ...]
    prediction: tuple[jax.Array, ...]


class StepOutputs(NamedTuple):
    """Every named quantity of one frame; each field has one map a layer.

    Attributes:
        hidden: R or h after the frame, `[B, H_l, W_l, R_l]`.
        target: A, `[B, H_l, W_l, C_l]`.
        prediction: `lotter`: Ahat of this frame. `watanabe`: P of the next frame.
        error: E, `[B, H_l, W_l, 2 C_l]`.
    """

    hidden: tuple[jax.Array, ...]
    target: tuple[jax.Array, ...]
    prediction: tuple[jax.Array, ...]
    error: tuple[jax.Array, ...]


def convolutions(config: PredNetConfig) -> dict[str, Convolution]:
    """Shape and algorithm of each convolution, by its name in the parameters."""
    table = {}
    for layer, (channels, recurrent) in enumerate(
        zip(config.channels, config.recurrent, strict=True)
    ):
        height, width = config.size(layer)

        def add(
            name: str,
            filter_size: int,
            inputs: int,
            outputs: int,
            upsampled: bool = False,
            *,
            height: int = height,
            width: int = width,
        ) -> None:
            table[name] = Convolution(
                height=height,
                width=width,
                in_channels=inputs,
                out_channels=outputs,
                filter_size=filter_size,
                upsampled=upsampled,
                algorithm=config.convolution,
            )

        r_filter = config.r_filters[layer]  # type: ignore[index]
        add(f"gates_{layer}", r_filter, recurrent + 2 * channels, 4 * recurrent)
        add(f"prediction_{layer}", config.ahat_filters[layer], recurrent, channels)  # type: ignore[index]
        if layer + 1 < config.layers:
            above = config.recurrent[layer + 1]
            add(f"top_down_{layer}", r_filter, above, 4 * recurrent, upsampled=True)
            a_filter = config.a_filters[layer]  # type: ignore[index]
            add(f"features_{layer}", a_filter, 2 * channels, config.channels[layer + 1])
    return table


def algorithms(config: PredNetConfig, dtype: DTypeLike = jnp.float32) -> dict[str, str]:
    """The algorithm that each convolution runs by in this process, by its name.

    Args:
        config: the network; what `convolution="auto"` means depends on the shape.
        dtype: of the weights and frames.
    """
    return {name: algorithm(plan, dtype) for name, plan in convolutions(config).items()}


def initial_state(
    config: PredNetConfig, batch: int, dtype: jnp.dtype = jnp.float32
) -> PredNetState:
    """The state before the first frame of a sequence: all zero."""

    def zeros(widths: tuple[int, ...]) -> tuple[jax.Array, ...]:
        return tuple(
            jnp.zeros((batch, *config.size(layer), width), dtype)
            for layer, width in enumerate(widths)
        )

    lotter = config.variant == "lotter"
    return PredNetState(
        hidden=zeros(config.recurrent),
        cell=zeros(config.recurrent),
        error=zeros(tuple(2 * c for c in config.channels)) if lotter else (),
        prediction=zeros(config.channels[:1] if lotter else config.channels),
    )


def step(
    config: PredNetConfig,
    conv: Conv,
    others: Params,
    state: PredNetState,
    frame: Float[Array, "B H W C"],
) -> tuple[PredNetState, StepOutputs]:
    """Shows one frame to the network.

    Args:
        config: the network.
        conv: `conv({name: x, ...})` convolves each x, a map or several side by side,
            with the kernel of its name and adds the results.
        others: the parameters that are not kernels: biases and peepholes.
        state: the state before the frame.
        frame: `[B, H, W, C]`, pixels in [0, pixel_max].

    Returns:
        The state after the frame, and every intermediate quantity.
    """
    if config.variant == "lotter":
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
        # The two forms stack the halves in opposite order.
        halves = [above, below] if config.variant == "lotter" else [below, above]
        errors.append(jnp.concatenate(halves, axis=-1))
        if layer + 1 < config.layers:
            name = f"features_{layer}"
            features = conv({name: errors[layer]}) + others[name]["bias"]
            # relu(max) is max(relu), in value and gradient, at a quarter of the work.
            targets.append(jax.nn.relu(max_pool(features)))
    return tuple(targets), tuple(errors)


def _top_down(
    config: PredNetConfig,
    conv: Conv,
    others: Params,
    state: PredNetState,
    errors: tuple[jax.Array, ...],
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """Hidden states and cells of every layer, computed from the top."""
    hidden, cells = list(state.hidden), list(state.cell)
    for layer in reversed(range(config.layers)):
        name = f"gates_{layer}"
        inputs: dict[str, Maps] = {name: (state.hidden[layer], errors[layer])}
        if layer + 1 < config.layers:
            inputs[f"top_down_{layer}"] = hidden[layer + 1]
        gates = conv(inputs) + others[name]["bias"]
        hidden[layer], cells[layer] = lstm(
            gates, state.cell[layer], others[name].get("peephole")
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


def split_kernels(params: Params) -> tuple[dict[str, jax.Array], Params]:
    """Separates the convolution kernels from the other parameters."""
    kernels = {name: group["kernel"] for name, group in params.items()}
    others = {
        name: {leaf: value for leaf, value in group.items() if leaf != "kernel"}
        for name, group in params.items()
    }
    return kernels, others


def scan_frames(
    params: Params,
    config: PredNetConfig,
    state: PredNetState,
    frames: Float[Array, "T B H W C"],
    outputs: Callable[[StepOutputs], Any],
    *,
    reset: jax.Array | None = None,
    extrapolate_from: int | None = None,
) -> tuple[PredNetState, Any]:
    """Shows frames one after the other in one `lax.scan`.

    Args:
        params: the network's parameters.
        config: the network.
        state: the state before the first frame.
        frames: `[T, B, H, W, C]`.
        outputs: picks what to keep of each step; stacked along time.
        reset: optional `[T]` booleans; True: the state *after* that frame is zeroed.
        extrapolate_from: from this step on the last prediction stands in for the frame.

    Returns:
        The last state, and the stacked outputs.
    """
    kernels, others = split_kernels(params)

    def body(conv: Conv, others: Params, carry: PredNetState, x: tuple) -> tuple:
        frame, zeroed, index = x
        if extrapolate_from is not None:
            own = carry.prediction[0]
            frame = jnp.where(index >= extrapolate_from, own, frame)
        carry, out = step(config, conv, others, carry, frame)
        if zeroed is not None:
            carry = jax.tree.map(
                lambda leaf: jnp.where(zeroed, jnp.zeros_like(leaf), leaf), carry
            )
        return carry, outputs(out)

    xs = (frames, reset, jnp.arange(frames.shape[0]))
    return unroll(body, kernels, others, state, xs, convolutions=convolutions(config))


def check_frames(config: PredNetConfig, frames: jax.Array) -> None:
    """Raises ValueError unless frames are `[T, B, H, W, C]` of the network's size."""
    expected = (config.height, config.width, config.channels[0])
    if frames.ndim != 5 or tuple(frames.shape[2:]) != expected:
        raise ValueError(
            f"frames of shape {tuple(frames.shape)}: expected [T, B, H, W, C] with "
            f"H, W, C = {expected}"
        )
    if not jnp.issubdtype(frames.dtype, jnp.floating):
        raise ValueError(f"frames of dtype {frames.dtype}: expected floating point")


def predict(
    params: Params,
    config: PredNetConfig,
    frames: Float[Array, "T B H W C"],
    state: PredNetState | None = None,
    *,
    extrapolate_from: int | None = None,
) -> tuple[Float[Array, "T B H W C"], PredNetState]:
    """Predicts every frame before it is seen.

    Args:
        params: the network's parameters.
        config: the network.
        frames: `[T, B, H, W, C]`, pixels in [0, pixel_max].
        state: the state to start from; None: a new sequence.
        extrapolate_from: k > 0: from t = k on the network is fed its own last
            prediction instead of frames[t], without stop_gradient. In `watanabe` that
            is its prediction of frames[t]; in `lotter`, as in coxlab/prednet, the
            prediction it made one step before, of frames[t - 1], since the one of
            frames[t] is made within step t.

    Returns:
        predictions `[T, B, H, W, C]`: predictions[t] is of frames[t], made before
        frames[t] was seen (a new `watanabe` sequence starts with zeros); and the state
        after the last frame.

    Raises:
        ValueError: frames do not fit the network, or extrapolate_from is not >= 1.
    """
    check_frames(config, frames)
    if extrapolate_from is not None and extrapolate_from < 1:
        raise ValueError(f"extrapolate_from={extrapolate_from}: expected at least 1")
    if state is None:
        state = initial_state(config, frames.shape[1], frames.dtype)
    before = state.prediction[0]
    state, predictions = scan_frames(
        params,
        config,
        state,
        frames,
        lambda out: out.prediction[0],
        extrapolate_from=extrapolate_from,
    )
    if config.variant == "watanabe":
        # The step at frame t predicts t + 1: shift by one.
        predictions = jnp.concatenate([before[None], predictions[:-1]])
    return predictions, state


def outputs(
    params: Params,
    config: PredNetConfig,
    frames: Float[Array, "T B H W C"],
    mode: str = "prediction",
    state: PredNetState | None = None,
    *,
    extrapolate_from: int | None = None,
) -> jax.Array:
    """The output modes of the original (`output_mode` of coxlab/prednet).

    Args:
        params: the network's parameters.
        config: the network.
        frames: `[T, B, H, W, C]`.
        mode: `prediction` `[T, B, H, W, C]`; `error` `[T, B, L]`, the mean of each E_l;
            `all` `[T, B, H W C + L]`, both, predictions flattened row by row; or `R`,
            `A`, `Ahat`, `E` and the number of a layer, such as `R0`: that map
            `[T, B, H_l, W_l, .]`.
        state: the state to start from; None: a new sequence.
        extrapolate_from: as in `predict`.

    Raises:
        ValueError: the mode is unknown, or frames do not fit the network.
    """
    check_frames(config, frames)
    fields = {"R": "hidden", "A": "target", "Ahat": "prediction", "E": "error"}
    kind = mode.rstrip("0123456789")
    layer = mode[len(kind) :]
    maps = kind in fields and layer != "" and int(layer) < config.layers
    if not maps and mode not in ("prediction", "error", "all"):
        raise ValueError(
            f"mode={mode!r}: expected prediction, error, all, or R, A, Ahat, E and a "
            f"layer from 0 to {config.layers - 1}, such as R0"
        )
    if mode == "prediction":
        return predict(
            params, config, frames, state, extrapolate_from=extrapolate_from
        )[0]
    if mode == "all":
        run = [
            outputs(params, config, frames, m, state, extrapolate_from=extrapolate_from)
            for m in ("prediction", "error")
        ]
        flat = run[0].reshape(*run[0].shape[:2], -1)
        return jnp.concatenate([flat, run[1]], axis=-1)
    if state is None:
        state = initial_state(config, frames.shape[1], frames.dtype)

    def pick(out: StepOutputs) -> jax.Array:
        if mode == "error":
            return jnp.stack([e.mean(axis=(1, 2, 3)) for e in out.error], axis=-1)
        return getattr(out, fields[kind])[int(layer)]

    _, result = scan_frames(
        params, config, state, frames, pick, extrapolate_from=extrapolate_from
    )
    return result
