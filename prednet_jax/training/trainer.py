"""Training in a user's own loop: `init`, `step`, `evaluate`, each compiled once.

Everything that an update changes is in `TrainState`: parameters, optimiser state,
carried state, number of updates. The scripts train by the same class. Trainers of equal
settings share their programs, and a program is made for each shape of a window, not for
each length of a stream or number of updates. docs/training.md has examples.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from prednet_jax import optimizers, tasks
from prednet_jax.data.frames import FrameSource
from prednet_jax.errors import UserError, check_int, log_line
from prednet_jax.models.parameters import first_not_finite
from prednet_jax.models.prednet import check_range, check_time
from prednet_jax.noise.specs import NoiseSpec
from prednet_jax.objectives import Method
from prednet_jax.tasks import Network, PredNetTask, Task
from prednet_jax.training import evaluation, keys, truncated
from prednet_jax.training.truncated import StepMetrics, TrainState

# Least numbers of sequences and of frames of a validation, if the data has as many.
_SEQUENCES, _FRAMES = 16, 1600


class PredictionScore(NamedTuple):
    """The scores of the predictions of a stream.

    Attributes:
        loss: mean over all predicted frames of the MSE.
        copy_last_frame_loss: mean MSE of copying the frame before; None for images.
        frame_losses: `[T - 1]`, MSE of the prediction of frame i + 1, which has seen
            frames up to i (`[T]` of images).
    """

    loss: float
    copy_last_frame_loss: float | None
    frame_losses: np.ndarray

    @property
    def ratio(self) -> float | None:
        """Loss divided by the loss of copying; below 1 is better. None for images.

        It is infinite where nothing moves.
        """
        copied = self.copy_last_frame_loss
        return None if copied is None else self.loss / copied if copied else np.inf


def windows(frames: Any, window: int) -> Iterator[tuple[Any, np.bool_]]:
    """Cuts a stream in memory as the published loop does; drops an unfinished tail.

    `frames` are `[T, H, W, C]`, one stream in order, or `[T, B, H, W, C]`, several. The
    first window has a transition less, unless `window` is 1. (`training.loop.batches`
    does it for a `data.FrameSource`.) Yields `[window + 1, B, H, W, C]`, and whether
    the stream begins there: frame 0 is then a stand-in.

    Example:
        >>> import numpy as np
        >>> from prednet_jax import windows
        >>> video = np.zeros((9, 8, 8, 3), np.uint8)
        >>> [(frames.shape[0], bool(first)) for frames, first in windows(video, 4)]
        [(5, True), (5, False)]
    """
    check_int("window", window, 1)
    frames = _as_stream(frames)
    check_time(frames)
    stand_in = 1 if window > 1 else 0
    count = (len(frames) - 1 + stand_in) // window
    if count < 1:
        raise UserError(
            f"frames of {len(frames)} time steps: expected at least "
            f"{max(window, 2)} with window={window}"
        )
    for index in range(count):
        # Window k starts at frame k window - 1; the first has a stand-in in front.
        begin = index * window - stand_in
        places = np.maximum(begin + np.arange(window + 1), 0)
        yield frames[places], np.bool_(index == 0)


def _as_stream(frames: Any) -> Any:
    """Returns frames `[T, B, H, W, C]` on the host, where reading compiles nothing."""
    if not isinstance(frames, jax.core.Tracer):
        frames = np.asarray(frames)
    if frames.ndim not in (4, 5):
        raise UserError(
            f"frames of shape {tuple(frames.shape)}: expected [T, H, W, C], or of "
            "several streams [T, B, H, W, C]"
        )
    check_range(frames)
    return frames[:, None] if frames.ndim == 4 else frames


@dataclass(frozen=True)
class Trainer:
    """A network and its training method, as pure functions of the state.

    A network that cannot be trained by this method is a UserError.

    Attributes:
        network: a configuration of this package, or a `tasks.Task`.
        optimizer: an optax transformation. Create it once, since each new object
            compiles a new program. Defaults to `chainer_adam()`.
        method: objective, targets, leak, extrapolation.
        noise: a noise spec, or None.
    """

    network: Network
    optimizer: optax.GradientTransformation | None = None
    method: Method = field(default_factory=Method)
    noise: NoiseSpec | None = None

    def __post_init__(self) -> None:
        self.task.check(self.method)

    @functools.cached_property
    def task(self) -> Task:
        """The network as a task."""
        return tasks.of(self.network)

    @functools.cached_property
    def transformation(self) -> optax.GradientTransformation:
        """The optimiser that is used."""
        return self.optimizer or optimizers.chainer_adam()

    @functools.cached_property
    def program(self) -> Any:
        """The compiled update that `step` calls, `(state, frames, first, key)`."""
        return _program(self.task, self.transformation, self.method, self.noise)

    def init(self, start: Any, *, batch: int = 1) -> TrainState:
        """Returns the state before the first update, of `batch` sequences.

        `start` is the parameters, which are not changed, or a PRNG key to draw them
        from.
        """
        params = start if isinstance(start, dict) else self.task.init_params(start)
        return truncated.initial_train_state(
            self.task, params, self.transformation, batch=batch
        )

    def step(
        self, state: TrainState, frames: Any, first: Any, key: jax.Array | None = None
    ) -> tuple[TrainState, StepMetrics]:
        """Makes an update; returns the state after it, and the losses of the frames.

        Args:
            state: the state before the update. On a GPU its memory is donated to the
                new state, so do not use it again.
            frames: a window `[T + 1, B, H, W, C]` as `windows` makes it (`[1, B, H, W,
                C]` for a network of single images); uint8, or floating point in [0, 1].
            first: whether it opens a sequence.
            key: the run's noise key, the same at each update. Defaults to the key of
                seed 0.
        """
        steps, streams = np.shape(frames)[:2]
        if not self.task.windowed and steps != 1:
            raise UserError(
                f"frames of shape {np.shape(frames)}: expected [1, B, H, W, C] with "
                f"model={self.task.name}, which has no windows"
            )
        self._check_frames(frames)
        if isinstance(self.task, PredNetTask):
            batch = len(state.carry.hidden[0])
            if steps < 2 or streams != batch:
                raise UserError(
                    f"frames of shape {np.shape(frames)}: expected [T + 1, {batch}, "
                    f"H, W, C], T at least 1, for a state of {batch} sequences "
                    "(batch= of init)"
                )
        config = getattr(self.task, "config", None)
        if config is not None and isinstance(frames, np.ndarray):  # On the host.
            check_range(frames, getattr(config, "pixel_max", 1.0))
        key = _default_key() if key is None else key
        return self.program(state, frames, np.bool_(first), key)

    def _check_frames(self, frames: Any) -> None:
        shape, kind = np.shape(frames), jax.numpy.result_type(frames)
        if shape[2:] != self.task.frame:
            sizes = ", ".join(map(str, self.task.frame))
            raise UserError(f"frames of shape {shape}: expected [T, B, {sizes}]")
        if kind != np.uint8 and not jax.numpy.issubdtype(kind, np.floating):
            raise UserError(f"frames of {kind}: expected uint8, or float in [0, 1]")

    def evaluate(self, params: Any, frames: Any) -> PredictionScore:
        """Predicts streams from the zero state, without training on them.

        `frames` are `[T, H, W, C]`, T >= 2, as in `step`, or `[T, B, H, W, C]` of
        several streams, over which losses are averaged. Losses are NaN if a weight is
        not finite.
        """
        frames = _as_stream(frames)
        self._check_frames(frames)
        if self.task.windowed:
            check_time(frames, 2)
        predicted, _ = evaluation.predict_frames(self.task, params, frames)
        scale = np.float32(255 if frames.dtype == np.uint8 else 1)
        truth, unseen = np.asarray(frames, np.float32) / scale, int(self.task.windowed)

        def errors(guess: np.ndarray) -> np.ndarray:
            pairs = zip(guess[unseen:], truth[unseen:], strict=True)
            return np.array([np.square(mine - true).mean() for mine, true in pairs])

        frame_losses, copied = errors(predicted), None
        # The bottom prediction is clipped, which makes white frames of NaN.
        if first_not_finite(params) is not None:
            frame_losses = np.full_like(frame_losses, np.nan)
        if self.task.windowed:
            copied = float(errors(evaluation.last_seen(truth, None)).mean())
        return PredictionScore(float(frame_losses.mean()), copied, frame_losses)


class Validation:
    """Held-out sequences on which frozen weights are scored during a training.

    `frames` are the first pieces of `evaluation.pieces`, `[T, B, H, W, C]` uint8;
    docs/training.md gives their number.
    """

    def __init__(self, trainer: Trainer, source: FrameSource):
        steps = evaluation.piece_length(source)
        begins = evaluation.pieces(source, steps)
        begins = begins[: max(_SEQUENCES, -(-_FRAMES // steps))]
        if (scored := len(begins) * steps) < source.length:
            log_line(
                f"validation: {scored} of {source.length} frames of {source.name} are "
                f"scored, as {len(begins)} pieces of {steps}"
            )
        frames = [source.read(begin, begin + steps) for begin in begins]
        self._trainer, self.frames = trainer, np.stack(frames, 1)
        self.manifest_entry = {
            "data": source.name,
            "sequences": len(frames),
            "frames": steps,
            "sha256": source.fingerprint,
        }

    def score(self, params: Any) -> PredictionScore:
        """Evaluates weights without noise."""
        return self._trainer.evaluate(params, self.frames)


@functools.lru_cache(maxsize=64)
def _program(
    task: Task,
    optimizer: optax.GradientTransformation,
    method: Method,
    noise: NoiseSpec | None,
) -> Any:
    step = truncated.make_step(task, optimizer, method, noise=noise)
    return truncated.jit_update(step)


@functools.cache
def _default_key() -> jax.Array:
    with jax.ensure_compile_time_eval():  # not a part of a caller's trace
        return keys.derive(0, "noise")


def train_windows(
    params: dict,
    config: Network,
    frames: Float[Array, "T H W C"],
    *,
    window: int,
    targets: str = "true",
    truncation_leak: bool = False,
    optimizer: optax.GradientTransformation | None = None,
    noise: NoiseSpec | None = None,
    key: jax.Array | None = None,
    objective: str | None = None,
) -> tuple[dict, Float[Array, " losses"]]:
    """Trains on one stream in order, with one update per window.

    The stream `[T, H, W, C]` is floating point in [0, 1] or uint8; `window` is >= 1,
    for `lotter` >= 2, as in `windows`. Targets, leak and objective are as in
    `objectives.Method`; optimiser, noise and key are as in a `Trainer`. Noise on
    weights is added to the given ones.

    Returns the trained parameters (the given ones are not changed) and `losses`:
    losses[i] is the MSE of the prediction of frame i + 1 against its true target.
    """
    # The first frame of a `lotter` stream is only seen, by a transition of its own.
    shortest = 1 if getattr(config, "pass_order", None) == "watanabe" else 2
    check_int("window", window, shortest)
    method = Method(
        objective=objective, targets=targets, truncation_leak=truncation_leak
    )
    if np.ndim(frames) == 5 and np.shape(frames)[1] != 1:
        raise UserError(
            f"frames of shape {np.shape(frames)}: expected one stream [T, H, W, C]; "
            "prednet_jax.Trainer trains several streams"
        )
    trainer = Trainer(config, optimizer, method, noise)
    key = _default_key() if key is None else key
    state = trainer.init(truncated.noisy_weights(params, noise, key))
    losses = []
    for shown, first in windows(frames, window):
        state, metrics = trainer.step(state, shown, first, key)
        losses.append(metrics.frame_losses)
    # The stand-in of the first window has no loss.
    unscored = 1 if window > 1 else 0
    if isinstance(losses[0], jax.core.Tracer):
        return state.params, jnp.concatenate(losses)[unscored:]
    frame_losses = np.concatenate(jax.device_get(losses))[unscored:]
    return state.params, jax.device_put(frame_losses)
