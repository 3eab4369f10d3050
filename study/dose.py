r"""More of the same noise: gradients whose own rounding noise is amplified.

With g the gradient without noise, and a and b two under a noise spec with independent
keys, xi = (a - b) / sqrt(2) has mean zero and the covariance of the noise. (a - g would
not do: programs with and without noise round differently, which amplified is a drift.)

    order         g + k xi                           the noise itself, k times
    coordinates   g + k xi * n                       n ~ N(0, 1) in each coordinate
    isotropic     g + k |xi| n / |n|                 its norm, in a random direction

The norm is k |xi|; for the second, that is the root mean square.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from prednet_jax import errors, noise
from prednet_jax.training import truncated
from prednet_jax.training.trainer import Trainer
from prednet_jax.training.truncated import StepMetrics, TrainState

KINDS = ("order", "coordinates", "isotropic")


@dataclass(frozen=True)
class AmplifiedTrainer(Trainer):
    """A trainer whose gradients have the noise of its spec, amplified.

    Attributes:
        dose: factor and kind of `amplified`. The update itself has no noise.
    """

    dose: tuple[float, str] = (1.0, "order")

    @functools.cached_property
    def program(self) -> Any:
        """The compiled update, as in `Trainer`."""
        loss = functools.partial(self.task.loss, method=self.method)
        assert self.noise is not None
        gradient = amplified(self.noise, *self.dose)(jax.grad(loss, has_aux=True))

        def step(
            state: TrainState, frames: jax.Array, first: jax.Array, key: jax.Array
        ) -> tuple[TrainState, StepMetrics]:
            frames = truncated.to_pixels(frames, jax.tree.leaves(state.params)[0].dtype)
            key = jax.random.split(jax.random.fold_in(key, state.update), 3)[0]
            grads, window = gradient(key, state.params, state.carry, frames, first)
            updates, moments = self.transformation.update(
                grads, state.optimizer_state, state.params
            )
            params = optax.apply_updates(state.params, updates)
            metrics = StepMetrics(window.frame_losses, window.scored, _norm(grads))
            return TrainState(params, moments, window.state, state.update + 1), metrics

        return truncated.jit_update(step)


def amplified(spec: noise.NoiseSpec, factor: float, kind: str) -> Callable:
    """Returns a transform of a gradient function that amplifies the noise of `spec`.

    For `gradient(*inputs) -> (grads, result)`, the new function of (key, *inputs)
    returns noisy grads and the result without noise, in three evaluations. `factor` is
    k above, > 0; `kind` one of `KINDS`.
    """
    errors.positive("factor", factor)
    errors.one_of("kind", kind, KINDS)

    def transform(gradient: Callable) -> Callable:
        noisy = noise.inject(lambda *inputs: gradient(*inputs)[0], spec)

        def perturbed(key: jax.Array, *inputs: Any) -> tuple[Any, Any]:
            first, second, direction = jax.random.split(key, 3)
            grads, result = gradient(*inputs)
            xi = jax.tree.map(
                lambda a, b: (a - b) * jnp.asarray(0.5**0.5, a.dtype),
                noisy(first, *inputs),
                noisy(second, *inputs),
            )
            if kind != "order":
                normal = _normal_like(direction, xi)
                scale = _norm(xi) / _norm(normal) if kind == "isotropic" else None
                xi = jax.tree.map(
                    lambda x, n: x * n if scale is None else scale * n, xi, normal
                )
            k = jnp.asarray(factor, jax.tree.leaves(grads)[0].dtype)
            return jax.tree.map(lambda g, x: g + k * x, grads, xi), result

        return perturbed

    return transform


def _normal_like(key: jax.Array, tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    # A key is taken, then its numbers are drawn.
    drawn = [
        jax.random.normal(k, leaf.shape, leaf.dtype)
        for k, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, drawn)


def _norm(tree: Any) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))
