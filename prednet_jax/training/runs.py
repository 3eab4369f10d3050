"""A training as a run on disk: its recipe, its directory, its records.

Everything that can be refused is refused by `prepare`, before a file is written.
"""

import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax

from prednet_jax import data, device, keys, optimizers, records, tasks
from prednet_jax import noise as noise_lib
from prednet_jax.errors import UserError, whole
from prednet_jax.objectives import Method
from prednet_jax.tasks import Task
from prednet_jax.training import checkpoints, loop, truncated
from prednet_jax.training.examples import save_examples
from prednet_jax.training.observe import TRACE_AFTER, progress, traced
from prednet_jax.training.truncated import TrainState


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
        weights: to start from; None: drawn from the seed.
        batch: streams trained together.
        checkpoint_every: updates between checkpoints; 0: none.
        resume: whether to go on from the last checkpoint.
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
    weights: dict | None = None
    batch: int = 1
    checkpoint_every: int = 0
    resume: bool = False
    examples: int = 0
    profile: str | None = None
    progress: bool = False
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        whole("updates", self.updates, 1)
        whole("window", self.window, 2)
        whole("batch", self.batch, 1)
        for name in ("checkpoint_every", "examples", "draw"):
            whole(name, getattr(self, name), 0)
        if self.profile and self.updates <= TRACE_AFTER:
            raise UserError(
                f"updates={self.updates}: expected at least {TRACE_AFTER + 1} with "
                "profile, whose trace begins then"
            )
        self.task.check(self.method)

    @cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """Of every run."""
        if self.learning_rate is not None:
            return optimizers.chainer_adam(self.learning_rate)
        return self.task.optimizer(self.updates)

    def schedule(self, source: data.FrameSource) -> data.Schedule:
        """Which frames of a source, or of a stream of it, each update sees."""
        return loop.frame_schedule(
            self.task, source, window=self.window, updates=self.updates
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


def train(recipe: Recipe, folders: Mapping[int, Path]) -> None:
    """Trains seeds one after the other.

    Args:
        recipe: what they share.
        folders: directory of each seed's run.

    Raises:
        UserError: a value is outside what is accepted.
    """
    prepared = {seed: prepare(recipe, seed) for seed in folders}
    update = loop.compile_update(
        recipe.task, recipe.optimizer, recipe.method, recipe.noise
    )
    for seed, folder in folders.items():
        _train_one(recipe, update, seed, prepared[seed], folder)


def _train_one(
    recipe: Recipe, update: Callable, seed: int, found: Prepared, folder: Path
) -> None:
    state = recipe.initial_state(seed, found.weights)
    manifest = make_manifest(recipe, seed, [found.source], found)
    done, state = open_folder(recipe, folder, manifest, state)
    writer = records.MetricsWriter(folder, keep=done)
    name = f"{recipe.task.name} seed {seed}"
    bar = progress(name, recipe.updates, done, recipe.progress)
    clock = Clock()
    try:
        steps = loop.train(
            update, state, found.source, found.schedule, seed=seed, draw=recipe.draw
        )
        for state, record in traced(steps, recipe.profile):
            writer.write(**dataclasses.asdict(record))
            if recipe.checkpoint_every and record.update % recipe.checkpoint_every == 0:
                checkpoints.save(folder, state)
            bar.set_postfix(loss=f"{record.loss:.5f}", refresh=False)
            bar.update()
    finally:
        bar.close()
        writer.close()
    measured = clock.stop()
    finish(recipe, folder, manifest | measured, state.params, found.source)
    print(f"{folder}: {recipe.updates} updates in {measured['wall_seconds']:.1f} s")


class Clock:
    """Wall and processor time since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    def stop(self) -> dict[str, float]:
        """What a manifest says of the time."""
        wall = time.perf_counter() - self._start[0]
        parallelism = (time.process_time() - self._start[1]) / wall
        return {"wall_seconds": wall, "processor_seconds_per_second": parallelism}


def make_manifest(
    recipe: Recipe, seed: int, sources: Sequence[data.FrameSource], found: Prepared
) -> dict[str, Any]:
    """What a run's manifest says before it starts.

    Args:
        recipe: of the run.
        seed: of the run.
        sources: its streams of frames; the schedule is that of each.
        found: the schedule and the initial weights.
    """
    orders = [data.order_fingerprint(source, found.schedule) for source in sources]
    spec = noise_lib.Identity() if recipe.noise is None else recipe.noise
    algorithms = recipe.task.algorithms(recipe.dtype)
    return {
        "git_commit": records.git_commit(Path(__file__).parent),
        "versions": records.versions(),
        "device": device.description(),
        "measured_parallelism": device.measured_parallelism(),
        "flags": dict(recipe.flags),
        "network": recipe.task.network(),
        "environment": records.environment(),
        "prng": keys.IMPLEMENTATION,
        **({"convolutions": algorithms} if algorithms else {}),
        "model": recipe.task.name,
        "seed": seed,
        "data": sources[0].name,
        "updates": recipe.updates,
        "noise": noise_lib.format(spec, defaults=True),
        "noise_draw": recipe.draw,
        "initial_params_sha256": records.fingerprint(found.weights),
        "data_order_sha256": _joined(orders),
    }


def _joined(digests: list[str]) -> str:
    """One SHA-256 for several; of one, itself."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def open_folder(
    recipe: Recipe, folder: Path, manifest: dict, state: TrainState
) -> tuple[int, TrainState]:
    """Makes a run's directory; the updates done there, and the state after them.

    Raises:
        UserError: a run cannot be resumed there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done = _resumed(folder, manifest) if recipe.resume else 0
    if recipe.resume:
        state = checkpoints.restore(folder, done, state)
    else:
        checkpoints.clear(folder)
    records.write_json(folder / records.MANIFEST, manifest)
    return done, state


def _resumed(folder: Path, manifest: dict) -> int:
    """The last saved update of a run that began as `manifest` says.

    Raises:
        UserError: nothing was saved, or the run began otherwise.
    """
    saved = checkpoints.updates(folder)
    if not saved:
        raise UserError(
            f"--resume: no checkpoint in {folder}; expected a run with "
            "--checkpoint_every"
        )
    old = records.read_json(folder / records.MANIFEST)
    # Manifests of before had no noise.
    old.setdefault("noise", manifest["noise"])
    for field in ("initial_params_sha256", "data_order_sha256", "noise"):
        if old.get(field) != manifest[field]:
            raise UserError(
                f"--resume: {field} {manifest[field]}; expected the "
                f"{old.get(field)} of {folder}"
            )
    return saved[-1]


def finish(
    recipe: Recipe, folder: Path, manifest: dict, params: dict, source: data.FrameSource
) -> None:
    """Writes weights, examples, and the manifest with what is known at the end."""
    if recipe.examples:
        save_examples(folder, recipe.task, params, source, recipe.examples)
    records.write_tree(folder / records.WEIGHTS, params)
    end = {"final_params_sha256": records.fingerprint(params)}
    records.write_json(folder / records.MANIFEST, manifest | end)


def saved_weights(folder: Path) -> tuple[Task, dict]:
    """Network and final weights of a run.

    Raises:
        UserError: the directory is no finished run.
    """
    manifest = records.read_json(folder / records.MANIFEST)
    task = tasks.recorded(manifest["model"], manifest["network"])
    return task, records.read_tree(folder / records.WEIGHTS)
