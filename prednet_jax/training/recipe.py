"""What the runs of one call share, and what each of them is trained on.

Everything that can be refused is refused here, before a file is written: values by
`Recipe`, sizes by its checks, data by `prepare`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax

from prednet_jax import data, keys, optimizers
from prednet_jax import noise as noise_lib
from prednet_jax.errors import UserError, positive, whole
from prednet_jax.objectives import Method
from prednet_jax.tasks import Task
from prednet_jax.training import checkpoints, loop, sizes, truncated
from prednet_jax.training.observe import TRACE_AFTER
from prednet_jax.training.trainer import Trainer
from prednet_jax.training.truncated import TrainState

_FROM_ZERO = ("checkpoint_every", "keep_checkpoints", "keep_best", "examples")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What all runs of one call share; they differ in their seed.

    Attributes:
        task: the network.
        open_source: from a seed to its frames.
        updates: to make, at least 1.
        window: transitions per update, at least 2.
        method: objective, targets, leak.
        noise: noise spec, or None.
        draw: number of the noise draw; 0 is that of every published run.
        dtype: in which everything is computed, from `process.set_precision`.
        learning_rate: constant rate of Adam; None: as the network was published.
        clip_gradient: largest L2 norm of the gradient; None: unbounded.
        weights: to start from; None: drawn from the seed.
        batch: streams trained together.
        checkpoint_every: updates between checkpoints; 0: the final state alone.
        keep_checkpoints: how many of the last checkpoints stay; 0: all.
        keep_best: how many more stay, those of the lowest loss.
        resume: whether to go on with what was begun.
        overwrite: whether to begin anew whatever is there.
        examples: frames to predict after training.
        profile: directory for a trace of updates 3 to 5, or None.
        progress: whether to show a progress bar.
        flags: what the caller was asked for, for the manifest.

    Raises:
        UserError: a value is outside what is accepted.
    """

    task: Task
    open_source: Callable[[int], data.FrameSource]
    updates: int
    window: int
    method: Method = dataclasses.field(default_factory=Method)
    noise: noise_lib.NoiseSpec | None = None
    draw: int = 0
    dtype: Any = np.float32
    learning_rate: float | None = None
    clip_gradient: float | None = None
    weights: dict | None = None
    batch: int = 1
    checkpoint_every: int = 0
    keep_checkpoints: int = 0
    keep_best: int = 0
    resume: bool = False
    overwrite: bool = False
    examples: int = 0
    profile: str | None = None
    progress: bool = False
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        whole("updates", self.updates, 1)
        whole("window", self.window, 2)
        whole("batch", self.batch, 1)
        for name in _FROM_ZERO:
            whole(name, getattr(self, name), 0)
        whole("draw", self.draw, 0, 2**31 - 1)
        if self.learning_rate is not None:
            positive("learning_rate", self.learning_rate)
        if self.clip_gradient is not None:
            positive("clip_gradient", self.clip_gradient)
        if self.resume and self.overwrite:
            raise UserError("resume and overwrite: expected one of them, or neither")
        if self.profile and self.updates <= TRACE_AFTER:
            raise UserError(
                f"updates={self.updates}: expected at least {TRACE_AFTER + 1} with "
                "profile, whose trace begins then"
            )
        self.task.check(self.method)
        unseen_from = self.method.extrapolate_from
        if unseen_from is not None and unseen_from > self.window:
            raise UserError(
                f"extrapolate_from={unseen_from}: expected 1 to {self.window}, the "
                "window"
            )

    @cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """Of every run."""
        chosen = (
            self.task.optimizer(self.updates)
            if self.learning_rate is None
            else optimizers.chainer_adam(self.learning_rate)
        )
        if self.clip_gradient is None:
            return chosen
        return optimizers.clipped(chosen, self.clip_gradient)

    @cached_property
    def trainer(self) -> Trainer:
        """Makes the updates of every run."""
        return Trainer(self.task, self.optimizer, self.method, self.noise)

    def schedule(
        self, source: data.FrameSource, updates: int | None = None
    ) -> data.Schedule:
        """Which frames of a source, or of a stream of it, each update sees.

        Args:
            source: the source, or the stream.
            updates: of another length of training; None: of this one.
        """
        total = self.updates if updates is None else updates
        return loop.frame_schedule(
            self.task, source, window=self.window, updates=total, method=self.method
        )

    def check_sizes(self, seeds: int, *, together: bool = False) -> None:
        """Refuses what cannot fit into memory, before anything is allocated.

        Args:
            seeds: number of runs.
            together: whether they are replicas of one program.

        Raises:
            UserError: a size is too large.
        """
        sizes.check(
            self.task,
            updates=self.updates,
            window=self.window,
            dtype=self.dtype,
            batch=self.batch,
            seeds=seeds,
            together=together,
            examples=self.examples,
        )

    def check_disk(self, folders: Sequence[Path], state: TrainState) -> None:
        """Refuses checkpoints that cannot fit on the disk.

        Args:
            folders: directories of the runs.
            state: of one of them.

        Raises:
            UserError: there is too little room.
        """
        kept = self.keep_checkpoints and self.keep_checkpoints + self.keep_best
        sizes.check_disk(
            folders[0].absolute(),
            state,
            updates=self.updates,
            every=self.checkpoint_every,
            kept=kept,
            saved=[len(checkpoints.updates(folder)) for folder in folders],
        )

    def initial_state(self, seed: int, weights: dict) -> TrainState:
        """The state before the first update."""
        params = loop.prepare_params(weights, self.dtype, self.noise, seed)
        return truncated.initial_train_state(
            self.task, params, self.optimizer, batch=self.batch
        )


class Prepared(NamedTuple):
    """What a seed is trained on.

    Attributes:
        source: the frames.
        schedule: which of them each update sees.
        weights: initial weights, float32.
    """

    source: data.FrameSource
    schedule: data.Schedule
    weights: dict


def prepare(recipe: Recipe, seed: int) -> Prepared:
    """Opens the data and draws the weights: everything that can be refused.

    Raises:
        UserError: a value is outside what is accepted.
    """
    keys.stream(seed, "init")
    source = recipe.open_source(seed)
    weights = recipe.weights
    if weights is None:
        weights = loop.initial_params(recipe.task, seed)
    return Prepared(source, recipe.schedule(source), weights)
