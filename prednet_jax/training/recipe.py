"""The settings that the runs of one call share, and the data of each run.

Everything that can be refused is refused here, before a file is written: invalid values
by the settings, contradictions by `Recipe`, sizes, counted from shapes, by its checks,
and data by `prepare`. A training that passes may still run out of memory, which also
ends in one line.
"""

import contextlib
import dataclasses
import math
import resource
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from prednet_jax import data, optimizers, process
from prednet_jax.data import FrameSource, Schedule, random_windows
from prednet_jax.errors import UserError, log_once
from prednet_jax.models.unroll import segment_length
from prednet_jax.objectives import Method
from prednet_jax.tasks import Task
from prednet_jax.training import keys, loop, truncated
from prednet_jax.training.settings import DataSettings, RecordSettings, TrainingSettings
from prednet_jax.training.trainer import Trainer, Validation
from prednet_jax.training.truncated import TrainState

# Bytes of an update in the plan of a run (`data.schedule`).
_PLAN_BYTES = 40
# Open files: of a replica its metrics, events and lock, and of everything else.
_RUN_FILES, _OTHER_FILES = 3, 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What all runs of one call share; they differ in their seed.

    Attributes:
        task: the network.
        data: the frames, and which of them an update sees.
        training: updates, rate, noise.
        method: objective, targets, leak.
        records: files to write.
        dtype: type of the parameters and the computation, from
            `process.set_precision`.
        weights: initial weights. Defaults to weights drawn from the seed.
        flags: flags given to the caller, for the manifest.
    """

    task: Task
    data: DataSettings = dataclasses.field(default_factory=DataSettings)
    training: TrainingSettings = dataclasses.field(default_factory=TrainingSettings)
    method: Method = dataclasses.field(default_factory=Method)
    records: RecordSettings = dataclasses.field(default_factory=RecordSettings)
    dtype: Any = np.float32
    weights: dict | None = None
    flags: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.task.check(self.method)
        self.data.check(self.task, self.method)
        self.records.check(self.updates, self.data.validate_every)

    @property
    def updates(self) -> int:
        """Number of updates of each run."""
        return self.training.updates

    def rate(self, updates: int) -> float | optax.Schedule:
        """Returns the learning rate of a training of a given number of updates."""
        asked = self.training
        if asked.learning_rate is None:
            return self.task.adam(updates).rate
        if asked.schedule == "cosine":
            return optimizers.cosine(asked.learning_rate, updates, asked.rate_floor)
        return asked.learning_rate

    @cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """The optimiser that all seeds share."""
        chosen = self.task.optimizer(self.updates)
        if self.training.learning_rate is not None:
            eps = self.task.adam(self.updates).eps
            chosen = optimizers.chainer_adam(self.rate(self.updates), eps=eps)
        if self.training.clip_gradient is None:
            return chosen
        return optimizers.clipped(chosen, self.training.clip_gradient)

    @cached_property
    def validation(self) -> Validation | None:
        """The held-out frames on which frozen weights are scored, or None."""
        if not self.data.validate_every:
            return None
        return Validation(self.trainer, self.data.open_validation(self.task))

    @cached_property
    def trainer(self) -> Trainer:
        """Makes the updates of every run."""
        spec = self.training.noise_spec
        return Trainer(self.task, self.optimizer, self.method, spec)

    def frame_schedule(
        self, source: FrameSource, seed: int, updates: int | None = None
    ) -> Schedule:
        """Returns which frames each of the first updates of a seed sees."""
        total = self.updates if updates is None else updates
        window, batch = self.data.window, self.data.batch
        if self.data.sampling == "windows":
            return random_windows(source, window, total, batch=batch, seed=seed)
        asked = {"window": window, "updates": total, "batch": batch}
        return loop.frame_schedule(self.task, source, **asked, method=self.method)

    def check_sizes(self, seeds: int, *, together: bool = False) -> None:
        """Refuses runs for which the memory or the open files do not suffice.

        The `seeds` are `together` where they are replicas of one program.
        """
        if together:
            _allow_open_files(seeds)
        _check_memory(self, seeds, together)

    def initial_state(self, seed: int, weights: dict) -> TrainState:
        """Returns the state before the first update."""
        noise, draw = self.training.noise_spec, self.training.draw
        params = loop.prepare_params(weights, self.dtype, noise, seed, draw)
        return truncated.initial_train_state(
            self.task, params, self.optimizer, batch=self.data.batch
        )


class PreparedRun(NamedTuple):
    """A seed's frames, which of them each update sees, and float32 initial weights."""

    source: FrameSource
    schedule: Schedule
    weights: dict


def prepare(recipe: Recipe, seed: int) -> PreparedRun:
    """Opens the data and draws the weights, all of which can be refused."""
    keys.derive(seed, "init")
    _ = recipe.validation
    source, weights = recipe.data.open_training(recipe.task, seed), recipe.weights
    if weights is None:
        weights = loop.initial_params(recipe.task, seed)
    schedule = recipe.frame_schedule(source, seed)
    drawn, batch = recipe.data.sampling == "windows", recipe.data.batch
    unused = data.never_seen(source, schedule.window, batch=batch, drawn=drawn)
    if unused:
        log_once(
            f"data={source.name}: {unused} of {source.length} frames are never trained "
            f"on, since they fill no window of {schedule.window} frames"
        )
    return PreparedRun(source, schedule, weights)


def _check_memory(recipe: Recipe, seeds: int, together: bool) -> None:
    """Refuses, with a UserError, a training that cannot fit into this machine."""
    task, batch, dtype = recipe.task, recipe.data.batch, recipe.dtype
    window, examples = recipe.data.window, recipe.records.examples
    rematerialize, updates = recipe.method.rematerialize, recipe.updates
    size = np.dtype(dtype).itemsize
    height, width, _ = task.frame
    pixels = math.prod(task.frame)
    state = jax.tree.leaves(jax.eval_shape(lambda: task.initial_carry(batch, dtype)))
    carry = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in state)
    steps = 1 + (window if task.windowed else 1)
    frames = steps * batch * pixels * (1 + size)
    weights = task.weights * size
    every = together * seeds * (3 * weights + carry + frames)

    def kept(segment: int) -> int:
        """Returns the bytes for the backward pass: steps of a segment, and states."""
        values = segment * batch * task.kept_values()
        return values * size + -(-steps // segment) * carry

    # Weights, gradient and Adam's two moments. Examples: as bytes, as pixels, and
    # predicted.
    # `truncated.by_sequence` computes the sequences of a batch one after the other.
    segmented, unsegmented = kept(segment_length(window)) // batch, kept(steps)
    update = 4 * weights + frames + (segmented if rematerialize else unsegmented)
    needs = {
        f"updates={updates}: the plan of the updates": updates * seeds * _PLAN_BYTES,
        f"height={height}, width={width}, window={window}, batch={batch}: one update "
        f"of {task.name}": update,
        f"examples={examples}: their prediction": examples * pixels * (1 + 2 * size),
        f"replicas={seeds}: the sum of their weights and frames": every,
    }
    memory = process.memory_bytes()
    for what, needed in needs.items():
        less = needed - unsegmented + segmented
        helps = needed == update and not rematerialize and less <= (memory or 0)
        advice = f", or --rematerialize, {less / 1e9:,.1f} GB" if helps else ""
        if memory is not None and needed > memory:
            raise UserError(
                f"{what} takes at least {needed / 1e9:,.1f} GB; expected sizes that "
                f"fit into the {memory / 1e9:,.1f} GB of this machine{advice}"
            )


def _allow_open_files(replicas: int) -> None:
    needed = _RUN_FILES * replicas + _OTHER_FILES
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise UserError(
            f"replicas={replicas}: they need {needed} open files, and the system "
            f"allows {hard}; expected fewer replicas"
        )
    with contextlib.suppress(OSError, ValueError):  # Some systems have a lower one.
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
