"""Trainings as runs on disk, seed after seed (`train.py`).

Everything that can be refused is refused before the first write: sizes from shapes, the
directories, the data, and last the program itself, by tracing it.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import jax
import numpy as np

from prednet_jax import data, keys, locks
from prednet_jax.errors import UserError
from prednet_jax.training import folders as places
from prednet_jax.training import loop, manifests
from prednet_jax.training.folders import Begun
from prednet_jax.training.interruption import Interruption
from prednet_jax.training.keeping import Keeper, follow
from prednet_jax.training.recipe import Prepared, Recipe, prepare
from prednet_jax.training.truncated import TrainState


def train(
    recipe: Recipe,
    folders: Mapping[int, Path],
    interruption: Interruption | None = None,
) -> None:
    """Trains seeds one after the other; those that are finished are left alone.

    Args:
        recipe: what they share.
        folders: directory of each seed's run.
        interruption: what notes signals; None: nothing does.

    Raises:
        UserError: a value is outside what is accepted, or a directory holds a run that
            cannot go on; nothing was written.
        RunError: a training cannot go on.
    """
    recipe.check_sizes(len(folders))
    begun = look(recipe, folders)
    left = {s: folder for s, folder in folders.items() if not begun[s].finished}
    prepared = {seed: prepare(recipe, seed) for seed in left}
    if not prepared:
        return
    recipe.check_disk(list(left.values()), _check_program(recipe, prepared))
    opened = {}
    for seed, found in prepared.items():
        manifest = manifests.make(recipe, seed, found)
        check_same(recipe, seed, left[seed], begun[seed], manifest, found.source)
        opened[seed] = manifest
    announce(next(iter(prepared.values())).source)
    with locks.hold(*left.values()):
        check_unchanged(recipe, left, begun)
        for seed, folder in left.items():
            _train_one(
                recipe,
                seed,
                prepared[seed],
                (folder, begun[seed], opened[seed]),
                interruption or Interruption(),
            )


def announce(source: data.FrameSource) -> None:
    """Says what is done to frames of another size."""
    if source.done:
        print(f"data={source.name}: {source.done}", flush=True)


def look(
    recipe: Recipe,
    folders: Mapping[int, Path],
    written: Collection[int] | None = None,
) -> dict[int, Begun]:
    """What was begun in the directories; of finished runs it is said.

    Args:
        recipe: of the runs.
        folders: their directories.
        written: those that this process writes; None: all.

    Raises:
        UserError: another process works in one, or holds a run that cannot go on.
    """
    found = {}
    mine = folders if written is None else written
    for seed, folder in folders.items():
        if seed in mine:
            locks.check(folder)
        found[seed] = _begun(recipe, folder)
    for seed, begun in found.items():
        if begun.finished and seed in mine:
            print(f"{folders[seed]}: finished, {recipe.updates} updates; nothing to do")
    return found


def check_unchanged(
    recipe: Recipe, folders: Mapping[int, Path], begun: Mapping[int, Begun]
) -> None:
    """Looks again, when the directories are held.

    Raises:
        UserError: another process has worked there meanwhile.
    """
    for seed, folder in folders.items():
        if _begun(recipe, folder) != begun[seed]:
            raise UserError(f"{folder}: another process has just written there")


def _begun(recipe: Recipe, folder: Path) -> Begun:
    return places.begun(
        folder,
        updates=recipe.updates,
        resume=recipe.resume,
        overwrite=recipe.overwrite,
    )


def check_same(
    recipe: Recipe,
    seed: int,
    folder: Path,
    old: Begun,
    manifest: dict,
    source: data.FrameSource,
) -> None:
    """Refuses to go on with a run that began otherwise, or whose length decides.

    Args:
        recipe: of the run.
        seed: of the run.
        folder: its directory.
        old: what was begun there.
        manifest: of the run that is asked for.
        source: its frames.

    Raises:
        UserError: it began otherwise, or a run of more updates is no longer one.
    """
    if not old.manifest:
        return
    schedule = recipe.schedule(source, seed, old.updates)
    whole = recipe.schedule(source, seed)
    places.check_same(folder, old, manifest, data.order_fingerprint(source, schedule))
    longer = (
        f"--resume: updates={recipe.updates}: expected the {old.updates} of {folder}"
    )
    if not np.array_equal(schedule.start, whole.start[: old.updates]):
        raise UserError(f"{longer}; more updates see other frames from the start")
    if not _same_rates(recipe, old.updates):
        of = "rate_schedule" if recipe.learning_rate else recipe.task.name
        raise UserError(
            f"{longer}; the learning rate of {of} depends on the number of updates"
        )


def _same_rates(recipe: Recipe, updates: int) -> bool:
    """Whether a training of so many updates has the rates of the first of these."""
    if updates == recipe.updates:
        return True
    rates = [recipe.rate(total) for total in (updates, recipe.updates)]
    steps = np.arange(updates)
    values = [np.asarray(rate(steps) if callable(rate) else rate) for rate in rates]
    return bool(np.array_equal(values[0], values[1]))


def _check_program(recipe: Recipe, prepared: Mapping[int, Prepared]) -> TrainState:
    """Traces an update, without running it: what it would refuse, it refuses here.

    The trace is kept by JAX and used when the update is first called.

    Returns:
        Shapes and types of a state.
    """
    seed, found = next(iter(prepared.items()))
    state = jax.eval_shape(lambda: recipe.initial_state(seed, found.weights))
    shape = (found.schedule.window + 1, recipe.batch, *recipe.task.frame)
    recipe.trainer.program.eval_shape(
        state,
        jax.ShapeDtypeStruct(shape, np.uint8),
        np.bool_(True),
        keys.stream(seed, "noise"),
    )
    return state


def _train_one(
    recipe: Recipe,
    seed: int,
    found: Prepared,
    place: tuple[Path, Begun, dict],
    interruption: Interruption,
) -> None:
    initial = recipe.initial_state(seed, found.weights)
    done, states, manifest = places.enter(
        {seed: (*place, initial)}, overwrite=recipe.overwrite
    )
    places.keep_initial(place[0], recipe.weights)
    keeper = Keeper(recipe, place[0], manifest[seed], done)
    clock = manifests.Clock()
    steps = loop.train(
        recipe.trainer,
        states[seed],
        found.source,
        found.schedule,
        seed=seed,
        draw=recipe.draw,
    )
    end = follow(
        recipe,
        {seed: keeper},
        ((state, {seed: record}) for state, record in steps),
        lambda state, _: state,
        interruption,
        done=done,
        name=f"{recipe.task.name} seed {seed}",
    )
    # Where all updates were made before, as a killed process leaves them.
    params = (states[seed] if end is None else end).params
    keeper.finish(params, found.source, clock.stop())
    interruption.obey(f"{place[0]} is finished")
