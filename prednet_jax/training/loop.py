"""Trains on sources of frames, from a step and a stream; yields a record per update.

A training of one seed and a training of many seeds in one program are two `Pair`s of a
step and a stream (`one_seed` here, `replicas.many_seeds`); `train_runs` runs either.
Frames are read a chunk of windows at a time, in the background, and go to the device as
uint8, one window per update. Each update is one dispatch of one compiled program.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from prednet_jax import data, tasks
from prednet_jax.data.windows import prefetch, read_chunks
from prednet_jax.noise.specs import NoiseSpec
from prednet_jax.objectives import Method
from prednet_jax.tasks import Network
from prednet_jax.training import evaluation, keys, truncated
from prednet_jax.training.trainer import Trainer
from prednet_jax.training.truncated import StepMetrics, TrainState

# uint8 bytes of frames that are read at a time.
CHUNK_BYTES = 32 * 2**20
# A copy of every array, by one program.
_copied = jax.jit(lambda state: jax.tree.map(jax.numpy.copy, state))


@dataclass(frozen=True)
class UpdateRecord:
    """One line of `metrics.jsonl`.

    Attributes:
        update: number of the update, from 1.
        frames_seen: transitions scored so far.
        loss: mean over the window of the MSE against true targets.
        last_frame_loss: MSE of the window's last prediction, as Chainer logs it.
        copy_last_frame_loss: mean over the same transitions of the MSE of copying the
            frame before (of a batch over several processes: of this one's sequences);
            None for single images.
        grad_norm: L2 norm of the gradient given to the optimiser.
        seconds: wall time of this update.
    """

    update: int
    frames_seen: int
    loss: float
    last_frame_loss: float
    copy_last_frame_loss: float | None
    grad_norm: float
    seconds: float


class SeedRun(NamedTuple):
    """A seed that is trained.

    Attributes:
        seed: the root seed, for the key of the noise.
        state: the state before the first update of this process.
        source: the frames.
        schedule: which frames each update sees, from update 1 on.
    """

    seed: int
    state: TrainState
    source: data.FrameSource
    schedule: data.Schedule


#: What one update sees of each run: a window `[T + 1, B, H, W, C]`, and whether it
#: opens a sequence.
Windows = list[tuple[np.ndarray, np.bool_]]


class Pair(NamedTuple):
    """A step and a stream, which together define a kind of training.

    Attributes:
        step: `(state, windows) -> (state, metrics of each run)`, metrics on the host.
        stream: the windows of each update.
        state: the state of all runs.
        state_of: `(state of all runs, i) -> state of run i`.
        gather: function that collects a state that several processes hold.
    """

    step: Callable[[Any, Windows], tuple[Any, list[StepMetrics]]]
    stream: Iterator[Windows]
    state: Any
    state_of: Callable[[Any, int], TrainState] = lambda state, _: state
    gather: Callable[[Any], Any] = lambda state: state


def initial_params(network: Network, seed: int) -> dict:
    """Initialises the weights of a seed, float32, on the CPU.

    They are drawn on the CPU in float32, because a GPU's normal() may differ in the
    last bit, and a float64 normal() draws other numbers.
    """
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.default_device(cpu), jax.enable_x64(False):
        return tasks.of(network).init_params(keys.derive(seed, "init"))


def prepare_params(
    params: dict, dtype: np.dtype, noise: NoiseSpec | None, seed: int, draw: int = 0
) -> dict:
    """Returns initial weights in a run's precision, with the noise on weights."""
    params = jax.tree.map(lambda x: jax.numpy.asarray(x, dtype), params)
    return truncated.noisy_weights(params, noise, noise_key(seed, draw))


def noise_key(seed: int, draw: int) -> jax.Array:
    """Returns the key of a run's noise."""
    key = keys.derive(seed, "noise")
    return jax.random.fold_in(key, draw) if draw else key


def frame_schedule(
    network: Network,
    source: data.FrameSource,
    *,
    window: int,
    updates: int,
    method: Method | None = None,
    batch: int = 1,
) -> data.Schedule:
    """Returns which frames each update sees, in the published order."""
    task = tasks.of(network)
    window = window if task.windowed else 0
    # The state after the network's own predictions is not carried to the next window.
    made_up = method is not None and method.extrapolate_from is not None
    fresh = task.fresh_windows or made_up
    frames = source.length, source.boundaries
    return data.schedule(*frames, window, updates, batch=batch, fresh=fresh)


def train(
    trainer: Trainer,
    state: TrainState,
    source: data.FrameSource,
    schedule: data.Schedule,
    *,
    seed: int,
    draw: int = 0,
) -> Iterator[tuple[TrainState, UpdateRecord]]:
    """Trains one seed from `state` to the end of the schedule.

    Another `draw` is other noise. Yields the state after each update, and the update's
    record. The state is valid until the next one is requested.
    """
    run = SeedRun(seed, state, source, schedule)
    pair = one_seed(trainer, run, draw)
    for state, (record,) in train_runs([run], pair, trainer.method):
        yield state, record


def one_seed(trainer: Trainer, run: SeedRun, draw: int = 0) -> Pair:
    """Returns the step and the stream of a single seed."""
    key = noise_key(run.seed, draw)

    def step(state: TrainState, windows: Windows) -> tuple[TrainState, list]:
        ((frames, first),) = windows
        state, metrics = trainer.step(state, frames, first, key)
        return state, [StepMetrics(*jax.device_get(tuple(metrics)))]

    # The caller keeps the arrays it passed in.
    return Pair(step, stream([run]), _copied(run.state))


def train_runs(
    runs: Sequence[SeedRun], pair: Pair, method: Method | None = None
) -> Iterator[tuple[Any, list[UpdateRecord]]]:
    """Trains runs to the end of their schedules, all from the same update.

    Yields the state of all runs after each update, and the record of each run. The
    state is valid until the next one is requested.
    """
    done = int(runs[0].state.update)
    seen = [frames_seen(run.schedule, done) for run in runs]
    state = pair.state
    for number, windows in enumerate(pair.stream, done + 1):
        start = time.perf_counter()
        state, measured = pair.step(state, windows)
        seconds = time.perf_counter() - start
        records = []
        for i, (frames, first) in enumerate(windows):
            metrics = measured[i]
            batch = runs[i].schedule.start.shape[1]
            seen[i] += batch * int(metrics.scored.sum())
            copied = copy_last_frame_loss(frames, bool(first), method)
            losses = float(metrics.loss), float(metrics.frame_losses[-1]), copied
            norm = float(metrics.grad_norm)
            records.append(UpdateRecord(number, seen[i], *losses, norm, seconds))
        yield state, records


def stream(
    runs: Sequence[SeedRun], streams: Sequence[int] | None = None
) -> Iterator[Windows]:
    """Yields the windows of the runs' remaining updates; one thread reads for all.

    Only the given `streams` of each run's batch are read. They default to all.
    """
    done, (source, schedule) = int(runs[0].state.update), runs[0][2:]
    streams = range(schedule.start.shape[1]) if streams is None else streams
    frame = source.height * source.width * source.channels
    together = frame * (schedule.window + 1) * len(runs) * len(streams)
    readers = [
        read_chunks(
            run.source,
            remaining._replace(start=remaining.start[:, list(streams)]),
            max(1, CHUNK_BYTES // together),
        )
        for run in runs
        for remaining in [run.schedule.after(done)]
    ]
    for chunks in prefetch(zip(*readers, strict=True)):
        each = (
            zip(frames, map(np.bool_, first), strict=True) for frames, first in chunks
        )
        yield from map(list, zip(*each, strict=True))


def copy_last_frame_loss(
    window: np.ndarray, first: bool, method: Method | None = None
) -> float | None:
    """Returns the loss of predicting each frame by the last frame seen before it.

    The window is `[T + 1, ..., H, W, C]` uint8, and the loss is in units of [0, 1]. In
    a `first` window the transition from the stand-in does not count. Without a
    transition the result is None.
    """
    frames = window[1:] if first else window
    if len(frames) < 2:
        return None
    shown = frames.astype(np.float32)
    unseen_from = method.extrapolate_from if method is not None else None
    steps = shown[1:] - evaluation.last_seen(shown, unseen_from)[1:]
    return float(np.mean(np.square(steps / 255)))


def frames_seen(schedule: data.Schedule, updates: int) -> int:
    """Returns the number of transitions that the first updates score."""
    # A first window of T transitions scores T - 1 of them.
    counted, batch = schedule.start[:updates].shape
    opened = schedule.first[:updates].sum() if schedule.window else 0
    return batch * int(counted * max(schedule.window, 1) - opened)


def batches(
    source: data.FrameSource, schedule: data.Schedule
) -> Iterator[tuple[np.ndarray, np.bool_]]:
    """Yields each window `[T + 1, B, H, W, C]`, and whether it opens a sequence."""
    fresh = TrainState({}, None, None, np.int32(0))  # type: ignore[arg-type]
    for (window,) in stream([SeedRun(0, fresh, source, schedule)]):
        yield window
