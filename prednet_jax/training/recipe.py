"""What the runs of one call share, and what each of them is trained on.

Everything that can be refused is refused here, before a file is written: values by
`Recipe`, sizes, counted from shapes, by its checks, data by `prepare`. What passes may
still run out of memory, which ends in one line too.
"""

import contextlib
import dataclasses
import functools
import math
import resource
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from prednet_jax import data, optimizers, process
from prednet_jax import noise as noise_lib
from prednet_jax.errors import UserError, one_of, positive, say, whole
from prednet_jax.models.unroll import segment_length
from prednet_jax.objectives import Method
from prednet_jax.tasks import Task
from prednet_jax.training import keys, loop, truncated
from prednet_jax.training.trainer import Trainer, Validation
from prednet_jax.training.truncated import TrainState

SAMPLINGS = ("stream", "windows")
RATE_SCHEDULES = ("constant", "cosine")
# Updates before a trace begins; they compile and warm up.
TRACE_AFTER = 2
#: Rate at the end of a cosine schedule, as a share of that at its start.
RATE_FLOOR = 0.02
# Bytes of an update in the plan of a run (`data.schedule`).
_PLAN_BYTES = 40
# Open files: of a replica its metrics, events and lock, and what all else has.
_RUN_FILES, _OTHER_FILES = 3, 200
_COUNTS = ("checkpoint_every", "keep_checkpoints", "keep_best", "validate_every")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What all runs of one call share; they differ in their seed.

    Attributes:
        task: the network.
        open_source: from a seed to its frames.
        updates: to make, at least 1.
        window: transitions per update (truncation length), at least 2.
        method: objective, targets, leak.
        noise: noise spec, or None.
        draw: number of the noise draw: other noise and nothing else; 0 is that of
            every published run.
        dtype: in which everything is computed, from `process.set_precision`.
        learning_rate: rate of Adam, whose epsilon stays; None: as was published.
        clip_gradient: largest L2 norm of the gradient, larger ones are scaled; None:
            unbounded.
        rate_schedule: `constant`, or `cosine`: from `learning_rate` at the first update
            to `rate_floor` times it, which an update after the last would have.
        rate_floor: end of the cosine schedule, as a share of the first rate.
        weights: to start from; None: drawn from the seed.
        sampling: what an update sees. stream: the frames in order, the state carried,
            as published; windows: random windows of many sequences, each from the zero
            state.
        batch: sequences of the data trained together, spread over the devices: a source
            of as many sequences is dealt out, one of fewer is cut into equal parts; of
            random windows, windows per update.
        validate_every: updates between scores of the frozen weights on held-out
            sequences, written to validation.jsonl; 0: none.
        open_validation: gives the sequences on which they are scored; None: there are
            none.
        checkpoint_every: updates between checkpoints; 0: one every five minutes and
            when interrupted, in place of the one before. The final state always stays.
        keep_checkpoints: how many of the last checkpoints stay; 0: all.
        keep_best: how many more stay, those of the lowest loss: of the frozen weights
            with validate_every, else the mean since the checkpoint before.
        resume: go on from the newest good checkpoint, as the run was begun; updates may
            be more.
        overwrite: begin anew, whatever run is there.
        examples: frames to predict after training, kept in examples.npz.
        profile: directory for a trace of updates 3 to 5, for TensorBoard, XProf or
            Perfetto; None: no trace.
        progress: say on stderr how far the training is: a bar on a terminal, else a
            line every 15 seconds.
        flags: what the caller was asked for, for the manifest.
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
    rate_schedule: str = "constant"
    rate_floor: float = RATE_FLOOR
    weights: dict | None = None
    sampling: str = "stream"
    batch: int = 1
    validate_every: int = 0
    open_validation: Callable[[], data.FrameSource] | None = None
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
        for name in (*_COUNTS, "examples"):
            whole(name, getattr(self, name), 0)
        whole("draw", self.draw, 0, 2**31 - 1)
        for name in ("learning_rate", "clip_gradient"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        one_of("sampling", self.sampling, SAMPLINGS)
        one_of("rate_schedule", self.rate_schedule, RATE_SCHEDULES)
        if self.rate_schedule != "constant" and self.learning_rate is None:
            raise UserError(
                f"rate_schedule={self.rate_schedule!r}: expected learning_rate too, "
                "the rate that it begins with"
            )
        if self.sampling == "windows" and not self.task.windowed:
            raise UserError(
                f"sampling='windows': expected 'stream' with model={self.task.name}, "
                "which sees single images"
            )
        if self.keep_best and not self.checkpoint_every:
            raise UserError(
                f"keep_best={self.keep_best}: expected checkpoint_every too, of whose "
                "checkpoints it keeps the best"
            )
        self._check_validation()
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

    def _check_validation(self) -> None:
        if not self.validate_every:
            return
        if self.method.extrapolate_from is not None or not self.task.windowed:
            raise UserError(
                f"validate_every={self.validate_every}: expected 0 with extrapolate_"
                "from or a network of single images; it scores next frames"
            )
        if self.keep_best and self.checkpoint_every % self.validate_every:
            raise UserError(
                f"checkpoint_every={self.checkpoint_every}: expected a multiple of "
                f"validate_every={self.validate_every} with keep_best, which compares "
                "validation losses"
            )

    def rate(self, updates: int) -> float | optax.Schedule:
        """Learning rate of a training of so many updates."""
        if self.learning_rate is None:
            return self.task.adam(updates).rate
        if self.rate_schedule == "constant":
            return self.learning_rate
        return optimizers.cosine(self.learning_rate, updates, self.rate_floor)

    @cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """Of every run."""
        chosen = self.task.optimizer(self.updates)
        if self.learning_rate is not None:
            eps = self.task.adam(self.updates).eps
            chosen = optimizers.chainer_adam(self.rate(self.updates), eps=eps)
        if self.clip_gradient is None:
            return chosen
        return optimizers.clipped(chosen, self.clip_gradient)

    @cached_property
    def validation(self) -> Validation | None:
        """On which the frozen weights are scored, or None."""
        if not self.validate_every or self.open_validation is None:
            return None
        return Validation(self.trainer, self.open_validation())

    @cached_property
    def trainer(self) -> Trainer:
        """Makes the updates of every run."""
        return Trainer(self.task, self.optimizer, self.method, self.noise)

    def schedule(
        self, source: data.FrameSource, seed: int, updates: int | None = None
    ) -> data.Schedule:
        """Which frames of a source each update of a seed sees; of so many updates."""
        total = self.updates if updates is None else updates
        window, batch = self.window, self.batch
        if self.sampling == "windows":
            return data.random_windows(source, window, total, batch=batch, seed=seed)
        asked = {"window": window, "updates": total, "batch": batch}
        return loop.frame_schedule(self.task, source, **asked, method=self.method)

    def check_sizes(self, seeds: int, *, together: bool = False) -> None:
        """Refuses so many runs that memory or open files do not suffice for."""
        if together:
            _allow_open_files(seeds)
        names = ("updates", "window", "dtype", "batch", "examples")
        asked: dict[str, Any] = {name: getattr(self, name) for name in names}
        asked["rematerialize"] = self.method.rematerialize
        check_memory(self.task, **asked, seeds=seeds, together=together)

    def initial_state(self, seed: int, weights: dict) -> TrainState:
        """The state before the first update."""
        params = loop.prepare_params(weights, self.dtype, self.noise, seed, self.draw)
        return truncated.initial_train_state(
            self.task, params, self.optimizer, batch=self.batch
        )


class Prepared(NamedTuple):
    """A seed's frames, which of them each update sees, and float32 initial weights."""

    source: data.FrameSource
    schedule: data.Schedule
    weights: dict


def prepare(recipe: Recipe, seed: int) -> Prepared:
    """Opens the data and draws the weights: everything that can be refused."""
    keys.stream(seed, "init")
    _ = recipe.validation
    source, weights = recipe.open_source(seed), recipe.weights
    if weights is None:
        weights = loop.initial_params(recipe.task, seed)
    schedule = recipe.schedule(source, seed)
    drawn = recipe.sampling == "windows"
    left = data.never_seen(source, schedule.window, batch=recipe.batch, drawn=drawn)
    if left:
        _say_never_seen(source.name, left, source.length, schedule.window)
    return Prepared(source, schedule, weights)


@functools.cache
def _say_never_seen(name: str, left: int, total: int, window: int) -> None:
    """Says it once for all seeds of a call."""
    say(
        f"data={name}: {left} of {total} frames are never trained on, since they fill "
        f"no window of {window} frames"
    )


def check_memory(
    task: Task,
    *,
    updates: int,
    window: int,
    dtype: Any,
    batch: int = 1,
    seeds: int = 1,
    together: bool = False,
    examples: int = 0,
    rematerialize: bool = False,
) -> None:
    """Refuses, with a UserError, a training that cannot fit into this machine's memory.

    Its `seeds` are `together` where they are replicas of one program. `rematerialize`
    is that of `objectives.Method`.
    """
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
        """Bytes for the backward pass: the steps of a segment, a state for each."""
        return (
            segment * batch * task.kept_values() * size + -(-steps // segment) * carry
        )

    # Weights, gradient and Adam's two moments. Examples: as bytes, as pixels, and
    # predicted.
    again, whole = kept(segment_length(window)), kept(steps)
    update = 4 * weights + frames + (again if rematerialize else whole)
    needs = {
        f"updates={updates}: the plan of the updates": updates * seeds * _PLAN_BYTES,
        f"height={height}, width={width}, window={window}, batch={batch}: one update "
        f"of {task.name}": update,
        f"examples={examples}: their prediction": examples * pixels * (1 + 2 * size),
        f"replicas={seeds}: the sum of their weights and frames": every,
    }
    memory = process.memory_bytes()
    for what, needed in needs.items():
        less = needed - whole + again
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
            f"replicas={replicas}: need {needed} open files; expected fewer, the "
            f"system allows {hard}"
        )
    with contextlib.suppress(OSError, ValueError):  # Some systems have a lower one.
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
