"""Curvature along a training that is made while it is measured.

It is the curvature of the training loss without noise, on a probe set that is the same
at all stops: windows distributed evenly over the frames of the run, each from the zero
state.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from prednet_jax import curvature, data, process
from prednet_jax.data.windows import Schedule
from prednet_jax.objectives import Method
from prednet_jax.saddles import escape_theory
from prednet_jax.tasks import Adam, Task, frame_size
from prednet_jax.training import keys, loop, truncated
from prednet_jax.training.trainer import Trainer

#: The columns of its table, as `report.tables.rows` takes them.
COLUMNS: Mapping[str, str | Callable[[Mapping[str, Any]], str]] = {
    "network": "{model}",
    "update": "{update}",
    "loss": "{loss:sig}",
    "lowest, raw": "{raw.lowest:sig}",
    "highest, raw": "{raw.highest:sig}",
    "lowest, Adam": "{preconditioned.lowest:sig}",
    "highest, Adam": "{preconditioned.highest:sig}",
    "negative": lambda row: (
        "proved" if row["preconditioned.negative_curvature_proved"] else "not found"
    ),
    "noise for one update": "{escape.noise_for_one_update:sig2}",
}
B1, B2 = 0.9, 0.999
Row = dict[str, Any]


def fresh(
    task: Task,
    *,
    updates: tuple[int, ...],
    window: int,
    samples: int,
    seed: int,
    precision: str,
    **options: Any,
) -> Iterator[Row]:
    """Trains a network on embedded data; yields `model` and `probe` at some updates.

    `updates` are the stops, ascending, from 1; `window` is the number of transitions
    per update; `samples` windows or images are in the probe set; `options` are passed
    to `probe`.
    """
    dtype = process.set_precision(precision)
    # Second derivatives take long to compile; this is the fastest for small networks.
    task = task.with_convolution("xla")
    source = data.open_source(task.data, seed=seed, **frame_size(task))
    last = updates[-1]
    optimizer, adam = task.optimizer(last), task.adam(last)
    schedule = loop.frame_schedule(task, source, window=window, updates=last)
    params = loop.prepare_params(loop.initial_params(task, seed), dtype, None, seed)
    start = truncated.initial_train_state(task, params, optimizer)
    loss, moments = _probe_set(task, source, schedule, dtype, samples)
    trainer = Trainer(task, optimizer, Method())
    for state, record in loop.train(trainer, start, source, schedule, seed=seed):
        if record.update in updates:
            key = jax.random.fold_in(keys.derive(seed, "probe"), record.update)
            row = probe(loss, state, moments(state.params), adam, key=key, **options)
            yield {"model": task.name} | row


def probe(
    loss: Callable,
    state: truncated.TrainState,
    moments: tuple[Any, Any],
    adam: Adam,
    *,
    key: jax.Array,
    noise: float,
    **search: Any,
) -> Row:
    """Returns the curvature at one stop, and its meaning for the optimiser, as JSON.

    Args:
        loss: the loss without noise on the probe set; stops with the same object share
            the compiled programs.
        state: the state of the training, after one update or more.
        moments: mean over the samples of the gradient of the same loss at the same
            weights, and of its square; like the weights.
        adam: the optimiser, which divides by a scale P.
        key: consumed for the start vectors.
        noise: relative gradient noise whose effect is predicted, above 0.
        **search: `steps` and `starts` of `curvature.certify`.
    """
    (mean, mean_square), update = moments, int(state.update)
    means: Any = state.optimizer_state
    # P of the next update, in expectation over the samples. With P of the last update,
    # a weight that no gradient has reached yet would have P = eps.
    ahead = jax.tree.map(lambda v, s: B2 * v + (1.0 - B2) * s, means.nu, mean_square)
    scaled_by = functools.partial(curvature.adam_scale, b1=B1, b2=B2, eps=adam.eps)
    scale, last_scale = scaled_by(ahead, update + 1), scaled_by(means.nu, update)
    rate = adam.at(update)
    last_step = jax.tree.map(lambda m, p: -rate * m / p, means.mu, last_scale)
    # Ones instead of None, so that both searches use one compiled program.
    ones, other = jax.tree.map(jnp.ones_like, state.params), jax.random.fold_in(key, 1)
    certify = functools.partial(curvature.certify, loss, state.params, **search)
    raw, scaled = certify(key=key, scale=ones), certify(key=other, scale=scale)
    norm = math.sqrt(sum(float(jnp.vdot(x, x)) for x in jax.tree.leaves(mean)))
    row: Row = {
        "update": update,
        "parameters": raw.dimension,
        "loss": float(jax.jit(loss)(state.params)),
        "grad_norm": norm,
        "raw": _summary(raw),
        "preconditioned": _summary(scaled),
        "escape": None,
    }
    if scaled.negative_curvature_proved and norm:
        vector = scaled.pairs.vectors[0]
        z, step, gain = project(mean, last_step, vector, scaled.lowest, scale)
        sigma = noise * norm / math.sqrt(scaled.dimension) * gain
        following = adam.at(update + 1)
        row["escape"] = _escape(-scaled.lowest, z, step, following, noise, sigma)
    return row


def project(
    gradient: Any, step: Any, vector: Any, value: float, scale: Any
) -> tuple[float, float, float]:
    """Projects the weights on u, a unit vector in the coordinates of P.

    Returns the displacement z of the weights from the stationary point of a quadratic
    model of curvature `value` < 0, u'g = value z; the projection of the last `step` of
    the weights; and the standard deviation along u of gradient noise that has unit
    standard deviation per weight. `scale` is P.
    """
    u, g, d, p = (ravel_pytree(tree)[0] for tree in (vector, gradient, step, scale))
    root = jnp.sqrt(p.astype(u.dtype))
    displacement = float(jnp.vdot(u, g / root)) / value
    along, gain = jnp.vdot(u, root * d), jnp.linalg.norm(u / root)
    return displacement, float(along), float(gain)


def _summary(certificate: curvature.Certificate) -> dict[str, Any]:
    """Returns a certificate as a JSON object; pairs are (low, high)."""
    low, high = (float(residual) for residual in certificate.pairs.residuals)
    return {
        "lowest": certificate.lowest,
        "highest": certificate.highest,
        "residual_lowest": low,
        "residual_highest": high,
        "rounding": certificate.rounding,
        "steps": certificate.steps,
        "converged": list(certificate.converged),
        "negative_curvature_proved": certificate.negative_curvature_proved,
    }


def _escape(
    gamma: float, z: float, step: float, rate: float, noise: float, sigma: float
) -> dict[str, float]:
    """Describes Adam's escape along the lowest preconditioned curvature, -gamma.

    `sigma` is the gradient's noise along it, `noise` the same relative to the gradient;
    `z` and `step` are results of `project`.
    """
    growth = escape_theory.growth(gamma, learning_rate=rate, momentum=B1, averaged=True)
    c_sigma = escape_theory.noise_projection(sigma, growth)
    c = escape_theory.growing_projection(z, step, growth)
    useful = escape_theory.useful_projection(
        c_sigma, growth
    )  # Proportional to the noise.
    return {
        "growth_per_update": growth.fast,
        "step_projection": step,
        "displacement": z,
        "projection": c,
        "noise": noise,
        "noise_projection": c_sigma,
        "useful_projection": useful,
        "updates_saved": escape_theory.updates_saved(c, c_sigma, growth),
        "noise_for_one_update": noise * c / useful,
    }


def _probe_set(
    task: Task, source: data.FrameSource, schedule: Schedule, dtype: Any, samples: int
) -> tuple[Callable, Callable]:
    """Returns the mean loss over the samples, and the moments of their gradients."""
    even = np.linspace(0, len(schedule.start) - 1, samples).astype(int)
    places = sorted(set(even.tolist()))
    starts = np.maximum(schedule.start[places, 0], 0).tolist()
    windows = [source.read(start, start + schedule.window + 1) for start in starts]
    # [T + 1, samples, H, W, C]
    pixels = truncated.to_pixels(jnp.asarray(np.stack(windows, axis=1)), dtype)
    objective = functools.partial(task.loss, method=Method())

    def loss_on(params: dict, frames: jax.Array) -> jax.Array:
        state = truncated.initial_train_state(
            task, params, optax.identity(), batch=frames.shape[1]
        )
        return objective(params, state.carry, frames, jnp.asarray(True))[0]

    @jax.jit
    def moments(params: dict) -> tuple[Any, Any]:
        def add(sums: tuple, frames: jax.Array) -> tuple:
            g = jax.grad(loss_on)(params, frames[:, None])
            squares = jax.tree.map(lambda s, g: s + g * g, sums[1], g)
            return (jax.tree.map(jnp.add, sums[0], g), squares), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        sums, _ = jax.lax.scan(add, (zeros, zeros), jnp.swapaxes(pixels, 0, 1))
        return jax.tree.map(lambda s: s / pixels.shape[1], sums)

    return (lambda params: loss_on(params, pixels)), moments
