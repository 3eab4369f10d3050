"""PredNet over a sequence of frames, as pure functions of a parameter tree.

`models.step` has the equations of one frame, the state, and the parameters' names.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from prednet_jax.config import PredNetConfig, convolutions
from prednet_jax.errors import UserError, check_int, expect, log_once
from prednet_jax.models import convolution
from prednet_jax.models.parameters import parameter_shapes
from prednet_jax.models.step import (
    Conv,
    Params,
    PredNetState,
    StepOutputs,
    initial_state,
    step,
    to_pixels,
)
from prednet_jax.models.unroll import unroll


def scan_frames(
    params: Params,
    config: PredNetConfig,
    state: PredNetState,
    frames: Float[Array, "T B H W C"],
    outputs: Callable[[StepOutputs], Any],
    *,
    reset: jax.Array | None = None,
    extrapolate_from: int | jax.Array | None = None,
    rematerialize: bool = False,
) -> tuple[PredNetState, Any]:
    """Shows frames `[T, B, H, W, C]` to the network one after the other, in one scan.

    `outputs` picks what to keep of each step; the results are stacked along time. After
    frames where `reset`, `[T]` booleans, is True the state is zeroed; from step
    `extrapolate_from` on the input is the last prediction, not the frame.
    `rematerialize` is as in `unroll`.

    Returns the state after the last frame, and the stacked outputs.
    """
    kernels = {name: group["kernel"] for name, group in params.items()}
    others = {
        name: {leaf: value for leaf, value in group.items() if leaf != "kernel"}
        for name, group in params.items()
    }

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
    return unroll(
        *(body, kernels, others, state, xs),
        convolutions=convolutions(config),
        batch=frames.shape[1],
        rematerialize=rematerialize,
    )


def predict(
    params: Params,
    config: PredNetConfig,
    frames: Shaped[Array, "T B H W C"],
    state: PredNetState | None = None,
    *,
    extrapolate_from: int | None = None,
    layout: str | None = None,
) -> tuple[Float[Array, "T B H W C"], PredNetState]:
    """Predicts every frame before it is seen.

    Compiled once for each number of frames. Within a function that is being compiled
    or differentiated it is a part of that function.

    Args:
        params: the network's parameters.
        config: the network.
        frames: `[T, B, H, W, C]`, floats in [0, pixel_max], or uint8 (divided by 255).
        state: the state to start from. Defaults to a new sequence.
        extrapolate_from: k < T: from t = k on the input is the network's last
            prediction instead of frames[t], without stop_gradient. In `watanabe` this
            is the prediction of frames[t]. In `lotter` it is the prediction of
            frames[t - 1], made one step before, as in coxlab/prednet. A new sequence
            has at least one frame to see, k > 0. With a `state` k may be 0. `forecast`
            predicts beyond the last frame.
        layout: the axes of frames and predictions: T, B or N, H, W and C in any order,
            such as `NTHWC` of Keras or `NTCHW` of PyTorch. Defaults to `TBHWC`. Without
            a state one frame of several sequences needs a layout, since this is also
            the shape of one sequence with the axes exchanged.

    Returns:
        Predictions in the layout of the frames, and the state after the last frame,
        which continues with frame T. predictions[t] predicts frames[t] and has seen
        frames up to t - 1 (up to k - 1 from t = k on). In a new `watanabe` sequence
        predictions[0] is zero.

    Example:
        >>> import jax, prednet_jax
        >>> config = prednet_jax.PredNetConfig(channels=(3, 4), height=8, width=8)
        >>> params = prednet_jax.init_params(config, jax.random.key(0))
        >>> frames = jax.random.uniform(jax.random.key(1), (5, 1, 8, 8, 3))
        >>> predictions, state = prednet_jax.predict(params, config, frames)
        >>> predictions.shape
        (5, 1, 8, 8, 3)
    """
    frames = time_first(frames, layout)
    if layout is None and state is None:
        check_time(frames)
    check_frames(params, config, frames, extrapolate_from, state)
    arguments = (params, frames, state, extrapolate_from)
    traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(arguments))
    run = _predict if traced else _compiled
    predictions, state = run(config, *arguments)
    return in_layout(predictions, layout), state


def forecast(
    params: Params,
    config: PredNetConfig,
    frames: Shaped[Array, "T B H W C"],
    steps: int,
    state: PredNetState | None = None,
    *,
    layout: str | None = None,
) -> tuple[Float[Array, "N B H W C"], PredNetState]:
    """Predicts the frames that follow the last one, from the network's own predictions.

    The result equals `predict` on these frames and `steps` more, whatever they show,
    with `extrapolate_from=T`.

    Args:
        params: the network's parameters.
        config: the network.
        frames: `[T, B, H, W, C]` as in `predict`. T may be 1, and 0 with a `state`.
        steps: number N of frames to predict.
        state: the state before frames[0]. Defaults to a new sequence.
        layout: as in `predict`. Without it and a state, a line on stderr reports one
            frame of several sequences.

    Returns:
        The future `[N, B, H, W, C]` in the layout of the frames, and the state after
        it. future[i] predicts frame T + i and has seen frames up to T - 1. The state
        has taken the N predictions for frames, so it continues with frame T + N. The
        state that `predict` returns meets the next real frame, frame T.

    Example:
        >>> import jax, prednet_jax
        >>> config = prednet_jax.PredNetConfig(channels=(3, 4), height=8, width=8)
        >>> params = prednet_jax.init_params(config, jax.random.key(0))
        >>> frames = jax.random.uniform(jax.random.key(1), (5, 1, 8, 8, 3))
        >>> future, _ = prednet_jax.forecast(params, config, frames, 3)
        >>> future.shape
        (3, 1, 8, 8, 3)
    """
    check_int("steps", steps, 1)
    shown = time_first(frames, layout)
    if shown.ndim != 5:
        check_frames(params, config, shown, None)
    seen = len(shown)
    if not seen and state is None:
        raise UserError("forecast from no frames: expected at least one, or a state")
    if layout is None and state is None and seen == 1 < shown.shape[1]:
        log_once(
            f"frames of shape {tuple(shown.shape)} are read as one frame of each of "
            f'{shown.shape[1]} sequences; layout="NTHWC" reads one sequence'
        )
    unseen = jnp.zeros((steps, *shown.shape[1:]), shown.dtype)
    predictions, state = predict(
        *(params, config, jnp.concatenate([shown, unseen]), state),
        extrapolate_from=seen,
        layout="TBHWC",
    )
    return in_layout(predictions[seen:], layout), state


def time_first(frames: Any, layout: str | None) -> Any:
    """Returns frames, whose axes are in the order of a layout, as `[T, B, H, W, C]`."""
    if not hasattr(frames, "ndim"):
        frames = np.asarray(frames)
    order = _order(layout)
    return frames.transpose(order) if frames.ndim == len(order) else frames


def in_layout(arrays: Any, layout: str | None) -> Any:
    """Returns `[T, B, H, W, C]` with the axes in the order of a layout."""
    return arrays.transpose(np.argsort(_order(layout)))


def _order(layout: str | None) -> list[int]:
    """Returns the places of T, B, H, W and C in a layout, where N may stand for B."""
    letters = (layout or "TBHWC").upper().replace("N", "B")
    accepted = sorted(letters) == sorted("TBHWC")
    wanted = "T, B or N, H, W and C, each once, such as TBHWC, NTHWC or NTCHW"
    expect(accepted, "layout", layout, wanted)
    return [letters.index(axis) for axis in "TBHWC"]


def check_time(frames: Any, fewest: int = 1) -> None:
    """Refuses (UserError) fewer time steps, and a single one of several sequences.

    Frames are `[T, B, ...]`. One time step of several sequences is also the shape of
    one sequence whose axes are exchanged.
    """
    steps, batch = frames.shape[0], frames.shape[1] if frames.ndim == 5 else 1
    if steps == 1 < batch:
        raise UserError(
            f"frames of shape {tuple(frames.shape)} are one frame of each of {batch} "
            "sequences; expected two time steps or more, [T, B, H, W, C], or "
            'layout="NTHWC" (frames.swapaxes(0, 1) where there is no layout) for one '
            "sequence, as Keras has it"
        )
    if steps < fewest:
        raise UserError(f"frames of {steps} time steps: expected at least {fewest}")


def _predict(
    config: PredNetConfig,
    params: Params,
    frames: jax.Array,
    state: PredNetState | None,
    extrapolate_from: int | jax.Array | None,
) -> tuple[jax.Array, PredNetState]:
    maps, state = outputs(
        params, config, frames, state=state, extrapolate_from=extrapolate_from
    )
    return maps["prediction"], state


_compiled = jax.jit(_predict, static_argnums=0)


def outputs(
    params: Params,
    config: PredNetConfig,
    frames: Shaped[Array, "T B H W C"],
    names: Sequence[str] = ("prediction",),
    state: PredNetState | None = None,
    *,
    extrapolate_from: int | jax.Array | None = None,
) -> tuple[dict[str, jax.Array], PredNetState]:
    """Computes the outputs of the network for frames that `check_frames` accepts.

    Arguments are as in `predict`. Returns the outputs by name, and the state after the
    last frame. The outputs are `prediction`, `[T, B, H, W, C]` as of `predict`;
    `error`, the mean of each E_l, `[T, B, L]`; and maps of one layer, `[T, B, H_l, W_l,
    .]`, named by `R`, `A`, `Ahat` or `E` and the layer's number, such as `R0`.
    `sequences.units` (`align="frame"`) lists the frames that a map at index t has seen;
    an error has seen frame t.
    """
    frames = to_pixels(jnp.asarray(frames), jax.tree.leaves(params)[0].dtype)
    if state is None:
        state = initial_state(config, frames.shape[1], frames.dtype)
    before = state.prediction[0]
    whole_layers = ("prediction", "error")
    places = {n: place_of_map(config, n) for n in names if n not in whole_layers}

    def pick(out: StepOutputs) -> dict[str, jax.Array]:
        values = {name: getattr(out, kind)[i] for name, (kind, i) in places.items()}
        if "prediction" in names:
            values["prediction"] = out.prediction[0]
        if "error" in names:
            means = [e.mean(axis=(1, 2, 3)) for e in out.error]
            values["error"] = jnp.stack(means, axis=-1)
        return values

    state, values = scan_frames(
        params, config, state, frames, pick, extrapolate_from=extrapolate_from
    )
    if "prediction" in names and config.pass_order == "watanabe":
        # The step at frame t predicts frame t + 1, so predictions shift by one.
        values["prediction"] = jnp.concatenate(
            [before[None], values["prediction"][:-1]]
        )
    return values, state


def place_of_map(config: PredNetConfig, name: str) -> tuple[str, int]:
    """Returns the field of `StepOutputs` and the layer of a map such as `R0`."""
    fields = {"R": "hidden", "A": "target", "Ahat": "prediction", "E": "error"}
    kind = name.rstrip("0123456789")
    layer = name[len(kind) :]
    accepted = kind in fields and layer != "" and int(layer) < config.layers
    numbers = f"a number from 0 to {config.layers - 1}"
    expect(accepted, "layer", name, f"R, A, Ahat or E and {numbers}, such as R0")
    return fields[kind], int(layer)


def check_range(frames: jax.Array | np.ndarray, pixel_max: float = 1.0) -> None:
    """Refuses (UserError) NaN, and pixels far out of scale, such as 0 to 255.

    While a function is compiled their values are unknown, and only uint8 for a network
    of larger pixels is refused.
    """
    if frames.dtype == jnp.uint8:
        fits = pixel_max <= 1
        wanted = "at most 1 for frames of uint8, which are divided by 255"
        expect(fits, "pixel_max", pixel_max, f"{wanted}; give floats up to pixel_max")
    if frames.dtype == jnp.uint8 or isinstance(frames, jax.core.Tracer):
        return
    with jax.ensure_compile_time_eval():  # Not a part of a caller's trace.
        on_device = isinstance(frames, jax.Array)
        xp = jnp if on_device else np
        low, high = (float(f(frames, initial=0)) for f in (xp.min, xp.max))
    limit = max(pixel_max, 1.0)
    if not (high <= 2 * limit and low >= -limit / 2):  # NaN too
        advice = "divide them by 255" if low >= 0 and high <= 255 else "scale them"
        raise UserError(
            f"frames with pixels from {low:g} to {high:g}: expected 0 to {limit:g}, "
            f"no NaN; {advice}, or give uint8"
        )


def attach_predictions(
    params: Params, config: PredNetConfig, state: PredNetState
) -> PredNetState:
    """Lets the carried P_l, l >= 1, depend on ConvP_l without changing its value.

    This is Chainer's truncation leak (see `objectives.Method`). The gradient of
    P_l = relu(conv(h_l) + b) needs only h_l and the mask P_l > 0; P_l + z -
    stop_gradient(z) has the value of P_l and the gradient of z.
    """
    attached = [state.prediction[0]]
    for layer in range(1, config.layers):
        link, h = params[f"prediction_{layer}"], state.hidden[layer]
        z = convolution.conv2d(h, link["kernel"], config.convolution)
        z = jnp.where(state.prediction[layer] > 0, z + link["bias"], 0)
        attached.append(state.prediction[layer] + (z - jax.lax.stop_gradient(z)))
    return state._replace(prediction=tuple(attached))


def check_frames(
    params: Params,
    config: PredNetConfig,
    frames: jax.Array | np.ndarray,
    extrapolate_from: int | None,
    state: PredNetState | None = None,
) -> None:
    """Refuses (UserError) parameters, frames or a state that do not fit the network.

    Frames are checked for shape, dtype and range. `extrapolate_from` has to be a frame
    after the first one, or any frame if there is a state from frames before.
    """
    if not isinstance(config, PredNetConfig):
        raise UserError(
            f"config={type(config).__name__}: expected PredNetConfig, after params"
        )
    own = {
        name: {leaf: np.shape(array) for leaf, array in group.items()}
        for name, group in params.items()
    }
    if own != (shapes := _shapes(config)):
        name = min(n for n in own | shapes if own.get(n) != shapes.get(n))
        raise UserError(
            f"params: {name} is {own.get(name)}, and this config has "
            f"{shapes.get(name)}; expected the parameters of the same network"
        )
    expected = (config.height, config.width, config.channels[0])
    if frames.ndim != 5 or 0 in frames.shape or tuple(frames.shape[2:]) != expected:
        raise UserError(
            f"frames of shape {tuple(frames.shape)}: expected [T, B, H, W, C] with "
            f"H, W, C = {expected}, or layout= for another order"
        )
    if frames.dtype != jnp.uint8 and not jnp.issubdtype(frames.dtype, jnp.floating):
        raise UserError(
            f"frames of dtype {frames.dtype}: expected floating point, or uint8"
        )
    check_range(frames, config.pixel_max)
    batch = frames.shape[1]
    if state is not None and jax.tree.map(np.shape, state) != _state_shapes(
        config, batch
    ):
        raise UserError(
            f"state: of another network or number of sequences than the frames, which "
            f"are {batch} sequences [T, B, H, W, C]; expected the state that predict "
            "or forecast returned for these sequences"
        )
    if extrapolate_from is None:
        return
    first, total = 1 if state is None else 0, len(frames)
    if check_int("extrapolate_from", extrapolate_from, first) >= total:
        raise UserError(
            f"extrapolate_from={extrapolate_from} with {total} frames: expected less "
            f"than {total}; prednet_jax.forecast predicts the frames after the last"
        )


_shapes = functools.lru_cache(maxsize=64)(parameter_shapes)


@functools.lru_cache(maxsize=64)
def _state_shapes(config: PredNetConfig, batch: int) -> PredNetState:
    state = jax.eval_shape(lambda: initial_state(config, batch))
    return jax.tree.map(np.shape, state)
