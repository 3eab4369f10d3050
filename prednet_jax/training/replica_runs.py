"""Many seeds or streams in one program, as runs on disk (`train.py --replicas`)."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from prednet_jax import locks
from prednet_jax.errors import UserError
from prednet_jax.training import checkpoints, loop, manifests, replicas
from prednet_jax.training import folders as places
from prednet_jax.training.folders import Begun
from prednet_jax.training.interruption import Interruption
from prednet_jax.training.keeping import Keeper
from prednet_jax.training.layout import Layout, layout
from prednet_jax.training.observe import Progress, traced
from prednet_jax.training.recipe import Prepared, Recipe, prepare
from prednet_jax.training.runs import check_same, check_unchanged, look, saved
from prednet_jax.training.truncated import TrainState


class _Replica(NamedTuple):
    """A run that this process holds a part of.

    Attributes:
        found: frames, schedule and weights.
        manifest: of the run as it is asked for.
        state: before the first update.
    """

    found: Prepared
    manifest: dict
    state: TrainState


def train(
    recipe: Recipe,
    folders: Mapping[int, Path],
    mode: str,
    interruption: Interruption | None = None,
) -> None:
    """Trains all seeds at once; each process writes the runs of those it holds.

    Devices and processes are set before (`process.split_cpu`, `join_processes`).

    Args:
        recipe: what the seeds share.
        folders: directory of each seed's run; the replicas in their order.
        mode: `auto`, `map` or `vmap`.
        interruption: what notes signals; None: nothing does.

    Raises:
        UserError: a value is outside what is accepted, or the directories hold runs
            that cannot go on; nothing was written.
        RunError: a training cannot go on.
    """
    recipe.check_sizes(len(folders), together=True)
    place = layout(len(folders), recipe.batch)
    mode = replicas.resolve_mode(mode, jax.default_backend())
    recipe = dataclasses.replace(
        recipe, task=replicas.resolve_network(recipe.task, mode)
    )
    seeds, paths = list(folders), list(folders.values())
    written = {n: paths[n] for n in place.local if place.written(n)}
    begun = look(recipe, written)
    if written and all(old.finished for old in begun.values()):
        return
    _check_whole(written, begun)
    held = {n: _replica(recipe, seeds[n], place, mode) for n in place.local}
    update = replicas.compile_update(
        recipe.task, recipe.optimizer, recipe.method, recipe.noise, place, mode
    )
    _check_program(recipe, update, place, next(iter(held.values())))
    for n, old in begun.items():
        check_same(
            recipe, seeds[n], paths[n], old, held[n].manifest, held[n].found.source
        )
    if written:
        recipe.check_disk(list(written.values()), next(iter(held.values())).state)
    with locks.hold(*written.values()):
        check_unchanged(recipe, written, begun)
        opened = {
            n: (path, begun[n], held[n].manifest, held[n].state)
            for n, path in written.items()
        }
        done, states, begin = places.enter(opened, overwrite=recipe.overwrite)
        for path in written.values():
            places.keep_initial(path, recipe.weights)
        keepers = {n: Keeper(recipe, paths[n], begin[n], done) for n in written}
        runs = {
            n: replicas.Replica(
                seeds[n], states.get(n, one.state), one.found.source, one.found.schedule
            )
            for n, one in held.items()
        }
        steps = replicas.train(update, place, runs, recipe.method)
        clock = manifests.Clock()
        ends = _train_all(recipe, keepers, steps, runs, interruption or Interruption())
        measured = clock.stop()
        for n, keeper in keepers.items():
            keeper.finish(ends[n], held[n].found.source, measured)
    seconds, count = measured["wall_seconds"], place.mesh.size
    made = f"{len(keepers)} x {recipe.updates} updates"
    print(f"{made} in {seconds:.1f} s on {count} devices")


def _replica(recipe: Recipe, seed: int, place: Layout, mode: str) -> _Replica:
    """A seed's frames and their schedule, and where it starts."""
    found = prepare(recipe, seed)
    manifest = manifests.make(recipe, seed, found)
    manifest["layout"] = {
        "replicas": place.replicas,
        "batch": place.batch,
        "replica_mode": mode,
        "devices": place.mesh.size,
        "processes": jax.process_count(),
    }
    state = recipe.initial_state(seed, found.weights)
    return _Replica(found, manifest, state)


def _check_whole(folders: Mapping[int, Path], begun: Mapping[int, Begun]) -> None:
    """Refuses to go on where one run of several is lost.

    Raises:
        UserError: some runs have checkpoints, and another was never begun.
    """
    lost = [n for n, old in begun.items() if not old.manifest]
    saved_runs = [n for n, folder in folders.items() if checkpoints.updates(folder)]
    kept = [n for n in saved_runs if begun[n].manifest]
    if lost and kept:
        raise UserError(
            f"--resume: {folders[lost[0]]} is no run, and {folders[kept[0]]} is one; "
            "expected all of them, or none (--overwrite begins anew)"
        )


def _check_program(recipe: Recipe, update: Any, place: Layout, one: _Replica) -> None:
    """Traces an update of all replicas, without running it."""
    schedule = one.found.schedule
    streams = place.replicas * place.batch
    count = loop.windows_per_chunk(one.found.source, schedule.window, streams)

    def shaped(*shape: int, dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((place.replicas, *shape), dtype)

    states = jax.tree.map(lambda x: shaped(*x.shape, dtype=x.dtype), one.state)
    frames = (schedule.window + 1, place.batch, *recipe.task.frame)
    update.eval_shape(
        states,
        shaped(count, *frames, dtype=np.uint8),
        np.int32(0),
        shaped(count, dtype=np.bool_),
        shaped(2, dtype=np.uint32),
    )


def _train_all(
    recipe: Recipe,
    keepers: Mapping[int, Keeper],
    steps: Iterator,
    runs: Mapping[int, replicas.Replica],
    interruption: Interruption,
) -> dict[int, dict]:
    """Trains to the end, each run's records written; the weights at the end."""
    done = int(next(iter(runs.values())).state.update)
    name = f"{recipe.task.name} x {len(keepers)}"
    bar = Progress(name, recipe.updates, done, shown=recipe.progress)
    # Where all updates were made before, as a killed process leaves them.
    params = {n: run.state.params for n, run in runs.items()}
    try:
        for after, lines in traced(steps, recipe.profile):
            if recipe.checkpoint_every:
                interruption.defer()
            stop = interruption.noted is not None
            saving = [
                keeper
                for n, keeper in keepers.items()
                if keeper.see(
                    lines[n],
                    functools.partial(replicas.replica_state, after, n),
                    now=stop,
                )
            ]
            for keeper in saving:
                keeper.prune()
            update = next(iter(lines.values())).update
            if stop:
                interruption.obey(saved(next(iter(keepers.values())).folder, update))
            if update == recipe.updates:
                params = {n: replicas.replica_params(after, n) for n in keepers}
            bar.update(*lines.values())
    finally:
        bar.close()
        for keeper in keepers.values():
            keeper.close()
    return params
