"""Trainings as runs on disk (`train.py`): seed after seed, or all in one program.

Everything that can be refused is refused before the first write: sizes from shapes, the
directories, the data, and last the program itself, by tracing it. A directory is looked
at before it is touched: `begun`, `_check_same` only refuse; `_enter` first writes.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from prednet_jax import data, files, process, records
from prednet_jax import noise as noise_lib
from prednet_jax.errors import UserError, say
from prednet_jax.training import checkpoints, keys, loop, replicas
from prednet_jax.training.interruption import Interruption
from prednet_jax.training.keeping import Keeper, follow
from prednet_jax.training.recipe import Prepared, Recipe, prepare
from prednet_jax.training.replicas import Layout
from prednet_jax.training.truncated import TrainState

#: What makes a directory that of a run.
PARTS = (
    *(records.MANIFEST, records.METRICS, records.VALIDATION, records.WEIGHTS),
    *(records.EXAMPLES, checkpoints.FOLDER),
)
#: Weights that a run started from, where they came from a file or another run.
INITIAL = "initial_weights.npz"
# Fields of a manifest: which stay the same where a run goes on, of the machine (where
# one differs, the last bits may), written at the end, and taken anew where it goes on.
_SAME = ("model", "network", "seed", "noise", "noise_draw", "initial_params_sha256")
_MACHINE = ("versions", "device", "environment", "convolutions")
_ENDS = ("final_params_sha256", "failure")
_CHANGING = ("updates", "flags", "data_order_sha256")


class Begun(NamedTuple):
    """What a directory holds of a run: its manifest (empty: none), updates, its end."""

    manifest: Mapping[str, Any]
    updates: int
    finished: bool


class Entry(NamedTuple):
    """A run to be written: what its directory holds, its manifest and first state."""

    folder: Path
    begun: Begun
    manifest: Mapping[str, Any]
    state: TrainState


class _Way(NamedTuple):
    """How runs are trained: each by itself, or all in one program.

    Attributes:
        trace: traces the update, without running it, from the shapes of a state and of
            a window's frames; what cannot be computed is refused there.
        steps: the training, from the first states by number.
        state_of: from states and a number to the state of that run.
        whole: collects states that several processes hold.
        layout: of replicas and devices, for the manifest; None: there is none.
        streams: how many streams of a run a device has.
    """

    trace: Callable[[Any, tuple[int, ...]], Any]
    steps: Callable[[Mapping[int, TrainState]], Iterator]
    state_of: Callable[[Any, int], TrainState]
    whole: Callable[[Any], Any]
    layout: Mapping[str, Any] | None = None
    streams: int = 1


def train(
    recipe: Recipe,
    places: Mapping[int, Path],
    interruption: Interruption | None = None,
    *,
    mode: str | None = None,
) -> None:
    """Trains several seeds, each as a run in a directory of its own.

    One after the other (`mode` None), finished ones are left alone. Together, as
    replicas of one program on all devices (`auto`, `map` or `vmap`), each process
    writes the runs of which it holds the first part; devices and processes are set
    before (`process.split_cpu`, `join_processes`). `interruption` notes signals.
    """
    recipe.check_sizes(len(places), together=mode is not None)
    seeds, paths = list(places), dict(enumerate(places.values()))
    layout = None
    if mode is not None:
        mode = replicas.resolve_mode(mode, jax.default_backend())
        task = replicas.resolve_network(recipe.task, mode)
        recipe = dataclasses.replace(recipe, task=task)
        layout = replicas.layout(len(places), recipe.batch)
    held = list(paths) if layout is None else layout.held(0)
    written = {n: paths[n] for n in held if layout is None or layout.written(n)}
    for path in written.values():
        files.check_writable(path)
        files.check_unlocked(path)
        with files.plain_path(path):  # Refused now where no checkpoint can be saved.
            pass
    if recipe.profile is not None:
        files.check_writable(recipe.profile)
    old = {n: begun(path, recipe) for n, path in paths.items()}
    for n, path in written.items():
        if old[n].finished:
            print(f"{path}: finished, {recipe.updates} updates; nothing to do")
    if layout is None:
        held = [n for n in held if not old[n].finished]
        written = {n: paths[n] for n in held}
    else:
        begun_there = [(run.updates, run.finished) for run in old.values()]
        process.same("what was begun", begun_there)
    if all(run.finished for run in old.values()):
        return
    prepared = {n: prepare(recipe, seeds[n]) for n in held}
    some = prepared[held[0]]
    if layout is None or mode is None:
        way = _by_itself(recipe, seeds, prepared)
    else:
        _check_whole(paths, old)
        way = _together(recipe, seeds, prepared, layout, mode)
    manifests = {n: _manifest(recipe, seeds[n], of, way) for n, of in prepared.items()}
    shapes = jax.eval_shape(lambda: recipe.initial_state(seeds[held[0]], some.weights))
    way.trace(shapes, (some.schedule.window + 1, recipe.batch, *recipe.task.frame))
    for n, path in written.items():
        _check_same(recipe, path, old[n], manifests[n], prepared[n].source)
    if written and some.source.done:  # to frames of another size
        print(f"data={some.source.name}: {some.source.done}", flush=True)
    with files.hold(*written.values()):
        for n, path in written.items():
            if begun(path, recipe) != old[n]:
                raise UserError(f"{path}: another process has just written there")
        for group in [[n] for n in held] if layout is None else [list(paths)]:
            # Of runs that other processes hold only the shapes of the state matter.
            states = {
                n: recipe.initial_state(seeds[n], prepared[n].weights)
                for n in group
                if n in prepared
            }
            entries = {
                n: Entry(paths[n], old[n], manifests.get(n, {}), states.get(n, shapes))
                for n in group
            }
            own = {n: prepared[n] for n in group if n in written}
            alone = f"{recipe.task.name} seed {seeds[group[0]]}"
            name = alone if layout is None else f"{recipe.task.name} x {len(written)}"
            noted = interruption or Interruption()
            seconds = _write(recipe, entries, own, way, noted, name)
    if layout is not None and written:
        print(
            f"{len(written)} x {recipe.updates} updates on {layout.mesh.size} devices "
            f"in {seconds:.1f} s"
        )


def _by_itself(
    recipe: Recipe, seeds: list[int], prepared: Mapping[int, Prepared]
) -> _Way:
    def trace(state: Any, window: tuple[int, ...]) -> None:
        frames = jax.ShapeDtypeStruct(window, np.uint8)
        # The trace is kept by JAX and used when the update is first called.
        key = keys.stream(seeds[0], "noise")
        recipe.trainer.program.eval_shape(state, frames, np.bool_(True), key)

    def steps(states: Mapping[int, TrainState]) -> Iterator:
        ((n, state),) = states.items()
        source, schedule, _ = prepared[n]
        options = {"seed": seeds[n], "draw": recipe.draw}
        trained = loop.train(recipe.trainer, state, source, schedule, **options)
        return ((state, {n: record}) for state, record in trained)

    return _Way(trace, steps, lambda state, _: state, lambda states: states)


def _together(
    recipe: Recipe,
    seeds: list[int],
    prepared: Mapping[int, Prepared],
    layout: Layout,
    mode: str,
) -> _Way:
    update = replicas.compile_update(
        recipe.task, recipe.optimizer, recipe.method, recipe.noise, layout, mode
    )

    def trace(state: Any, window: tuple[int, ...]) -> None:
        def shaped(shape: tuple, dtype: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((layout.replicas, *shape), dtype)

        states = jax.tree.map(lambda x: shaped(x.shape, x.dtype), state)
        key_data = shaped((2,), np.uint32)
        update.eval_shape(
            states, shaped(window, np.uint8), shaped((), np.bool_), key_data
        )

    def steps(states: Mapping[int, TrainState]) -> Iterator:
        members = {
            n: replicas.Replica(seeds[n], states[n], x.source, x.schedule)
            for n, x in prepared.items()
        }
        return replicas.train(update, layout, members, recipe.method)

    recorded = {
        "replicas": layout.replicas,
        "batch": layout.batch,
        "replica_mode": mode,
        "devices": layout.mesh.size,
        "processes": jax.process_count(),
    }
    of_states = replicas.replica_state, replicas.whole_states
    return _Way(trace, steps, *of_states, recorded, layout.streams)


def _write(
    recipe: Recipe,
    entries: Mapping[int, Entry],
    prepared: Mapping[int, Prepared],
    way: _Way,
    interruption: Interruption,
    name: str,
) -> float:
    """Trains runs together to their end and writes the records of the `prepared`.

    Returns the seconds of the training.
    """
    done, states, begin = _enter(entries, overwrite=recipe.overwrite, written=prepared)
    for n in prepared:
        # A run goes on when the file of its weights has moved.
        initial = entries[n].folder / INITIAL
        if recipe.weights is not None and not initial.exists():
            records.write_tree(initial, recipe.weights)
    keepers = {n: Keeper(recipe, entries[n].folder, begin[n], done) for n in prepared}
    start = time.perf_counter(), time.process_time()
    if not done:
        for n, keeper in keepers.items():
            keeper.score_initial(states[n].params)
    end = follow(
        recipe,
        keepers,
        way.steps(states),
        way.state_of,
        interruption,
        done=done,
        name=name,
        whole=way.whole,
    )
    wall = time.perf_counter() - start[0]
    parallelism = (time.process_time() - start[1]) / wall
    measured = {"wall_seconds": wall, "processor_seconds_per_second": parallelism}
    for n, keeper in keepers.items():
        # Where all updates were made before, as a killed process leaves them.
        state = states[n] if end is None else way.state_of(end, n)
        keeper.finish(state.params, prepared[n].source, measured)
    interruption.obey(f"{next(iter(entries.values())).folder} is finished")
    return wall


def _check_whole(paths: Mapping[int, Path], old: Mapping[int, Begun]) -> None:
    """Refuses to go on where some runs have checkpoints and another was never begun."""
    lost = [n for n, run in old.items() if not run.manifest]
    kept = [n for n in set(old) - set(lost) if checkpoints.updates(paths[n])]
    if lost and kept:
        raise UserError(
            f"--resume: {paths[lost[0]]} is no run, and {paths[kept[0]]} is one; "
            "expected all of them, or none (--overwrite begins anew)"
        )


def begun(folder: Path, asked: Recipe) -> Begun:
    """What was begun in a directory, if the run that is asked for may be written there.

    Raises a UserError if there is a run that was not asked for, or cannot go on.
    """
    parts = [name for name in PARTS if (folder / name).exists()]
    if asked.overwrite or not parts:
        return Begun({}, 0, False)
    if records.MANIFEST not in parts:
        raise UserError(
            f"{folder}: {parts[0]} without {records.MANIFEST}; expected a whole run, "
            "or none (--overwrite begins anew)"
        )
    manifest = records.read_json(folder / records.MANIFEST)
    try:
        old, finished = int(manifest["updates"]), "final_params_sha256" in manifest
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UserError(
            f"{folder / records.MANIFEST}: not that of a run (--overwrite begins anew)"
        ) from None
    if not asked.resume:
        kind = "a finished run" if finished else "a run that is not finished"
        raise UserError(
            f"{folder}: holds {kind}; expected --resume to go on, --overwrite to begin "
            "anew, or another directory"
        )
    if asked.updates < old:
        raise UserError(
            f"--resume: updates={asked.updates}: expected at least the {old} of "
            f"{folder}"
        )
    return Begun(manifest, old, finished and asked.updates == old)


def _manifest(
    recipe: Recipe, seed: int, prepared: Prepared, way: _Way
) -> dict[str, Any]:
    spec = noise_lib.Identity() if recipe.noise is None else recipe.noise
    validation = recipe.validation
    algorithms = recipe.task.algorithms(recipe.dtype, batch=way.streams)
    return {
        "git_commit": records.git_commit(Path(__file__).parent),
        "versions": records.versions(),
        "device": process.description(),
        "flags": dict(recipe.flags),
        "network": recipe.task.network(),
        "environment": records.environment(),
        "prng": keys.IMPLEMENTATION,
        **({"convolutions": algorithms} if algorithms else {}),
        "model": recipe.task.name,
        "seed": seed,
        "data": prepared.source.name,
        **({"sampling": recipe.sampling} if recipe.sampling != "stream" else {}),
        **({"validation": validation.record} if validation else {}),
        "updates": recipe.updates,
        "noise": noise_lib.format(spec, defaults=True),
        "noise_draw": recipe.draw,
        "initial_params_sha256": records.fingerprint(prepared.weights),
        "data_order_sha256": data.order_fingerprint(prepared.source, prepared.schedule),
        **({"layout": way.layout} if way.layout else {}),
    }


def _read(field: str, value: Any) -> Any:
    """A field of a manifest; noises are specs, whose texts may name fewer options."""
    return noise_lib.parse(value) if field == "noise" and value else value


def _check_same(
    recipe: Recipe,
    folder: Path,
    old: Begun,
    new: Mapping[str, Any],
    source: data.FrameSource,
) -> None:
    """Refuses to go on with a run that began otherwise, or whose length decides.

    `new` is the manifest of the run that is asked for. More updates may have had other
    frames or rates from the start.
    """
    if not old.manifest:
        return
    first = recipe.schedule(source, new["seed"], old.updates)
    wanted = json.loads(json.dumps({field: new[field] for field in _SAME}))
    wanted["data_order_sha256"] = data.order_fingerprint(source, first)
    for field, value in wanted.items():
        known = old.manifest.get(field)
        if _read(field, known) != _read(field, value):
            raise UserError(
                f"--resume: {field} {value}; expected the {known} of {folder}"
            )
    for field in _MACHINE:
        now, before = json.loads(json.dumps(new.get(field))), old.manifest.get(field)
        if before != now:
            say(
                f"{folder}: begun with {field} {before}, going on with {now}: the last "
                "bits may differ"
            )
    longer = (
        f"--resume: updates={recipe.updates}: expected the {old.updates} of {folder}"
    )
    whole = recipe.schedule(source, new["seed"])
    if not np.array_equal(first.start, whole.start[: old.updates]):
        raise UserError(f"{longer}; more updates see other frames from the start")
    rates = [recipe.rate(total) for total in (old.updates, recipe.updates)]
    steps = np.arange(old.updates)
    before, after = (rate(steps) if callable(rate) else rate for rate in rates)
    if old.updates != recipe.updates and not np.array_equal(before, after):
        of = "rate_schedule" if recipe.learning_rate else recipe.task.name
        raise UserError(
            f"{longer}; the learning rate of {of} depends on the number of updates"
        )


def _enter(
    runs: Mapping[int, Entry], *, overwrite: bool, written: Collection[int]
) -> tuple[int, dict[int, TrainState], dict[int, dict[str, Any]]]:
    """Begins runs or goes on with them, all at the same update; the first that writes.

    Every process has all runs and writes those of `written`. Returns the update to go
    on from, its states, the manifests as written.
    """
    folders = {n: run.folder for n, run in runs.items()}
    for n in written:
        checkpoints.sweep(folders[n], every=overwrite)
        if overwrite:
            _clear(folders[n])
        for left in folders[n].glob(".*.tmp"):  # of an interrupted write
            left.unlink(missing_ok=True)
    done, states = 0, {n: run.state for n, run in runs.items()}
    if all(run.begun.manifest for run in runs.values()):
        metrics = [folder / records.METRICS for folder in folders.values()]
        lines = min(len(records.metrics_lines(path)) for path in metrics)
        done, states = checkpoints.newest(folders, states, lines)
    # From here on the directories change, which all processes have read by now.
    process.same("the update to go on from", done)
    manifests = {}
    for n in written:
        folder, old, new, _ = runs[n]
        manifests[n] = dict(new)
        if old.manifest:
            print(f"{folder}: going on after update {done}")
            manifests[n] = _continued(old.manifest, new, done)
        records.write_json(folder / records.MANIFEST, manifests[n])
    return done, states, manifests


def _clear(folder: Path) -> None:
    """Removes the files of a run from its directory, and nothing else."""
    for name in (*PARTS, INITIAL, records.LOSS_PICTURE):
        if name != checkpoints.FOLDER:
            (folder / name).unlink(missing_ok=True)
    for events in folder.glob("events.out.tfevents.*"):
        events.unlink()


def _continued(old: Mapping, new: Mapping, done: int) -> dict[str, Any]:
    """The manifest of a run that goes on: as it was begun, and where it goes on."""
    kept = {k: v for k, v in old.items() if k not in _ENDS}
    now = {k: new.get(k) for k in ("git_commit", *_MACHINE) if new.get(k) != old.get(k)}
    resumed = [*old.get("resumed", ()), {"after_update": done, **now}]
    return kept | {k: new[k] for k in _CHANGING} | {"resumed": resumed}
