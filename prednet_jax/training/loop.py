"""The training loop: frames in, one record an update out.

Frames are read a chunk of windows at a time, in the background, and go to the device
as uint8, a window an update. Each update is one dispatch of one compiled program, that
of a `Trainer` (see `truncated.jit_update` for its memory).
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np

from prednet_jax import data, tasks
from prednet_jax.noise.specs import NoiseSpec
from prednet_jax.objectives import Method
from prednet_jax.tasks import Network
from prednet_jax.training import evaluation, keys, truncated
from prednet_jax.training.trainer import Trainer
from prednet_jax.training.truncated import TrainState

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


def initial_params(network: Network, seed: int) -> dict:
    """The initial weights of a seed, float32, drawn on the CPU: all arms get the same.

    A GPU's normal() may differ in the last bit, one of float64 draws other numbers.
    """
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.default_device(cpu), jax.enable_x64(False):
        return tasks.of(network).init_params(keys.stream(seed, "init"))


def prepare_params(
    params: dict, dtype: np.dtype, noise: NoiseSpec | None, seed: int, draw: int = 0
) -> dict:
    """Initial weights as a run trains them: in its precision, with noise on weights."""
    params = jax.tree.map(lambda x: jax.numpy.asarray(x, dtype), params)
    return truncated.noisy_weights(params, noise, noise_key(seed, draw))


def noise_key(seed: int, draw: int) -> jax.Array:
    """The key of a run's noise."""
    key = keys.stream(seed, "noise")
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
    """Which frames each update sees, in the published order."""
    task = tasks.of(network)
    window = window if task.windowed else 0
    # What the network made up in a window is not carried on.
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
    """Trains from `state` to the end of the schedule; another `draw` is other noise.

    Yields the state after each update, valid until the next is asked for, to which its
    buffers may be donated, and the update's record.
    """
    key = noise_key(seed, draw)
    done = int(state.update)
    seen = frames_seen(schedule, done)
    state = _copied(state)  # The caller keeps the arrays it passed in.
    for frames, first in batches(source, schedule.after(done)):
        start = time.perf_counter()
        state, metrics = trainer.step(state, frames, first, key)
        fetched = truncated.StepMetrics(*jax.device_get(tuple(metrics)))
        seconds = time.perf_counter() - start
        done += 1
        seen += int(fetched.scored.sum()) * schedule.start.shape[1]
        copied = copy_last_frame_loss(frames, bool(first), trainer.method)
        yield state, update_record(done, seen, fetched, copied, seconds)


def copy_last_frame_loss(
    window: np.ndarray, first: bool, method: Method | None = None
) -> float | None:
    """Loss of predicting each frame by the last one before it that is seen.

    Of a window `[T + 1, ..., H, W, C]` uint8, with pixels in [0, 1]; the transition
    from the stand-in of a `first` one does not count. None: there is no transition.
    """
    frames = window[1:] if first else window
    if len(frames) < 2:
        return None
    shown = frames.astype(np.float32)
    unseen_from = method.extrapolate_from if method is not None else None
    steps = shown[1:] - evaluation.last_seen(shown, unseen_from)[1:]
    return float(np.mean(np.square(steps / 255)))


def update_record(
    update: int,
    frames_seen: int,
    metrics: truncated.StepMetrics,
    copied: float | None,
    seconds: float,
) -> UpdateRecord:
    """The record of an update, from its metrics as NumPy arrays."""
    losses = float(metrics.loss), float(metrics.frame_losses[-1]), copied
    norm = float(metrics.grad_norm)
    return UpdateRecord(update, frames_seen, *losses, norm, seconds)


def frames_seen(schedule: data.Schedule, updates: int) -> int:
    """Transitions scored in the first updates of a schedule."""
    # A first window of T transitions scores T - 1 of them.
    made, batch = schedule.start[:updates].shape
    opened = schedule.first[:updates].sum() if schedule.window else 0
    return batch * int(made * max(schedule.window, 1) - opened)


def windows_per_chunk(source: data.FrameSource, window: int, streams: int = 1) -> int:
    """Windows of every stream that are read together."""
    frame = source.height * source.width * source.channels
    return max(1, CHUNK_BYTES // (frame * (window + 1) * streams))


def batches(
    source: data.FrameSource, schedule: data.Schedule
) -> Iterator[tuple[np.ndarray, np.bool_]]:
    """Frames `[T + 1, B, H, W, C]` of each update, and if they open a sequence."""
    count = windows_per_chunk(source, schedule.window, schedule.start.shape[1])
    for frames, first in data.chunks(source, schedule, count):
        for window, opens in zip(frames, first, strict=True):
            yield window, np.bool_(opens)
