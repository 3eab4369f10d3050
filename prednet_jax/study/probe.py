"""Trainings whose curvature is to be probed: made here, or read from a run's directory.

A subject is a training with Adam and a probe set: the clean training loss on windows
spread over what the run sees. Each window starts from the zero state, since the carried
state belongs to one moment of one run, and the probes of all stops have to be of one
and the same loss.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from prednet_jax import backends, curvature, data, keys, optimizers, records
from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.data.windows import Schedule
from prednet_jax.training import checkpoints, loop, truncated

Config = PredNetConfig | AutoencoderConfig
# Fastest to compile for small networks; a second derivative takes long.
_CONVOLUTION = "xla"


@dataclass(frozen=True)
class Subject:
    """One training to be probed.

    Attributes:
        model: `prednet` or `autoencoder`.
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
    config: Config,
    *,
    updates: tuple[int, ...],
    window: int,
    samples: int,
    seed: int,
    precision: str,
) -> Subject:
    """A network trained on embedded data while its stops are probed.

    Args:
        config: the network.
        updates: stops, ascending, from 1.
        window: transitions an update of PredNet.
        samples: windows or images in the probe set.
        seed: root seed of weights, data and probes.
        precision: `float32` or `float64`.

    Raises:
        ValueError: a value is outside what is accepted.
    """
    dtype = backends.set_precision(precision)
    keys.stream(seed, "init")
    source = _open(config, None, seed)
    method = truncated.Method()
    last = updates[-1]
    optimizer = loop.default_optimizer(config, last)
    schedule = loop.frame_schedule(config, source, window=window, updates=last)
    adam = _adam_settings(config, last, None)

    def stops() -> Iterator[curvature.Stop]:
        params = loop.prepare_params(
            loop.initial_params(config, seed), dtype, None, seed
        )
        state = truncated.initial_train_state(config, params, optimizer)
        update = loop.compile_update(config, optimizer, method, None)
        run = loop.train(update, state, source, schedule, seed=seed)
        for state, record in run:
            if record.update in updates:
                yield _stop(state, adam)

    loss, moments = _probe_set(config, method, source, schedule, dtype, samples)
    return Subject(_name(config), seed, loss, moments, stops())


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
        windows: windows in the probe set of a PredNet.
        images: images in that of an autoencoder.
        precision: None: the run's own.

    Raises:
        ValueError: the directory is no such run, or lacks a checkpoint.
    """
    manifest = records.read_json(folder / records.MANIFEST)
    found = checkpoints.updates(folder)
    if not found:
        raise ValueError(
            f"--run={folder}: no checkpoints; expected a run of train.py with "
            "--checkpoint_every"
        )
    missing = [update for update in updates or () if update not in found]
    if missing:
        raise ValueError(
            f"--updates={','.join(map(str, updates or ()))}: {missing[0]} was not "
            f"saved in {folder}; expected some of {', '.join(map(str, found))}"
        )
    try:
        config = _network(manifest)
        used, seed = manifest["flags"], manifest["seed"]
        weights = used["layer_weights"] and tuple(map(float, used["layer_weights"]))
        method = truncated.Method(
            objective=used["objective"],
            targets="true",
            layer_weights=weights or None,
        )
        dtype = backends.set_precision(precision or used["precision"])
        source = _open(
            config,
            used["data"],
            seed,
            crop=used["crop"],
            offset=tuple(int(pixels) for pixels in used["offset"]),
        )
        total, window = used["updates"], used["window"]
        adam = _adam_settings(config, total, used["learning_rate"])
        trained_in = np.dtype(used["precision"])
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"--run={folder}: {records.MANIFEST} is not that of train.py ({error!r})"
        ) from None
    schedule = loop.frame_schedule(config, source, window=window, updates=total)

    def stops() -> Iterator[curvature.Stop]:
        params = loop.prepare_params(
            loop.initial_params(config, seed), trained_in, None, seed
        )
        optimizer = loop.default_optimizer(config, total)
        like = truncated.initial_train_state(config, params, optimizer)
        for update in updates or found:
            yield _stop(checkpoints.restore(folder, update, like), adam, dtype)

    samples = images if isinstance(config, AutoencoderConfig) else windows
    loss, moments = _probe_set(config, method, source, schedule, dtype, samples)
    return Subject(_name(config), seed, loss, moments, stops())


def small_prednet(channels: tuple[int, ...], height: int, width: int) -> PredNetConfig:
    """A PredNet that is cheap to differentiate twice."""
    return PredNetConfig(
        channels=channels, height=height, width=width, convolution=_CONVOLUTION
    )


def _name(config: Config) -> str:
    return "autoencoder" if isinstance(config, AutoencoderConfig) else "prednet"


def _network(manifest: dict) -> Config:
    network: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in manifest["network"].items()
    }
    if manifest["model"] == "autoencoder":
        return AutoencoderConfig(**network)
    return PredNetConfig(**(network | {"convolution": _CONVOLUTION}))


def _open(config: Config, name: str | None, seed: int, **crop: Any) -> data.FrameSource:
    grey = isinstance(config, AutoencoderConfig)
    widths: Any = config.channels
    return data.open_source(
        name or ("digits" if grey else "walk"),
        height=config.height,
        width=config.width,
        channels=widths if grey else widths[0],
        seed=seed,
        **crop,
    )


def _adam_settings(
    config: Config, updates: int, constant: float | None
) -> tuple[Callable[[int], float], float]:
    """Learning rate by update (from 1) and epsilon, as train.py chooses them."""
    if constant is not None:
        return (lambda update: constant), 1e-8
    if isinstance(config, PredNetConfig) and config.variant == "lotter":
        schedule = optimizers.lotter_schedule(updates)
        return (lambda update: float(schedule(update - 1))), 1e-7
    return (lambda update: 1e-3), 1e-8


def _stop(
    state: truncated.TrainState,
    adam: tuple[Callable[[int], float], float],
    dtype: Any = None,
) -> curvature.Stop:
    """Copies what is needed: the training reuses the buffers of its state."""
    copy = functools.partial(jax.tree.map, lambda x: jnp.array(x, dtype, copy=True))
    moments: Any = state.optimizer_state
    rate, eps = adam
    update = int(state.update)
    return curvature.Stop(
        update,
        copy(state.params),
        copy(moments.mu),
        copy(moments.nu),
        rate(update),
        rate(update + 1),
        eps,
    )


def _probe_set(
    config: Config,
    method: truncated.Method,
    source: data.FrameSource,
    schedule: Schedule,
    dtype: Any,
    samples: int,
) -> tuple[Callable, Callable]:
    """Mean loss over the samples, and the moments of their gradients."""
    spread = np.linspace(0, len(schedule.start) - 1, samples).astype(int)
    places = sorted(set(spread.tolist()))
    size = schedule.window + 1
    frames = np.stack(
        [
            source.read(start, start + size)
            for start in np.maximum(schedule.start[places], 0).tolist()
        ],
        axis=1,
    )  # [T + 1, samples, H, W, C]
    pixels = truncated.to_pixels(jnp.asarray(frames), dtype)
    objective = truncated.make_loss(config, method)

    def loss_on(params: dict, frames: jax.Array) -> jax.Array:
        state = truncated.initial_train_state(
            config, params, optax.identity(), batch=frames.shape[1]
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
