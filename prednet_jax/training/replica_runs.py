"""Many seeds or streams in one program, as runs on disk (`train.py --replicas`)."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax

from prednet_jax import data, records
from prednet_jax.errors import UserError
from prednet_jax.training import checkpoints, replicas
from prednet_jax.training.layout import Layout, layout
from prednet_jax.training.observe import progress, traced
from prednet_jax.training.runs import (
    Clock,
    Prepared,
    Recipe,
    finish,
    make_manifest,
    open_folder,
    prepare,
)
from prednet_jax.training.truncated import TrainState


def train(recipe: Recipe, folders: Mapping[int, Path], mode: str) -> None:
    """Trains all seeds at once; each process writes the runs of those it holds.

    Devices and processes are set before (`process.split_cpu`, `join_processes`).

    Args:
        recipe: what the seeds share.
        folders: directory of each seed's run; the replicas in their order.
        mode: `auto`, `map` or `vmap`.

    Raises:
        UserError: a value is outside what is accepted.
    """
    place = layout(len(folders), recipe.batch)
    mode = replicas.resolve_mode(mode, jax.default_backend())
    recipe = dataclasses.replace(
        recipe, task=replicas.resolve_network(recipe.task, mode)
    )
    seeds, paths = list(folders), list(folders.values())
    prepared = {n: _streams(recipe, seeds[n]) for n in place.local}
    if recipe.resume:
        _align([paths[n] for n in place.local], recipe.updates)
    held, opened = {}, {}
    for n, (_, sources, found) in prepared.items():
        state = recipe.initial_state(seeds[n], found.weights)
        if place.written(n):
            manifest = make_manifest(recipe, seeds[n], sources, found)
            manifest["layout"] = _described(place, mode)
            done, state = open_folder(recipe, paths[n], manifest, state)
            opened[n] = manifest, done
        held[n] = replicas.Replica(seeds[n], state, sources, found.schedule)
    update = replicas.compile_update(
        recipe.task, recipe.optimizer, recipe.method, recipe.noise, place, mode
    )
    clock = Clock()
    writers = {
        n: records.MetricsWriter(paths[n], keep=done) for n, (_, done) in opened.items()
    }
    begun = max((done for _, done in opened.values()), default=0)
    states = _write_all(
        recipe, paths, writers, replicas.train(update, place, held), begun
    )
    measured = clock.stop()
    for n, (manifest, _) in opened.items():
        params = replicas.replica_params(states, n)
        finish(recipe, paths[n], manifest | measured, params, prepared[n][0])
    print(
        f"{len(opened)} x {recipe.updates} updates in {measured['wall_seconds']:.1f} s "
        f"on {place.mesh.size} devices"
    )


def _streams(
    recipe: Recipe, seed: int
) -> tuple[data.FrameSource, list[data.FrameSource], Prepared]:
    """A seed's source, its streams, and the schedule of each with the weights."""
    found = prepare(recipe, seed)
    sources = data.streams(found.source, recipe.batch)
    return found.source, sources, found._replace(schedule=recipe.schedule(sources[0]))


def _described(place: Layout, mode: str) -> dict[str, object]:
    return {
        "replicas": place.replicas,
        "batch": place.batch,
        "replica_mode": mode,
        "devices": place.mesh.size,
        "processes": jax.process_count(),
    }


def _align(folders: list[Path], updates: int) -> None:
    """Drops checkpoints that not all replicas have; refuses a run that is complete.

    An interruption between the saves of one update leaves some ahead of the others.
    """
    shared = set.intersection(*(set(checkpoints.updates(f)) for f in folders))
    last = max(shared, default=0)
    if last >= updates:
        raise UserError(
            f"--updates={updates}: {folders[0].parent} has made them all; expected "
            "more to go on"
        )
    for folder in folders:
        checkpoints.drop_after(folder, last)


def _write_all(
    recipe: Recipe,
    paths: list[Path],
    writers: Mapping[int, records.MetricsWriter],
    steps: Iterator,
    begun: int,
) -> TrainState:
    """Trains to the end, writing metrics and checkpoints; the states at the end."""
    name = f"{recipe.task.name} x {len(paths)}"
    bar = progress(name, recipe.updates, begun, recipe.progress)
    every = recipe.checkpoint_every
    try:
        for states, lines in traced(steps, recipe.profile):
            for n, writer in writers.items():
                writer.write(**dataclasses.asdict(lines[n]))
            if every and next(iter(lines.values())).update % every == 0:
                for n in writers:
                    checkpoints.save(paths[n], replicas.replica_state(states, n))
            bar.update()
    finally:
        bar.close()
        for writer in writers.values():
            writer.close()
    return states
