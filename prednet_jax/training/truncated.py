"""One update of truncated back-propagation.

It follows the published trainer of quadjr/PredNet (`data.windows`): the state is
carried from window to window and cut from the graph between them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from prednet_jax import noise as noise_lib
from prednet_jax import tasks
from prednet_jax.errors import expect
from prednet_jax.models.step import to_pixels
from prednet_jax.noise.specs import NoiseSpec
from prednet_jax.objectives import Method, WindowResult
from prednet_jax.tasks import Network


class TrainState(NamedTuple):
    """Everything that an update changes.

    Attributes:
        params: the network's parameters.
        optimizer_state: state of the optax transformation.
        carry: the recurrent state carried between windows, or None for a network
            without state.
        update: int32, updates made.
    """

    params: dict
    optimizer_state: optax.OptState
    carry: Any
    update: jax.Array


class StepMetrics(NamedTuple):
    """Metrics of one update; `grad_norm` is the L2 norm of the optimiser's gradient.

    Attributes:
        frame_losses: `[T]`, MSE of each prediction against its true target.
        scored: `[T]`, 1 where the transition counts.
    """

    frame_losses: jax.Array
    scored: jax.Array
    grad_norm: jax.Array

    @property
    def loss(self) -> jax.Array:
        """Mean over the transitions that count: the `loss` of metrics.jsonl."""
        return (self.frame_losses * self.scored).sum() / self.scored.sum()


@partial(jax.jit, static_argnames=("network", "optimizer", "batch"))
def initial_train_state(
    network: Network,
    params: dict,
    optimizer: optax.GradientTransformation,
    *,
    batch: int = 1,
) -> TrainState:
    """Returns the state before the first update, in the parameters' precision.

    Its arrays are new, since the state may be donated to a step.
    """
    dtype = jax.tree.leaves(params)[0].dtype
    carry = tasks.of(network).initial_carry(batch, dtype)
    params = jax.tree.map(jnp.copy, params)
    return TrainState(params, optimizer.init(params), carry, jnp.zeros((), jnp.int32))


def noisy_weights(params: dict, noise: NoiseSpec | None, key: jax.Array) -> dict:
    """Adds the part of the noise that is on weights, if it has one."""
    spec = noise_lib.Identity() if noise is None else noise
    on_weights = noise_lib.at(spec, "weights")
    if on_weights is None:
        return params
    return noise_lib.perturb_tree(on_weights, key, params)


def jit_update(update: Callable) -> Any:
    """Compiles an update, to which its first argument, the state, is donated.

    On a CPU nothing is donated. There a moment that is updated in place has to wait for
    all its readers: 8 % of a step at 64x48, 4 % at 160x120, where a kept state costs 12
    and 113 MB.
    """
    donated = () if jax.default_backend() == "cpu" else (0,)
    return jax.jit(update, donate_argnums=donated)


def make_step(
    network: Network,
    optimizer: optax.GradientTransformation,
    method: Method | None = None,
    *,
    noise: NoiseSpec | None = None,
    axis: str | None = None,
) -> Callable[..., tuple[TrainState, StepMetrics]]:
    """Builds one update, a pure function to be compiled by the caller.

    Noise at the `computation` site is injected into the whole update: forward pass,
    backward pass and optimiser; noise at the `gradient` site is added to the gradient.

    `axis` is the mesh axis over which the batch is spread, inside shard_map; gradients
    and losses are averaged over it.

    Returns `step(state, frames, first, key) -> (state, metrics)`, arguments as in
    `Trainer.step`; `key` is folded here with the number of the update.
    """
    task, method = tasks.of(network), method or Method()
    task.check(method)
    gradient = jax.grad(partial(task.loss, method=method), has_aux=True)
    if method.rematerialize:
        gradient = by_sequence(gradient)

    def descend(grads: dict, optimizer_state: object, params: dict):
        updates, optimizer_state = optimizer.update(grads, optimizer_state, params)
        received, own = (jax.tree.map(jnp.shape, tree) for tree in (updates, params))
        wanted = "an update of each parameter, in its shape, from optimizer.update"
        expect(received == own, "optimizer: shapes", received, wanted)
        return optax.apply_updates(params, updates), optimizer_state

    noise = noise_lib.Identity() if noise is None else noise
    inside = noise_lib.at(noise, "computation")
    on_gradient = noise_lib.at(noise, "gradient")

    def step(
        state: TrainState, frames: jax.Array, first: jax.Array, key: jax.Array
    ) -> tuple[TrainState, StepMetrics]:
        dtype = jax.tree.leaves(state.params)[0].dtype
        frames = to_pixels(frames, dtype)
        of_gradient, on_gradients, of_update, run_gradient, run_update = (
            _keys(key, state.update) if inside or on_gradient else [key] * 5
        )
        inputs = (state.params, state.carry, frames, first)
        if inside is None:
            grads, result = gradient(*inputs)
        else:
            if axis is not None:
                # Each shard draws its own; the update below must agree on all.
                shard = jax.lax.axis_index(axis)
                of_gradient = jax.random.fold_in(of_gradient, shard)
                run_gradient = jax.random.fold_in(run_gradient, shard)
            grads, result = noise_lib.inject(gradient, inside, run_key=run_gradient)(
                of_gradient, *inputs
            )
        frame_losses = result.frame_losses
        if axis is not None:
            grads, frame_losses = jax.lax.pmean((grads, frame_losses), axis)
        if on_gradient is not None:
            grads = noise_lib.perturb_tree(on_gradient, on_gradients, grads)
        squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(grads)]
        grad_norm = jnp.sqrt(jnp.sum(jnp.stack(squares)))
        if inside is None:
            params, moments = descend(grads, state.optimizer_state, state.params)
        else:
            params, moments = noise_lib.inject(descend, inside, run_key=run_update)(
                of_update, grads, state.optimizer_state, state.params
            )
        metrics = StepMetrics(frame_losses, result.scored, grad_norm)
        update = state.update + 1
        return TrainState(params, moments, result.state, update), metrics

    return step


def by_sequence(gradient: Callable) -> Callable:
    """Returns a gradient of a mean over a batch that takes one sequence after another.

    `gradient(params, carry, frames, first) -> (gradient, WindowResult)` is called with
    a batch of one, so memory does not grow with the batch.
    """

    def mean(params: dict, carry: Any, frames: jax.Array, first: jax.Array) -> tuple:
        def add(total: dict, sequence: tuple) -> tuple[dict, WindowResult]:
            carry, frames = sequence
            carry = jax.tree.map(lambda x: x[None], carry)
            grads, result = gradient(params, carry, frames[:, None], first)
            return jax.tree.map(jnp.add, total, grads), result

        count = frames.shape[1]
        if count == 1:
            return gradient(params, carry, frames, first)
        zero = jax.tree.map(jnp.zeros_like, params)
        sequences = carry, frames.swapaxes(0, 1)
        total, (states, losses, scored) = jax.lax.scan(add, zero, sequences)
        state = jax.tree.map(lambda x: x[:, 0], states)
        result = WindowResult(state, losses.mean(axis=0), scored[0])
        return jax.tree.map(lambda x: x / count, total), result

    return mean


def _keys(key: jax.Array, update: jax.Array) -> tuple[jax.Array, ...]:
    """Returns a key for each place where noise can enter; two serve all updates."""
    each = jax.random.split(jax.random.fold_in(key, update), 3)
    return (*each, *jax.random.split(key))
