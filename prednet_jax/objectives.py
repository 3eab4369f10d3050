"""What is minimised, and what is reported.

Errors (`lotter`, arXiv 1605.08104 eq. 5; kitti_train.py of coxlab/prednet):
    loss = mean_b sum_t w_t sum_l lambda_l mean(E_l(t)),  w_0 = 0, w_t = 1/(T - 1)
Squares (`watanabe`; the trainer of quadjr/PredNet):
    loss = sum_t MSE(prediction of frame t, frame t) over one window
Extrapolation (kitti_extrap_finetune.py of coxlab/prednet): from frame k of a sequence
on the network sees its own predictions, through which the gradient goes; the losses are
the same of what it predicts, for `errors` as
    loss = sum_t w_t mean |prediction of frame t - frame t| / 2
which with no frame extrapolated is the loss of E_0 above.

A window `[T + 1, B, H, W, C]` holds T transitions. In the first window of a sequence
its frame 0 is a stand-in that makes every window the same compiled program: the state
is zeroed after it and the transition from it has no weight, so that window has T - 1
losses, as the published script has. A window of one transition has no stand-in: there
the published script updates after the first frame too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.errors import UserError, one_of, whole
from prednet_jax.models import autoencoder, prednet, unroll

TARGETS = ("true", "stale")
OBJECTIVES = ("squares", "errors")


@dataclass(frozen=True, kw_only=True)
class Method:
    """How a network is trained.

    Attributes:
        objective: `squares`, `errors`, or None: as the network was published.
        targets: `true`; or `stale`: every prediction is pulled towards the *last*
            frame of the window, as Chainer does on a CPU, where the one NumPy target
            buffer is shared with the graph and mean_squared_error reads it again in
            its backward pass. The reported losses stay against true targets.
        truncation_leak: whether the carried P_l, l >= 1, of `watanabe` still depends
            on ConvP_l, as Chainer's unchain_backward leaves it: those nodes are no
            ancestors of the loss. Their input h is a constant by then.
        layer_weights: lambda of the `errors` objective; None: (1, 0, ...).
        extrapolate_from: k, from 1 to the window: frame k of each sequence, counted
            from 0, is the first that the network does not see; None: it sees all.
            Sequences are then windows of their own, from the zero state.

    Raises:
        UserError: a choice is unknown.
    """

    objective: str | None = None
    targets: str = "true"
    truncation_leak: bool = False
    layer_weights: tuple[float, ...] | None = None
    extrapolate_from: int | None = None

    def __post_init__(self) -> None:
        if self.objective is not None:
            one_of("objective", self.objective, OBJECTIVES)
        one_of("targets", self.targets, TARGETS)
        if self.extrapolate_from is not None:
            whole("extrapolate_from", self.extrapolate_from, 1)


class WindowResult(NamedTuple):
    """What one window yields beside the number to minimise.

    Attributes:
        state: the state after the window, to be carried to the next.
        frame_losses: `[T]`, MSE of each prediction against its *true* target.
        scored: `[T]`, 1 for a transition that counts, 0 for the stand-in of a first
            window.
    """

    state: Any
    frame_losses: Float[Array, " T"]
    scored: Float[Array, " T"]


def error_loss(
    params: prednet.Params,
    config: PredNetConfig,
    frames: Float[Array, "T B H W C"],
    *,
    layer_weights: Sequence[float] | None = None,
) -> Float[Array, ""]:
    """The loss of `lotter` over sequences that start from the zero state.

    Args:
        params: the network's parameters.
        config: the network.
        frames: `[T, B, H, W, C]` with T >= 2, pixels in [0, 1].
        layer_weights: lambda, one a layer; None: (1, 0, ...), the paper's L0. The
            paper's Lall is (1, .1, .1, ...).

    Returns:
        The loss; time weights 0 for the first frame, then 1/(T - 1).

    Raises:
        UserError: T < 2, or not one weight a layer.
    """
    chosen = _layer_weights(config, layer_weights)
    steps = frames.shape[0]
    if steps < 2:
        raise UserError(f"frames of {steps} time steps: expected at least 2")
    errors = prednet.outputs(params, config, frames, "error")  # [T, B, L]
    weights = jnp.asarray(chosen, errors.dtype)
    return (errors[1:] @ weights).mean(axis=1).sum() / (steps - 1)


def _layer_weights(
    config: PredNetConfig, layer_weights: Sequence[float] | None
) -> tuple[float, ...]:
    if layer_weights is None:
        return (1.0,) + (0.0,) * (config.layers - 1)
    if len(layer_weights) != config.layers:
        raise UserError(
            f"layer_weights={tuple(layer_weights)!r}: expected {config.layers}, "
            "one a layer"
        )
    return tuple(layer_weights)


def window_loss(
    params: prednet.Params,
    config: PredNetConfig,
    state: prednet.PredNetState,
    frames: Float[Array, "T1 B H W C"],
    first: Bool[Array, ""],
    method: Method | None = None,
) -> tuple[Float[Array, ""], WindowResult]:
    """Loss of one window of truncated back-propagation.

    Args:
        params: the network's parameters.
        config: the network.
        state: the state carried from the window before; ignored where `first`.
        frames: `[T + 1, B, H, W, C]`; frame 0 is the last one of the window before,
            or a stand-in where `first`.
        first: whether the window starts a sequence.
        method: what is minimised; None: the defaults, `squares`.

    Returns:
        The number to minimise, and a `WindowResult`.

    Raises:
        UserError: stale targets are asked of `errors`, whose target is the network's
            own input, or there is not one weight a layer, or an upper layer has one
            where frames are extrapolated, whose errors there are not of true frames.
    """
    method = method or Method()
    objective = method.objective or "squares"
    weights = _check_errors(config, method, objective)
    state = cut(state, first)
    if method.truncation_leak and config.variant == "watanabe":
        state = _leak(params, config, state)
    seen, scored, reset = _transitions(config, frames, first)

    def pick(out: prednet.StepOutputs) -> tuple:
        if objective == "errors":
            errors = [w * e.mean() for w, e in zip(weights, out.error, strict=True)]
            return out.prediction[0], sum(errors)
        return out.prediction[0], jnp.zeros((), frames.dtype)

    state, kept = prednet.scan_frames(
        params,
        config,
        state,
        seen,
        pick,
        reset=reset,
        extrapolate_from=_first_unseen_step(config, method),
    )
    predictions, errors = kept
    if method.extrapolate_from is not None:
        apart = jnp.abs(predictions - frames[1:]).mean(axis=(1, 2, 3, 4))
        errors = weights[0] * apart / 2
    frame_losses = jnp.square(predictions - frames[1:]).mean(axis=(1, 2, 3, 4))
    result = WindowResult(state, jax.lax.stop_gradient(frame_losses), scored)
    if objective == "errors":
        return (errors * scored).sum() / scored.sum(), result
    if method.targets == "stale":
        pulled = jnp.square(predictions - frames[-1]).mean(axis=(1, 2, 3, 4))
        return (pulled * scored).sum(), result
    return (frame_losses * scored).sum(), result


def _check_errors(
    config: PredNetConfig, method: Method, objective: str
) -> tuple[float, ...]:
    """Layer weights, where the options of a method agree."""
    weights = _layer_weights(config, method.layer_weights)
    if objective == "errors" and method.targets == "stale":
        raise UserError(
            "targets='stale': expected 'true' with objective 'errors', which compares "
            "with the frame the network is shown, not with a target buffer"
        )
    if method.extrapolate_from is not None and any(weights[1:]):
        raise UserError(
            f"layer_weights={weights!r}: expected 0 but for the first with "
            "extrapolate_from; errors of upper layers are not of true frames there"
        )
    return weights


def _first_unseen_step(config: PredNetConfig, method: Method) -> int | None:
    """The step of a window that is the first to see a prediction for a frame."""
    if method.extrapolate_from is None:
        return None
    # Step 0 of `watanabe` sees the stand-in, that of `lotter` frame 0.
    return method.extrapolate_from + (config.variant == "watanabe")


def _transitions(
    config: PredNetConfig, frames: Float[Array, "T1 B H W C"], first: Bool[Array, ""]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Of a window: the frames that are shown, what counts, where the state is zeroed.

    `watanabe` predicts the next frame, `lotter` the one it is shown.
    """
    watanabe = config.variant == "watanabe"
    steps = frames.shape[0] - 1
    seen = frames[:-1] if watanabe else frames[1:]
    stand_in = first if steps > 1 else jnp.zeros_like(first)
    scored = jnp.ones(steps, frames.dtype).at[0].set(1 - stand_in.astype(frames.dtype))
    reset = jnp.zeros(steps, bool)
    if watanabe:
        reset = reset.at[0].set(stand_in)
    return seen, scored, reset


def cut(state: Any, first: Bool[Array, ""]) -> Any:
    """The carried state as a constant; zero where a sequence starts."""
    return jax.tree.map(
        lambda x: jnp.where(first, jnp.zeros_like(x), jax.lax.stop_gradient(x)), state
    )


def squares(
    predictions: Float[Array, "T B H W C"],
    targets: Float[Array, "T B H W C"],
    state: Any,
    first: Bool[Array, ""],
    *,
    stale: bool,
    stand_in: bool,
) -> tuple[Float[Array, ""], WindowResult]:
    """The objective `squares` of any network.

    Args:
        predictions: of the window.
        targets: what they are to be.
        state: carried on.
        first: whether the window starts a sequence.
        stale: whether every prediction is pulled towards the last target.
        stand_in: whether the first transition of a first window has no weight.
    """
    frame_losses = jnp.square(predictions - targets).mean(axis=(1, 2, 3, 4))
    scored = jnp.ones_like(frame_losses)
    if stand_in:
        scored = scored.at[0].set(1 - first.astype(scored.dtype))
    goal = targets[-1] if stale else targets
    pulled = jnp.square(predictions - goal).mean(axis=(1, 2, 3, 4))
    result = WindowResult(state, jax.lax.stop_gradient(frame_losses), scored)
    return (pulled * scored).sum(), result


def _leak(
    params: prednet.Params, config: PredNetConfig, state: prednet.PredNetState
) -> prednet.PredNetState:
    """Attaches the carried P_l, l >= 1, to ConvP_l without changing its value.

    The gradient of P_l = relu(conv(h_l) + b) needs only h_l and the mask P_l > 0, so
    z - stop_gradient(z), of value zero, carries it, whatever the weights are now.
    """
    table = prednet.convolutions(config)
    attached = [state.prediction[0]]
    for layer in range(1, config.layers):
        name = f"prediction_{layer}"
        z = unroll.convolve(params[name]["kernel"], table[name], state.hidden[layer])
        z = jnp.where(state.prediction[layer] > 0, z + params[name]["bias"], 0)
        attached.append(state.prediction[layer] + (z - jax.lax.stop_gradient(z)))
    return state._replace(prediction=tuple(attached))


def reconstruction_loss(
    params: autoencoder.Params,
    config: AutoencoderConfig,
    images: Float[Array, "T B H W C"],
    *,
    targets: str = "true",
) -> tuple[Float[Array, ""], WindowResult]:
    """Loss of the autoencoder over a window of images, T = 1 in the article.

    Args:
        params: the network's parameters.
        config: the network.
        images: `[T, B, H, W, C]`, pixels in [0, 1].
        targets: as in `Method`. Of a window of one image `stale` is `true`: a network
            whose backward pass follows each forward pass cannot be affected.

    Raises:
        UserError: the choice is unknown, or images do not fit the network.
    """
    one_of("targets", targets, TARGETS)
    steps, batch = images.shape[:2]
    flat = images.reshape(steps * batch, *images.shape[2:])
    outputs = autoencoder.reconstruct(params, config, flat).reshape(images.shape)
    frame_losses = jnp.square(outputs - images).mean(axis=(1, 2, 3, 4))
    scored = jnp.ones(steps, images.dtype)
    result = WindowResult(None, jax.lax.stop_gradient(frame_losses), scored)
    goal = images[-1] if targets == "stale" else images
    return jnp.square(outputs - goal).mean(axis=(1, 2, 3, 4)).sum(), result
