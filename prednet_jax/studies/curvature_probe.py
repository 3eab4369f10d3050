"""Trainings whose curvature is to be probed: made here, or read from a run's directory.

A subject is a training with Adam and a probe set: the clean training loss on windows
spread over what the run sees. Each window starts from the zero state, since the carried
state belongs to one moment of one run, and the probes of all stops have to be of one
and the same loss.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from prednet_jax import curvature, data, keys, process, records, tasks
from prednet_jax.data.windows import Schedule
from prednet_jax.errors import UserError
from prednet_jax.objectives import Method
from prednet_jax.tasks import Adam, Network, Task
from prednet_jax.training import checkpoints, loop, truncated

# Fastest to compile for small networks; a second derivative takes long.
_CONVOLUTION = "xla"


@dataclass(frozen=True)
class Subject:
    """One training to be probed.

    Attributes:
        model: name of the network.
        seed: root seed.
        loss: weights to the mean loss over the probe set; one object for all stops.
        moments: weights to the moments of the samples' gradients.
        stops: where to probe, in the order of the updates.
    """

    model: str
    seed: int
    loss: Callable[[dict], jax.Array]
    moments: Callable[[dict], curvature.Moments]
    stops: Iterator[curvature.Stop]

    def rows(self, **options: Any) -> Iterator[dict[str, Any]]:
        """Probes stop after stop.

        Args:
            options: of `curvature.probe`, but for its key.

        Yields:
            Rows of `curvature.probe` with the `model` in front.
        """
        for stop in self.stops:
            key = jax.random.fold_in(keys.stream(self.seed, "probe"), stop.update)
            moments = self.moments(stop.params)
            row = curvature.probe(self.loss, stop, moments, key=key, **options)
            yield {"model": self.model} | row


def fresh(
    network: Network,
    *,
    updates: tuple[int, ...],
    window: int,
    samples: int,
    seed: int,
    precision: str,
) -> Subject:
    """A network trained on embedded data while its stops are probed.

    Args:
        network: a task, or a configuration of this package.
        updates: stops, ascending, from 1.
        window: transitions per update, of a network that sees windows.
        samples: windows or images in the probe set.
        seed: root seed of weights, data and probes.
        precision: `float32` or `float64`.

    Raises:
        UserError: a value is outside what is accepted.
    """
    dtype = process.set_precision(precision)
    keys.stream(seed, "init")
    task = tasks.of(network).with_convolution(_CONVOLUTION)
    source = _open(task, None, seed)
    method = Method()
    last = updates[-1]
    optimizer = task.optimizer(last)
    schedule = loop.frame_schedule(task, source, window=window, updates=last)

    def stops() -> Iterator[curvature.Stop]:
        params = loop.prepare_params(loop.initial_params(task, seed), dtype, None, seed)
        state = truncated.initial_train_state(task, params, optimizer)
        update = loop.compile_update(task, optimizer, method, None)
        run = loop.train(update, state, source, schedule, seed=seed)
        for state, record in run:
            if record.update in updates:
                yield _stop(state, task.adam(last))

    loss, moments = _probe_set(task, method, source, schedule, dtype, samples)
    return Subject(task.name, seed, loss, moments, stops())


def saved(
    folder: Path,
    *,
    updates: tuple[int, ...] | None,
    windows: int,
    images: int,
    precision: str | None,
) -> Subject:
    """The checkpoints of a run of train.py, rebuilt from its manifest.

    Args:
        folder: the run's directory.
        updates: checkpoints to probe; None: all.
        windows: windows in the probe set of a network that sees windows.
        images: images in that of one that sees images.
        precision: None: the run's own.

    Raises:
        UserError: the directory is no such run, or lacks a checkpoint.
    """
    manifest = records.read_json(folder / records.MANIFEST)
    chosen = _saved_updates(folder, updates)
    try:
        task = tasks.recorded(manifest["model"], manifest["network"])
        task = task.with_convolution(_CONVOLUTION)
        used, seed = manifest["flags"], manifest["seed"]
        weights = used["layer_weights"] and tuple(map(float, used["layer_weights"]))
        method = Method(
            objective=used["objective"],
            targets="true",
            layer_weights=weights or None,
        )
        dtype = process.set_precision(precision or used["precision"])
        source = _open(
            task,
            used["data"],
            seed,
            crop=used["crop"],
            allow_outside=used.get("allow_outside", False),
            offset=tuple(int(pixels) for pixels in used["offset"]),
        )
        total, window = used["updates"], used["window"]
        adam = task.adam(total)
        if used["learning_rate"] is not None:
            adam = Adam(used["learning_rate"])
        trained_in = np.dtype(used["precision"])
    except (KeyError, TypeError) as error:
        raise UserError(
            f"--run={folder}: {records.MANIFEST} is not that of train.py ({error!r})"
        ) from None
    schedule = loop.frame_schedule(task, source, window=window, updates=total)

    def stops() -> Iterator[curvature.Stop]:
        params = loop.prepare_params(
            loop.initial_params(task, seed), trained_in, None, seed
        )
        like = truncated.initial_train_state(task, params, task.optimizer(total))
        for update in chosen:
            yield _stop(checkpoints.restore(folder, update, like), adam, dtype)

    samples = windows if task.windowed else images
    loss, moments = _probe_set(task, method, source, schedule, dtype, samples)
    return Subject(task.name, seed, loss, moments, stops())


def _saved_updates(folder: Path, updates: tuple[int, ...] | None) -> Sequence[int]:
    """The updates asked for, all of which were saved; None: all saved ones."""
    found = checkpoints.updates(folder)
    if not found:
        raise UserError(
            f"--run={folder}: no checkpoints; expected a run of train.py with "
            "--checkpoint_every"
        )
    missing = [update for update in updates or () if update not in found]
    if missing:
        raise UserError(
            f"--updates={','.join(map(str, updates or ()))}: {missing[0]} was not "
            f"saved in {folder}; expected some of {', '.join(map(str, found))}"
        )
    return updates or found


def _open(task: Task, name: str | None, seed: int, **crop: Any) -> data.FrameSource:
    height, width, channels = task.frame
    return data.open_source(
        name or task.data,
        height=height,
        width=width,
        channels=channels,
        seed=seed,
        **crop,
    )


def _stop(
    state: truncated.TrainState,
    adam: Adam,
    dtype: Any = None,
) -> curvature.Stop:
    """Copies what is needed: the training reuses the buffers of its state."""
    copy = functools.partial(jax.tree.map, lambda x: jnp.array(x, dtype, copy=True))
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
    method: Method,
    source: data.FrameSource,
    schedule: Schedule,
    dtype: Any,
    samples: int,
) -> tuple[Callable, Callable]:
    """Mean loss over the samples, and the moments of their gradients."""
    even = np.linspace(0, len(schedule.start) - 1, samples).astype(int)
    places = sorted(set(even.tolist()))
    size = schedule.window + 1
    frames = np.stack(
        [
            source.read(start, start + size)
            for start in np.maximum(schedule.start[places], 0).tolist()
        ],
        axis=1,
    )  # [T + 1, samples, H, W, C]
    pixels = truncated.to_pixels(jnp.asarray(frames), dtype)
    objective = truncated.make_loss(task, method)

    def loss_on(params: dict, frames: jax.Array) -> jax.Array:
        state = truncated.initial_train_state(
            task, params, optax.identity(), batch=frames.shape[1]
        )
        return objective(params, state.carry, frames, jnp.asarray(True))[0]

    @jax.jit
    def moments(params: dict) -> curvature.Moments:
        def add(sums: tuple, frames: jax.Array) -> tuple:
            g = jax.grad(loss_on)(params, frames[:, None])
            squares = jax.tree.map(lambda s, g: s + g * g, sums[1], g)
            return (jax.tree.map(jnp.add, sums[0], g), squares), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        sums, _ = jax.lax.scan(add, (zeros, zeros), jnp.swapaxes(pixels, 0, 1))
        mean = jax.tree.map(lambda s: s / pixels.shape[1], sums)
        return curvature.Moments(*mean)

    return (lambda params: loss_on(params, pixels)), moments
