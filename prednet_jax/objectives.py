"""The losses that training minimises, and those that it reports.

`errors` (variant `lotter`, arXiv 1605.08104 eq. 5; kitti_train.py of coxlab/prednet)::

    loss = mean_b sum_t w_t sum_l lambda_l mean(E_l(t)),  w_0 = 0, w_t = 1/(T - 1)

`squares` (variant `watanabe`; the trainer of quadjr/PredNet)::

    loss = sum_t MSE(prediction of frame t, frame t) over one window

`mse`, of either variant: the mean over t in place of the sum.

Extrapolation (kitti_extrap_finetune.py of coxlab/prednet): from frame k of a sequence
on, the network sees its own predictions, and the gradient goes through them. For
`errors` the loss is then sum_t w_t mean |prediction of frame t - frame t| / 2, which
without an extrapolated frame equals the loss of E_0 above.

A window `[T + 1, B, H, W, C]` holds T transitions from a frame to the next, and in the
first window of a sequence a stand-in (`data.windows`). With T = 1 the published script
updates after the first frame too: there is no stand-in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError, check_int, expect, one_of
from prednet_jax.models import prednet

TARGETS = ("true", "stale")
OBJECTIVES = ("squares", "errors", "mse")


@dataclass(frozen=True, kw_only=True)
class Method:
    """The objective of a training, and its variations.

    Attributes:
        objective: `squares`, `errors` or `mse`. Defaults to the objective that the
            network was published with.
        targets: `true`, or `stale`: the gradient pulls every prediction towards the
            *last* frame of the window, as the published code does under Chainer on a
            CPU (study/pages/chainer.md). Reported losses use the true targets in both
            cases.
        truncation_leak: whether the carried P_l, l >= 1, of `watanabe` still depends on
            ConvP_l at the start of a window, as in Chainer: unchain_backward cuts the
            graph at ancestors of the loss only, and these nodes are not among them.
        layer_weights: lambda of the objective `errors`, one number per layer. Defaults
            to (1, 0, ...). For `watanabe` all numbers except the first must be 0.
        extrapolate_from: number, from 1 to the window, of the first frame of each
            sequence (counted from 0) that the network does not see. Each sequence is
            then a window of its own and starts from the zero state. Defaults to None:
            the network sees all frames.
        rematerialize: whether the gradient computes the frames of a window again
            instead of keeping their intermediate values, and takes the sequences of a
            batch one after the other. This needs a third of the memory at the published
            sizes. Gradients are equal to rounding. PredNet only.
    """

    objective: str | None = None
    targets: str = "true"
    truncation_leak: bool = False
    layer_weights: tuple[float, ...] | None = None
    extrapolate_from: int | None = None
    rematerialize: bool = False

    def __post_init__(self) -> None:
        if self.objective is not None:
            one_of("objective", self.objective, OBJECTIVES)
        one_of("targets", self.targets, TARGETS)
        if self.layer_weights is not None:
            weights = tuple(map(float, self.layer_weights))
            object.__setattr__(self, "layer_weights", weights)
        if self.extrapolate_from is not None:
            check_int("extrapolate_from", self.extrapolate_from, 1)


class WindowResult(NamedTuple):
    """The state after a window, and two numbers for each transition, `[T]`.

    The two numbers are the MSE against the *true* target, and the weight: 1, or 0 for a
    transition from a stand-in frame.
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
    """Returns the loss of `lotter` over sequences from the zero state.

    `layer_weights` is lambda, one number per layer. It defaults to (1, 0, ...), the
    paper's L0; the paper's Lall is (1, .1, ...).
    """
    chosen = _layer_weights(config, layer_weights)
    prednet.check_time(frames, 2)
    prednet.check_frames(params, config, frames, None)
    outputs, _ = prednet.outputs(params, config, frames, ("error",))
    errors = outputs["error"]  # [T, B, L]
    weights = jnp.asarray(chosen, errors.dtype)
    return (errors[1:] @ weights).mean(axis=1).sum() / (len(errors) - 1)


def _layer_weights(
    config: PredNetConfig, layer_weights: Sequence[float] | None
) -> tuple[float, ...]:
    if layer_weights is None:
        return (1.0,) + (0.0,) * (config.layers - 1)
    chosen, wanted = tuple(layer_weights), f"{config.layers}, one per layer"
    expect(len(chosen) == config.layers, "layer_weights", chosen, wanted)
    return chosen


def window_loss(
    params: prednet.Params,
    config: PredNetConfig,
    state: prednet.PredNetState,
    frames: Float[Array, "T1 B H W C"],
    first: Bool[Array, ""],
    method: Method | None = None,
) -> tuple[Float[Array, ""], WindowResult]:
    """Computes the loss of one window of truncated back-propagation.

    `state` is carried from the window before, and ignored if `first`, where the window
    `[T + 1, B, H, W, C]` starts a sequence. `method` defaults to `squares`. A UserError
    names settings that contradict each other, such as stale targets and `errors`, which
    has no target buffer.
    """
    method = method or Method()
    objective = method.objective or "squares"
    weights = check(config, method, objective)
    state = cut(state, first)
    if method.truncation_leak and config.pass_order == "watanabe":
        state = prednet.attach_predictions(params, config, state)
    seen, scored, reset = _transitions(config, frames, first)

    def pick(out: prednet.StepOutputs) -> tuple:
        if objective == "errors":
            errors = [w * e.mean() for w, e in zip(weights, out.error, strict=True)]
            return out.prediction[0], sum(errors)
        return out.prediction[0], jnp.zeros((), frames.dtype)

    unseen = method.extrapolate_from
    if unseen is not None:
        # Step 0 of `watanabe` sees the stand-in; step 0 of `lotter` sees frame 0.
        unseen += config.pass_order == "watanabe"
    state, (predictions, errors) = prednet.scan_frames(
        *(params, config, state, seen, pick),
        reset=reset,
        extrapolate_from=unseen,
        rematerialize=method.rematerialize,
    )
    if unseen is not None or (
        objective == "errors" and config.pass_order == "watanabe"
    ):
        # E_0 of `watanabe` is the error of the frame before.
        absolute_errors = jnp.abs(predictions - frames[1:]).mean(axis=(1, 2, 3, 4))
        errors = weights[0] * absolute_errors / 2
    stale = method.targets == "stale"
    pulled, result = squares(predictions, frames, scored, state, stale=stale)
    if objective == "errors":
        return (errors * scored).sum() / scored.sum(), result
    total = (pulled * scored).sum()
    return (total / scored.sum() if objective == "mse" else total), result


def check(config: PredNetConfig, method: Method, objective: str) -> tuple[float, ...]:
    """Returns the layer weights, and refuses settings that contradict each other."""
    weights = _layer_weights(config, method.layer_weights)
    if objective == "errors" and method.targets == "stale":
        raise UserError(
            "targets='stale' has no effect with objective 'errors', which compares "
            "with the frame that the network sees: expected targets='true'"
        )
    fits = method.layer_weights is None or objective == "errors"
    expect(fits, "layer_weights", weights, f"objective 'errors', not {objective!r}")
    if method.truncation_leak and config.pass_order != "watanabe":
        raise UserError(
            f"truncation_leak with variant {config.variant!r}: expected 'watanabe'"
        )
    bottom = method.extrapolate_from is not None or config.pass_order == "watanabe"
    if bottom and any(weights[1:]):
        raise UserError(
            f"layer_weights={weights!r}: expected 0 for all layers except the first, "
            "because errors of upper layers do not belong to the true frame with "
            "extrapolate_from or with variant 'watanabe'"
        )
    return weights


def _transitions(
    config: PredNetConfig, frames: Float[Array, "T1 B H W C"], first: Bool[Array, ""]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the frames to show, the transitions' weights, and the resets, `[T]`.

    At each step `watanabe` is shown a frame and predicts the next one; `lotter`
    predicts the frame that it is about to be shown.
    """
    watanabe = config.pass_order == "watanabe"
    steps = frames.shape[0] - 1
    seen = frames[:-1] if watanabe else frames[1:]
    stand_in = first if steps > 1 else jnp.zeros_like(first)
    scored = jnp.ones(steps, frames.dtype).at[0].set(1 - stand_in.astype(frames.dtype))
    reset = jnp.zeros(steps, bool)
    if watanabe:
        reset = reset.at[0].set(stand_in)
    return seen, scored, reset


def cut(state: Any, first: Bool[Array, ""]) -> Any:
    """Returns the carried state without its gradient; zeros at a sequence's start."""
    return jax.tree.map(
        lambda x: jnp.where(first, jnp.zeros_like(x), jax.lax.stop_gradient(x)), state
    )


def squares(
    predictions: Float[Array, "T B H W C"],
    frames: Float[Array, "_ B H W C"],
    scored: Float[Array, " T"],
    state: Any,
    *,
    stale: bool,
) -> tuple[Float[Array, " T"], WindowResult]:
    """Returns the squared errors of predictions of the last T frames.

    The first result gives the gradient: the errors against true or stale targets.
    """
    targets = frames[-len(predictions) :]
    frame_losses = jnp.square(predictions - targets).mean(axis=(1, 2, 3, 4))
    result = WindowResult(state, jax.lax.stop_gradient(frame_losses), scored)
    if not stale:
        return frame_losses, result
    return jnp.square(predictions - frames[-1]).mean(axis=(1, 2, 3, 4)), result
