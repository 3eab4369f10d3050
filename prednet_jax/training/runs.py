"""Trainings as runs on disk (`train.py`): seed after seed, or all in one program.

Everything that can be refused is refused before the first write: sizes from shapes, the
directories, the data, and last the program itself, by tracing it.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from prednet_jax import keys, locks, process, records
from prednet_jax.errors import UserError
from prednet_jax.training import checkpoints, folders, loop, replicas
from prednet_jax.training.folders import Begun, Entry
from prednet_jax.training.interruption import Interruption
from prednet_jax.training.keeping import Keeper, follow
from prednet_jax.training.recipe import Prepared, Recipe, prepare
from prednet_jax.training.replicas import Layout


def train(
    recipe: Recipe,
    places: Mapping[int, Path],
    interruption: Interruption | None = None,
    *,
    mode: str | None = None,
) -> None:
    """Trains several seeds, each as a run in a directory of its own.

    One after the other, finished ones are left alone. Together, each process writes
    the runs of which it holds the first part; devices and processes are set before
    (`process.split_cpu`, `process.join_processes`).

    Args:
        recipe: what they share.
        places: directory of each seed's run.
        interruption: what notes signals; None: nothing does.
        mode: None: one after the other; `auto`, `map` or `vmap`: together, as replicas
            of one program on all devices.

    Raises:
        UserError: a value is outside what is accepted, or a directory holds a run that
            cannot go on; nothing was written.
        RunError: a training cannot go on.
    """
    interruption = interruption or Interruption()
    recipe.check_sizes(len(places), together=mode is not None)
    if mode is None:
        _one_after_the_other(recipe, places, interruption)
        return
    mode = replicas.resolve_mode(mode, jax.default_backend())
    task = replicas.resolve_network(recipe.task, mode)
    recipe = dataclasses.replace(recipe, task=task)
    _together(recipe, places, interruption, mode)


def _one_after_the_other(
    recipe: Recipe, places: Mapping[int, Path], interruption: Interruption
) -> None:
    begun = _look(recipe, places)
    places = {seed: path for seed, path in places.items() if not begun[seed].finished}
    found = {seed: prepare(recipe, seed) for seed in places}
    if not found:
        return
    seed, one = next(iter(found.items()))
    state = jax.eval_shape(lambda: recipe.initial_state(seed, one.weights))
    shape = (one.schedule.window + 1, recipe.batch, *recipe.task.frame)
    # The trace is kept by JAX and used when the update is first called.
    recipe.trainer.program.eval_shape(
        state,
        jax.ShapeDtypeStruct(shape, np.uint8),
        np.bool_(True),
        keys.stream(seed, "noise"),
    )
    made = {seed: folders.manifest(recipe, seed, found[seed]) for seed in places}
    for seed, path in places.items():
        folders.check_same(recipe, path, begun[seed], made[seed], found[seed].source)
    recipe.check_disk(list(places.values()), state)
    _announce(one)
    with locks.hold(*places.values()):
        _check_unchanged(recipe, places, begun)
        for seed, path in places.items():
            entry = Entry(
                path,
                begun[seed],
                made[seed],
                recipe.initial_state(seed, found[seed].weights),
            )

            def steps(states: dict, seed: int = seed) -> Iterator:
                trained = loop.train(
                    recipe.trainer,
                    states[seed],
                    found[seed].source,
                    found[seed].schedule,
                    seed=seed,
                    draw=recipe.draw,
                )
                return ((state, {seed: record}) for state, record in trained)

            _write(
                recipe,
                {seed: entry},
                {seed: found[seed]},
                steps,
                interruption,
                name=f"{recipe.task.name} seed {seed}",
                state_of=lambda state, _: state,
            )


def _together(
    recipe: Recipe, places: Mapping[int, Path], interruption: Interruption, mode: str
) -> None:
    layout = replicas.layout(len(places), recipe.batch)
    seeds, paths = list(places), dict(enumerate(places.values()))
    written = {n: paths[n] for n in layout.local if layout.written(n)}
    begun = _look(recipe, paths, written)
    process.same(
        "what was begun", [(old.updates, old.finished) for old in begun.values()]
    )
    if all(old.finished for old in begun.values()):
        return
    _check_whole(paths, begun)
    found = {n: prepare(recipe, seeds[n]) for n in layout.local}
    states = {n: recipe.initial_state(seeds[n], x.weights) for n, x in found.items()}
    recorded = {
        "replicas": layout.replicas,
        "batch": layout.batch,
        "replica_mode": mode,
        "devices": layout.mesh.size,
        "processes": jax.process_count(),
    }
    made = {
        n: folders.manifest(recipe, seeds[n], x, layout=recorded)
        for n, x in found.items()
    }
    update = replicas.compile_update(
        recipe.task, recipe.optimizer, recipe.method, recipe.noise, layout, mode
    )
    some = layout.local[0]
    _check_program(recipe, update, layout, found[some], states[some])
    for n, path in written.items():
        folders.check_same(recipe, path, begun[n], made[n], found[n].source)
    if written:
        recipe.check_disk(list(written.values()), states[some])
        _announce(found[some])

    def steps(states: dict) -> Iterator:
        members = {
            n: replicas.Replica(seeds[n], states[n], x.source, x.schedule)
            for n, x in found.items()
        }
        return replicas.train(update, layout, members, recipe.method)

    with locks.hold(*written.values()):
        _check_unchanged(recipe, written, begun)
        # Of runs that other processes hold only the shapes of the state matter.
        entries = {
            n: Entry(path, begun[n], made.get(n, {}), states.get(n, states[some]))
            for n, path in paths.items()
        }
        _write(
            recipe,
            entries,
            {n: found[n] for n in written},
            steps,
            interruption,
            name=f"{recipe.task.name} x {len(written)}",
            state_of=replicas.replica_state,
            whole=replicas.whole_states,
            closing=f"{len(written)} x {recipe.updates} updates on "
            f"{layout.mesh.size} devices",
        )


def _write(
    recipe: Recipe,
    entries: Mapping[int, Entry],
    found: Mapping[int, Prepared],
    steps: Callable[[dict], Iterator],
    interruption: Interruption,
    *,
    name: str,
    state_of: Callable,
    whole: Callable[[Any], Any] = lambda states: states,
    closing: str = "",
) -> None:
    """Trains runs that go on together to their end, and writes their records.

    Args:
        recipe: of the runs.
        entries: all of them, by any number.
        found: of those that this process writes, what they are trained on.
        steps: from the first states to the training.
        interruption: what notes signals.
        name: of the training, for its progress.
        state_of: as in `follow`.
        whole: as in `follow`.
        closing: said at the end, with the seconds; empty: nothing.
    """
    done, states, begin = folders.enter(
        entries, overwrite=recipe.overwrite, written=found
    )
    for n in found:
        # A run goes on when the file of its weights has moved.
        initial = entries[n].folder / folders.INITIAL
        if recipe.weights is not None and not initial.exists():
            records.write_tree(initial, recipe.weights)
    keepers = {n: Keeper(recipe, entries[n].folder, begin[n], done) for n in found}
    start = time.perf_counter(), time.process_time()
    end = follow(
        recipe,
        keepers,
        steps(states),
        state_of,
        interruption,
        done=done,
        name=name,
        whole=whole,
    )
    wall = time.perf_counter() - start[0]
    parallelism = (time.process_time() - start[1]) / wall
    measured = {"wall_seconds": wall, "processor_seconds_per_second": parallelism}
    for n, keeper in keepers.items():
        # Where all updates were made before, as a killed process leaves them.
        state = states[n] if end is None else state_of(end, n)
        keeper.finish(state.params, found[n].source, measured)
    if closing and found:
        print(f"{closing} in {wall:.1f} s")
    interruption.obey(f"{next(iter(entries.values())).folder} is finished")


def _announce(found: Prepared) -> None:
    """Says what is done to frames of another size."""
    if found.source.done:
        print(f"data={found.source.name}: {found.source.done}", flush=True)


def _look(
    recipe: Recipe,
    places: Mapping[int, Path],
    written: Mapping[int, Path] | None = None,
) -> dict[int, Begun]:
    """What was begun in the directories; of finished runs it is said.

    Raises a UserError if another process works in one of `written` (None: all), or one
    holds a run that cannot go on.
    """
    mine = places if written is None else written
    for path in mine.values():
        locks.check(path)
    begun = {n: _begun(recipe, path) for n, path in places.items()}
    for n, path in mine.items():
        if begun[n].finished:
            print(f"{path}: finished, {recipe.updates} updates; nothing to do")
    return begun


def _begun(recipe: Recipe, folder: Path) -> Begun:
    return folders.begun(
        folder,
        updates=recipe.updates,
        resume=recipe.resume,
        overwrite=recipe.overwrite,
    )


def _check_unchanged(
    recipe: Recipe, places: Mapping[int, Path], begun: Mapping[int, Begun]
) -> None:
    """Looks again, when the directories are held."""
    for n, folder in places.items():
        if _begun(recipe, folder) != begun[n]:
            raise UserError(f"{folder}: another process has just written there")


def _check_whole(paths: Mapping[int, Path], begun: Mapping[int, Begun]) -> None:
    """Refuses to go on where some runs have checkpoints and another was never begun."""
    lost = [n for n, old in begun.items() if not old.manifest]
    kept = [n for n, old in begun.items() if old.manifest]
    kept = [n for n in kept if checkpoints.updates(paths[n])]
    if lost and kept:
        raise UserError(
            f"--resume: {paths[lost[0]]} is no run, and {paths[kept[0]]} is one; "
            "expected all of them, or none (--overwrite begins anew)"
        )


def _check_program(
    recipe: Recipe, update: Any, layout: Layout, found: Prepared, state: Any
) -> None:
    """Traces an update of all replicas, without running it."""

    def shaped(shape: tuple, dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((layout.replicas, *shape), dtype)

    window = (found.schedule.window + 1, layout.batch, *recipe.task.frame)
    update.eval_shape(
        jax.tree.map(lambda x: shaped(x.shape, x.dtype), state),
        shaped(window, np.uint8),
        shaped((), np.bool_),
        shaped((2,), np.uint32),
    )
