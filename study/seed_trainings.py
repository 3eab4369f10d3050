"""The training of one arm of one seed."""

import dataclasses
import functools
import itertools
import math
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from prednet_jax import data, noise, optimizers, records, tasks
from prednet_jax.models import parameters
from prednet_jax.objectives import Method
from prednet_jax.training import evaluation, loop, truncated
from prednet_jax.training.trainer import Trainer, Validation
from study import dose
from study.endpoints import CURVES, Trajectory
from study.parts import Part, StudyArm

# Seed, first frame and number of the held-out frames, and of warm-up frames before.
HELD_OUT_SEED, HELD_OUT_START, HELD_OUT_FRAMES, WARM_UP = 999_999, 400, 100, 10
# Learning rate of Adam, and rate and momentum of gradient descent with momentum.
ADAM_RATE, MOMENTUM = 1e-3, (0.1, 0.9)


@functools.lru_cache(maxsize=64)
def optimizer(part: Part, treatment: StudyArm) -> optax.GradientTransformation:
    """Returns Chainer's Adam, or gradient descent with momentum."""
    drawn, start, factor = (
        part.random_windows,
        treatment.rate_change_update,
        treatment.rate,
    )
    if drawn is not None:
        cosine = optimizers.cosine(drawn.learning_rate, part.updates, drawn.rate_floor)
        adam = optimizers.chainer_adam(
            lambda step: cosine(step) * jnp.where(step < start, 1.0, factor)
        )
        return optimizers.clipped(adam, drawn.clip_gradient)
    base = ADAM_RATE if treatment.optimizer == "adam" else MOMENTUM[0]
    rate: Any = base * factor
    if start:
        rate = optax.piecewise_constant_schedule(base, {start: factor})
    if treatment.optimizer == "adam":
        return optimizers.chainer_adam(rate)
    return optax.sgd(rate, momentum=MOMENTUM[1])


@functools.lru_cache(maxsize=64)
def _trainer(part: Part, kind: StudyArm) -> Trainer:
    """Makes the updates of all draws and seeds of a treatment."""
    spec = noise.parse(kind.noise)
    settings: dict[str, Any] = {
        "network": dataclasses.replace(part.network, convolution=kind.convolution),
        "optimizer": optimizer(part, kind),
        "method": Method(
            objective="mse" if part.random_windows else None,
            targets=kind.targets,
            truncation_leak=part.truncation_leak,
        ),
    }
    if kind.dose is not None:
        return dose.AmplifiedTrainer(**settings, noise=spec, dose=kind.dose)
    return Trainer(**settings, noise=spec)


class _Training(NamedTuple):
    """A training in progress, with the fields of its `Trajectory`."""

    state: truncated.TrainState
    curves: dict[str, list[float]]
    weights: dict[int, np.ndarray]


def train(part: Part, treatment: StudyArm, seed: int) -> Trajectory:
    """Trains one arm of one seed to the end, or until its loss is not finite."""
    started = time.perf_counter()
    with jax.enable_x64(treatment.precision == "float64"):
        run = _before_fork(part, _before_rate(treatment), seed)
        run = _advance(part, treatment, seed, run, part.updates)
        return Trajectory(
            curves={name: np.asarray(curve) for name, curve in run.curves.items()},
            weights=run.weights,
            held_out_loss=_held_out(part, run.state.params),
            sha256=records.fingerprint(jax.device_get(run.state.params)),
            seconds=time.perf_counter() - started,
        )


# Arms whose rate changes late share all updates before with the arm whose rate does not
# change. 16: the arms and draws of a seed of part H.
@functools.lru_cache(maxsize=16)
def _before_fork(part: Part, treatment: StudyArm, seed: int) -> _Training:
    """Returns a training up to the first update at which a rate of the part changes."""
    state = initial_state(part, treatment, seed)
    start = _Training(
        state, {name: [] for name in CURVES}, {0: records.vector(state.params)}
    )
    forks = [t.rate_change_update for t in part.treatments if t.rate_change_update]
    return _advance(part, treatment, seed, start, min(forks, default=0))


def _before_rate(treatment: StudyArm) -> StudyArm:
    """Returns the treatment before its late change of the rate, without its name."""
    kind = dataclasses.replace(treatment, name="", seeds=None)
    return (
        dataclasses.replace(kind, rate=1.0, rate_change_update=0)
        if kind.rate_change_update
        else kind
    )


def _advance(
    part: Part, treatment: StudyArm, seed: int, run: _Training, updates: int
) -> _Training:
    """Continues to a total number of updates, or until the loss is not finite."""
    state, weights = run.state, dict(run.weights)
    curves = {name: list(values) for name, values in run.curves.items()}
    source, schedule = frames(part, seed)
    steps = loop.train(
        *(_trainer(part, _kind(treatment)), state, source, schedule),
        seed=seed,
        draw=treatment.draw,
    )
    finite = np.isfinite(curves["loss"]).all()
    remaining = updates - len(curves["loss"]) if finite else 0
    for state, record in itertools.islice(steps, remaining):
        for name in CURVES:
            curves[name].append(getattr(record, name))
        if record.update in part.snapshots:
            weights[record.update] = records.vector(state.params)
        if not np.isfinite(record.loss):
            break
    return _Training(state, curves, weights)


def _kind(treatment: StudyArm) -> StudyArm:
    """Returns the treatment without fields that do not change its program."""
    return dataclasses.replace(
        treatment, name="", draw=0, weights_seed_offset=0, seeds=None
    )


def initial_state(part: Part, treatment: StudyArm, seed: int) -> truncated.TrainState:
    """Returns the state of an arm of a seed before its first update."""
    drawn = loop.initial_params(part.network, treatment.weights_seed(seed))
    params = loop.prepare_params(drawn, np.dtype(treatment.precision), None, seed)
    descent = optimizer(part, _kind(treatment))
    batch = part.random_windows.batch if part.random_windows else 1
    return truncated.initial_train_state(part.network, params, descent, batch=batch)


# Bytes of a seed's stream up to which it is kept for all arms; part D has 553 MB.
_KEPT = 2**27


# 1: all arms of a seed read the same ranges of its stream, rendered once if it is kept.
@functools.lru_cache(maxsize=1)
def frames(part: Part, seed: int) -> tuple[data.FrameSource, data.Schedule]:
    """Returns the frames `[N, H, W, C]` of a seed, and its windows."""
    drawn, size = part.random_windows, tasks.frame_size(tasks.of(part.network))
    if drawn is None:
        source = data.open_source(part.data, seed=seed, **size)
        if part.updates * part.window * math.prod(size.values()) <= _KEPT:
            source = dataclasses.replace(source, frames=functools.cache(source.frames))
        return source, loop.frame_schedule(
            part.network, source, window=part.window, updates=part.updates
        )
    source = data.open_split(part.data, "train", sequences=drawn.sequences, **size)
    return source, data.random_windows(
        source, part.window, part.updates, batch=drawn.batch, seed=seed
    )


@functools.cache
def _sequences(part: Part) -> Validation:
    size = tasks.frame_size(tasks.of(part.network))
    source = data.open_split(part.data, "test", **size)
    return Validation(Trainer(part.network), source)


def held_out_copying(part: Part) -> float:
    """Computes the loss of copying on the held-out sequences of `RandomWindows`."""
    shown = _sequences(part).frames / 255
    return float(np.mean(np.square(np.diff(shown, axis=0))))


def _held_out(part: Part, params: Any) -> float:
    if parameters.first_not_finite(params) is not None:
        return math.nan  # Clipping makes white frames of it.
    size = tasks.frame_size(tasks.of(part.network))
    if part.random_windows is not None:
        return _sequences(part).score(params).loss
    source = data.open_source(part.data, seed=HELD_OUT_SEED, **size)
    frames = source.read(HELD_OUT_START - WARM_UP, HELD_OUT_START + HELD_OUT_FRAMES)
    predictions, _ = evaluation.predict_frames(tasks.of(part.network), params, frames)
    error = predictions[WARM_UP:] - frames[WARM_UP:].astype(np.float32) / 255
    return float(np.mean(np.square(error)))
