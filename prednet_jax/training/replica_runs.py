"""Many seeds or streams in one program, as runs on disk (`train.py --replicas`)."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from prednet_jax import locks, process
from prednet_jax.errors import UserError
from prednet_jax.training import checkpoints, loop, manifests, replicas
from prednet_jax.training import folders as places
from prednet_jax.training.folders import Begun
from prednet_jax.training.interruption import Interruption
from prednet_jax.training.keeping import Keeper, follow
from prednet_jax.training.layout import Layout, layout
from prednet_jax.training.recipe import Prepared, Recipe, prepare
from prednet_jax.training.runs import announce, check_same, check_unchanged, look
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
    seeds, paths = list(folders), dict(enumerate(folders.values()))
    written = [n for n in place.local if place.written(n)]
    begun = look(recipe, paths, written)
    process.same(
        "what was begun", [(old.updates, old.finished) for old in begun.values()]
    )
    if all(old.finished for old in begun.values()):
        return
    _check_whole(paths, begun)
    held = {n: _replica(recipe, seeds[n], place, mode) for n in place.local}
    update = replicas.compile_update(
        recipe.task, recipe.optimizer, recipe.method, recipe.noise, place, mode
    )
    any_held = next(iter(held.values()))
    _check_program(recipe, update, place, any_held)
    for n in written:
        check_same(
            recipe,
            seeds[n],
            paths[n],
            begun[n],
            held[n].manifest,
            held[n].found.source,
        )
    mine = [paths[n] for n in written]
    if mine:
        recipe.check_disk(mine, any_held.state)
        announce(any_held.found.source)
    with locks.hold(*mine):
        check_unchanged(recipe, {n: paths[n] for n in written}, begun)
        # Of runs that other processes hold only the shapes of the state matter.
        opened = {
            n: (path, begun[n], (one := held.get(n, any_held)).manifest, one.state)
            for n, path in paths.items()
        }
        done, states, begin = places.enter(
            opened, overwrite=recipe.overwrite, written=written
        )
        for path in mine:
            places.keep_initial(path, recipe.weights)
        keepers = {n: Keeper(recipe, paths[n], begin[n], done) for n in written}
        runs = {
            n: replicas.Replica(
                seeds[n], states[n], one.found.source, one.found.schedule
            )
            for n, one in held.items()
        }
        interruption = interruption or Interruption()
        clock = manifests.Clock()
        end = follow(
            recipe,
            keepers,
            replicas.train(update, place, runs, recipe.method),
            replicas.replica_state,
            interruption,
            done=done,
            name=f"{recipe.task.name} x {len(keepers)}",
            whole=replicas.whole_states,
        )
        measured = clock.stop()
        for n, keeper in keepers.items():
            # Where all updates were made before, as a killed process leaves them.
            params = (
                states[n].params if end is None else replicas.replica_params(end, n)
            )
            keeper.finish(params, held[n].found.source, measured)
    if keepers:
        seconds, count = measured["wall_seconds"], place.mesh.size
        made = f"{len(keepers)} x {recipe.updates} updates"
        print(f"{made} in {seconds:.1f} s on {count} devices")
    interruption.obey(f"{paths[0]} is finished")


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
