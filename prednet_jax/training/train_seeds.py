"""Trainings as runs on disk (`train.py`): seed after seed, or all in one program.

Everything that can be refused is refused before the first write: sizes from shapes, the
directories, the data, and last the program itself, by tracing it.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from prednet_jax import data, files, process, records
from prednet_jax import noise as noise_lib
from prednet_jax.errors import UserError, log_line
from prednet_jax.records import Manifest
from prednet_jax.training import keys, loop, replicas, run_directory
from prednet_jax.training.interruption import Interruption
from prednet_jax.training.loop import Pair, SeedRun
from prednet_jax.training.recipe import PreparedRun, Recipe, prepare
from prednet_jax.training.replicas import ReplicaLayout
from prednet_jax.training.run_directory import ExistingRun, PendingRun
from prednet_jax.training.run_recorder import RunRecorder, record_training


@dataclasses.dataclass(frozen=True)
class TrainingStrategy:
    """The way in which runs are trained.

    Each run has its own program or, with a `layout` of devices and a `replica_mode`,
    all runs are replicas of one program.
    """

    recipe: Recipe
    layout: ReplicaLayout | None = None
    replica_mode: str = ""

    @functools.cached_property
    def update(self) -> Any:
        """The compiled update, of one run or of all."""
        recipe, layout = self.recipe, self.layout
        if layout is None:
            return recipe.trainer.program
        parts = recipe.task, recipe.optimizer, recipe.method, recipe.training.noise_spec
        return replicas.compile_update(*parts, layout, self.replica_mode)

    @property
    def manifest_entry(self) -> Mapping[str, object] | None:
        """Replicas and devices, for the manifest, or None for a single run."""
        if self.layout is None:
            return None
        return {
            "replicas": self.layout.replicas,
            "batch": self.layout.batch,
            "replica_mode": self.replica_mode,
            "devices": self.layout.mesh.size,
            "processes": jax.process_count(),
        }

    def trace(self, state: Any, window: tuple[int, ...]) -> None:
        """Traces the update from shapes, to refuse one that cannot be computed.

        The trace is kept by JAX and used when the update is first called.
        """
        count = () if self.layout is None else (self.layout.replicas,)

        def shaped(shape: tuple, dtype: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((*count, *shape), dtype)

        states = jax.tree.map(lambda x: shaped(x.shape, x.dtype), state)
        frames, first = shaped(window, np.uint8), shaped((), np.bool_)
        key = shaped((2,), np.uint32) if count else keys.derive(0, "noise")
        self.update.eval_shape(states, frames, first, key)

    def pair(self, runs: Sequence[SeedRun]) -> Pair:
        """Returns the step and the stream of the runs."""
        if self.layout is not None:
            return replicas.many_seeds(self.update, self.layout, runs)
        (run,) = runs
        return loop.one_seed(self.recipe.trainer, run, self.recipe.training.draw)


def train_seeds(
    recipe: Recipe,
    directories: Mapping[int, Path],
    interruption: Interruption | None = None,
    *,
    replica_mode: str | None = None,
) -> None:
    """Trains several seeds, each as a run in its own directory.

    Args:
        recipe: settings that the runs share.
        directories: the directory of each seed.
        interruption: recorder of signals. Defaults to None: signals have their usual
            effect.
        replica_mode: execution of the seeds. Defaults to one seed after the other, and
            finished ones are left alone. `auto`, `map` or `vmap`: together, as replicas
            of one program on all devices; each process writes the runs of which it
            holds the first part. Devices and processes are set before
            (`process.split_cpu`, `join_processes`).

    Raises:
        UserError: the request cannot be fulfilled; nothing was written.
    """
    recipe.check_sizes(len(directories), together=replica_mode is not None)
    layout = None
    if replica_mode is not None:
        replica_mode = replicas.resolve_mode(
            replica_mode, jax.default_backend(), len(directories)
        )
        task = replicas.resolve_network(recipe.task, replica_mode)
        recipe = dataclasses.replace(recipe, task=task)
        layout = replicas.layout(len(directories), recipe.data.batch)

    runs = _pending_runs(recipe, directories, layout)
    for run in runs:
        if run.existing.finished:
            _report_finished(recipe, run)
    if layout is None:
        runs = [run for run in runs if not run.existing.finished]
    else:
        begun = [(r.existing.manifest is None, r.existing.finished) for r in runs]
        process.assert_same_on_all("what was begun", begun)
        run_directory.check_all_begun(runs)
    if all(run.existing.finished for run in runs):
        return
    strategy = TrainingStrategy(recipe, layout, replica_mode or "")
    shapes = _prepare_and_check(strategy, [run for run in runs if run.trained_here])
    written = [run for run in runs if run.writes]
    with files.hold(*(run.folder for run in written)):
        for run in written:
            if _inspect(recipe, run.folder) != run.existing:
                raise UserError(
                    f"{run.folder}: another process has just written there; expected "
                    "another directory for each process"
                )
        for group in [[run] for run in runs] if layout is None else [runs]:
            noted = interruption or Interruption()
            seconds = _train_group(strategy, group, shapes, noted)
    if layout is not None and len(written) > 1:
        print(
            f"seeds trained together: {len(written)}, on {layout.mesh.size} devices "
            f"(parts of a CPU count as devices), in {seconds:.1f} s"
        )


def _pending_runs(
    recipe: Recipe, directories: Mapping[int, Path], layout: ReplicaLayout | None
) -> list[PendingRun]:
    """Returns the runs; refuses directories that cannot be written or continued."""
    local = range(len(directories)) if layout is None else layout.local(0)
    written = [
        i in local and (layout is None or layout.written(i))
        for i in range(len(directories))
    ]
    _check_places(recipe, itertools.compress(directories.values(), written))
    return [
        PendingRun(
            seed=seed,
            folder=folder,
            trained_here=i in local,
            writes=written[i],
            existing=_inspect(recipe, folder),
        )
        for i, (seed, folder) in enumerate(directories.items())
    ]


def _inspect(recipe: Recipe, folder: Path) -> ExistingRun:
    return run_directory.inspect_run_directory(
        folder,
        updates=recipe.updates,
        resume=recipe.records.resume,
        overwrite=recipe.records.overwrite,
    )


def _report_finished(recipe: Recipe, run: PendingRun) -> None:
    """Checks a run that has made all its updates, and prints that it is finished."""
    run_directory.check_network(recipe, run.folder)
    if not run.writes:
        return
    run_directory.remove_leftovers(run.folder)
    print(f"{run.folder}: finished, {recipe.updates} updates; nothing to do")
    path = run.folder / records.METRICS
    if (lines := len(records.metrics_lines(path))) < recipe.updates:
        log_line(
            f"{path}: has lines of {lines} updates only; expected "
            f"{recipe.updates} (--overwrite trains anew)"
        )


def _check_places(recipe: Recipe, folders: Iterable[Path]) -> None:
    """Refuses directories that cannot be written or are in use; leaves no file."""
    for folder in folders:
        files.check_writable(folder)
        files.check_unlocked(folder)
        with files.plain_path(folder):  # Refused now where no checkpoint can be saved.
            pass
    if recipe.records.profile is not None:
        files.check_writable(recipe.records.profile)


def _prepare_and_check(strategy: TrainingStrategy, runs: Sequence[PendingRun]) -> Any:
    """Opens the data of the runs of this process, and refuses what cannot be trained.

    Returns the shapes of a state.
    """
    recipe = strategy.recipe
    for run in runs:
        run.prepared = prepare(recipe, run.seed)
        run.manifest = _manifest(strategy, run.seed, run.prepared)
    first = runs[0].prepared
    assert first is not None
    seed, weights = runs[0].seed, first.weights
    shapes = jax.eval_shape(lambda: recipe.initial_state(seed, weights))
    window = first.schedule.window + 1, recipe.data.batch, *recipe.task.frame
    strategy.trace(shapes, window)
    for run in runs:
        if run.writes and run.manifest is not None and run.prepared is not None:
            source = run.prepared.source
            run_directory.check_same(
                recipe, run.folder, run.existing, run.manifest, source
            )
    if runs[0].writes and first.source.done:  # to frames of another size
        print(f"data={first.source.name}: {first.source.done}", flush=True)
    return shapes


def _manifest(strategy: TrainingStrategy, seed: int, prepared: PreparedRun) -> Manifest:
    """Returns the manifest of a run that begins now."""
    recipe, layout = strategy.recipe, strategy.layout
    streams = 1 if layout is None else layout.streams
    return Manifest(
        git_commit=records.git_commit(Path(__file__).parent),
        versions=records.versions(),
        device=process.description(),
        flags=dict(recipe.flags),
        network=recipe.task.network(),
        environment=records.environment(),
        prng=keys.IMPLEMENTATION,
        convolutions=recipe.task.algorithms(recipe.dtype, batch=streams) or None,
        model=recipe.task.name,
        seed=seed,
        data=prepared.source.name,
        sampling=recipe.data.sampling if recipe.data.sampling != "stream" else None,
        validation=recipe.validation.manifest_entry if recipe.validation else None,
        updates=recipe.updates,
        noise=noise_lib.format(recipe.training.noise_spec, defaults=True),
        noise_draw=recipe.training.draw,
        initial_params_sha256=records.fingerprint(prepared.weights),
        data_order_sha256=data.order_fingerprint(prepared.source, prepared.schedule),
        layout=strategy.manifest_entry,
    )


def _train_group(
    strategy: TrainingStrategy,
    group: Sequence[PendingRun],
    shapes: Any,
    interruption: Interruption,
) -> float:
    """Trains runs together to their end and writes the records of this process.

    Returns the seconds of the training.
    """
    recipe = strategy.recipe
    for run in group:
        # For runs that other processes hold, only the shapes of the state matter.
        run.state = shapes
        if run.prepared is not None:
            run.state = recipe.initial_state(run.seed, run.prepared.weights)
    done = run_directory.start_or_resume(group, overwrite=recipe.records.overwrite)
    seed_runs: list[SeedRun] = []
    recorders: dict[int, RunRecorder] = {}
    for run in group:
        if run.prepared is None or run.manifest is None:
            continue
        if run.writes:
            # A run continues when the file of its weights has moved.
            initial = run.folder / run_directory.INITIAL
            if recipe.weights is not None and not initial.exists():
                records.write_tree(initial, recipe.weights)
            recorders[len(seed_runs)] = RunRecorder(
                recipe, run.folder, run.manifest, done, run.state.params
            )
        seed_runs.append(SeedRun(run.seed, run.state, *run.prepared[:2]))
    pair = strategy.pair(seed_runs)
    start = time.perf_counter(), time.process_time()
    name = f"{recipe.task.name} seed {group[0].seed}"
    if strategy.layout is not None:
        name = f"{recipe.task.name} x {len(recorders)}"
    end = record_training(
        recipe,
        recorders,
        loop.train_runs(seed_runs, pair, recipe.method),
        pair,
        interruption,
        done=done,
        name=name,
    )
    wall = time.perf_counter() - start[0]
    parallelism = (time.process_time() - start[1]) / wall
    measured = {"wall_seconds": wall, "processor_seconds_per_second": parallelism}
    for i, recorder in recorders.items():
        # All updates were made before, by a process that was killed afterwards.
        state = seed_runs[i].state if end is None else pair.state_of(end, i)
        recorder.finish(state.params, seed_runs[i].source, measured)
    for run in group:  # The states of a seed take no memory while another is trained.
        run.state = run.prepared = None
    interruption.obey(f"{group[0].folder} is finished")
    return wall
