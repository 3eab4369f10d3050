"""Curvature along a training that is made while it is measured.

The network is trained with Adam. Its curvature is that of the training loss without
noise on a probe set: windows that are distributed evenly over the frames of the run,
each from the zero state. The state that training carries differs between stops, but all
stops have to be measured on the same loss.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd

from prednet_jax import curvature, data, keys, process
from prednet_jax.data.windows import Schedule
from prednet_jax.objectives import Method
from prednet_jax.report.documents import columns
from prednet_jax.report.numbers import text
from prednet_jax.tasks import Adam, Task
from prednet_jax.training import loop, truncated
from prednet_jax.training.trainer import Trainer

# Second derivatives take long to compile; this is the fastest for small networks.
_CONVOLUTION = "xla"
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
    """Trains a network on embedded data and measures it at some updates.

    Args:
        task: the network.
        updates: the stops as numbers of updates, ascending, from 1.
        window: transitions per update, for a network that sees windows.
        samples: number of windows or images in the probe set.
        seed: root seed of weights, data and start vectors.
        precision: `float32` or `float64`.
        options: options of `curvature.probe`, without its key.

    Yields:
        The result of `curvature.probe` at each stop, with the `model` in front.
    """
    dtype = process.set_precision(precision)
    task = task.with_convolution(_CONVOLUTION)
    height, width, channels = task.frame
    source = data.open_source(
        task.data, seed=seed, height=height, width=width, channels=channels
    )
    last = updates[-1]
    optimizer, adam = task.optimizer(last), task.adam(last)
    schedule = loop.frame_schedule(task, source, window=window, updates=last)
    params = loop.prepare_params(loop.initial_params(task, seed), dtype, None, seed)
    start = truncated.initial_train_state(task, params, optimizer)
    loss, moments = _probe_set(task, source, schedule, dtype, samples)
    trainer = Trainer(task, optimizer, Method())
    for state, record in loop.train(trainer, start, source, schedule, seed=seed):
        if record.update in updates:
            stop = _stop(state, adam)
            key = jax.random.fold_in(keys.stream(seed, "probe"), stop.update)
            of = moments(stop.params)
            row = curvature.probe(loss, stop, of, key=key, **options)
            yield {"model": task.name} | row


def _stop(state: truncated.TrainState, adam: Adam) -> curvature.Stop:
    """Copies the state, since the training overwrites its buffers."""
    copy = functools.partial(jax.tree.map, lambda x: jnp.array(x, copy=True))
    moments: Any = state.optimizer_state
    update = int(state.update)
    return curvature.Stop(
        update,
        copy(state.params),
        copy(moments.mu),
        copy(moments.nu),
        adam.at(update),
        adam.at(update + 1),
        adam.eps,
    )


def _probe_set(
    task: Task,
    source: data.FrameSource,
    schedule: Schedule,
    dtype: Any,
    samples: int,
) -> tuple[Callable, Callable]:
    """Mean loss over the samples, and the moments of their gradients."""
    even = np.linspace(0, len(schedule.start) - 1, samples).astype(int)
    places = sorted(set(even.tolist()))
    starts = np.maximum(schedule.start[places, 0], 0).tolist()
    windows = [source.read(start, start + schedule.window + 1) for start in starts]
    # [T + 1, samples, H, W, C]
    pixels = truncated.to_pixels(jnp.asarray(np.stack(windows, axis=1)), dtype)
    objective = truncated.make_loss(task, Method())

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


#: The cells of the printed table by heading, from the fields of a row.
_CELLS = {
    "model": "{model}",
    "update": "{update}",
    "loss": "{loss:.3g}",
    "|g|": "{grad_norm:.2g}",
    "raw low": "{raw.lowest:.3g}",
    "raw high": "{raw.highest:.3g}",
    "Adam low": "{preconditioned.lowest:.3g}",
    "Adam high": "{preconditioned.highest:.3g}",
    "negative": "{negative}",
    "diff": "{preconditioned.finite_difference.verdict}",
    "reach": "{reach:.2g}",
    "cos step": "{escape.step_cosine:.3f}",
    "growth": "{escape.growth_per_update:.4f}",
    "saved": "{escape.updates_saved:.1e}",
    "needed": "{escape.noise_for_one_update:.1e}",
}
LEGEND = """\
raw: eigenvalues of H. Adam: eigenvalues of P^-1/2 H P^-1/2; their residuals are in the
record, and whether they had settled. negative: whether negative curvature is proved;
'-': none was found, which proves nothing. diff: whether finite differences of the loss
along the lowest direction agree. reach: how far along it they agree, in lengths of
Adam's last step. Below 1 the loss stops being quadratic (at kinks of ReLUs) within one
step, and growth and saved hold near the weights only. cos step: cosine between Adam's
last step and that direction. growth: factor per update along it. saved: updates that
relative noise {noise:g} saves. needed: relative noise that would save one update."""


def table(rows: Sequence[Row]) -> str:
    """The rows as a table in plain text."""
    cells = [[*_CELLS]]
    for row in rows:
        fields = defaultdict(lambda: None, pd.json_normalize(row).to_dict("records")[0])
        if fields["preconditioned.negative_curvature_proved"]:
            fields["negative"] = "proved"
        if row["escape"]:
            reach = row["preconditioned"]["finite_difference"]["reach"]
            fields["reach"] = reach / row["escape"]["step_length"]
        cells.append([text(cell, fields) for cell in _CELLS.values()])
    return columns(cells, right=range(1, len(_CELLS)))
