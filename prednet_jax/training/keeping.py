"""What is kept of a run while it goes on: a line an update, and checkpoints."""

import dataclasses
import functools
import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax import data, process, records
from prednet_jax.errors import RunError
from prednet_jax.training import checkpoints
from prednet_jax.training.examples import save_examples
from prednet_jax.training.guards import Guard
from prednet_jax.training.interruption import Interruption
from prednet_jax.training.loop import UpdateRecord
from prednet_jax.training.observe import Progress, traced
from prednet_jax.training.recipe import Recipe
from prednet_jax.training.truncated import TrainState

# What TensorBoard shows of each update.
SCALARS = ("loss", "last_frame_loss", "copy_last_frame_loss", "grad_norm")
# Between two checkpoints, where `checkpoint_every` is 0.
_SECONDS = 300.0


class Keeper:
    """Writes one run's records, and ends it where they are not numbers any more.

    The state after the last update is always kept, whatever `checkpoint_every`.

    Args:
        recipe: of the run.
        folder: its directory.
        manifest: as written when it began.
        done: updates made before.
    """

    def __init__(
        self, recipe: Recipe, folder: Path, manifest: dict[str, Any], done: int
    ):
        self.folder = folder
        self._recipe, self._manifest, self._saved = recipe, manifest, done
        self._writer = records.MetricsWriter(folder, keep=done)
        from tensorboardX import SummaryWriter

        # A file of its own for each part of a run: TensorBoard joins them, and forgets
        # what an earlier part wrote of later updates.
        self._events = SummaryWriter(str(folder), purge_step=done + 1)
        self._guard = Guard(folder, recipe.updates)
        self._losses: list[float] = []
        self._validated: dict[str, Any] | None = None
        if recipe.validation is not None:
            kept = [r for r in records.read_validation(folder) if r["update"] <= done]
            self._validated = kept[-1] if kept else None
            lines = "".join(json.dumps(row) + "\n" for row in kept)
            records.write_bytes(folder / records.VALIDATION, lines.encode())

    def see(
        self, record: UpdateRecord, state: Callable[[], TrainState], save: bool
    ) -> None:
        """Writes an update.

        Args:
            record: of the update.
            state: gives the state after it.
            save: whether a checkpoint is saved. Older ones stay until `prune`.

        Raises:
            RunError: the loss, the gradient or the final state is not finite.
        """
        self._writer.write(**dataclasses.asdict(record))
        self._show(record.update, "", {name: getattr(record, name) for name in SCALARS})
        self._losses.append(record.loss)
        last = self._recipe.updates
        try:
            self._guard.see(record, state)
            if self._recipe.validation is not None and (
                record.update == last
                or record.update % self._recipe.validate_every == 0
            ):
                self._validate(record.update, state().params)
            if record.update == last:
                self._guard.end(state())
            if save:
                self._save(record.update, state())
        except RunError as error:
            kept = f"; checkpoint {self._saved} is kept" if self._saved else ""
            failed = self._manifest | {"failure": f"{error}{kept}"}
            records.write_json(self.folder / records.MANIFEST, failed)
            raise RunError(f"{error}{kept}") from None

    def _validate(self, update: int, params: dict) -> None:
        """Scores the frozen weights, and writes what came out."""
        assert self._recipe.validation is not None
        scored = self._recipe.validation.score(params)
        self._validated = {
            "update": update,
            "loss": scored.loss,
            "copy_last_frame_loss": scored.copy_last_frame_loss,
            "ratio": scored.ratio,
        }
        with open(self.folder / records.VALIDATION, "a") as file:
            file.write(json.dumps(self._validated) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._show(update, "validation/", self._validated)

    def _show(self, update: int, prefix: str, values: Mapping[str, Any]) -> None:
        """Adds an update's scalars for TensorBoard; what is not finite is left out."""
        for name, value in values.items():
            if name != "update" and value is not None and math.isfinite(value):
                self._events.add_scalar(prefix + name, value, update)

    def _save(self, update: int, state: TrainState) -> None:
        # A checkpoint promises the lines of its updates, and their events.
        self._writer.sync()
        self._events.flush()
        loss = float(np.mean(self._losses))
        if self._validated is not None:
            loss = self._validated["loss"]
        asked = asked_for(self._recipe, update)
        checkpoints.save(self.folder, state, loss=loss, passing=not asked)
        self._saved = update
        self._losses.clear()

    def prune(self) -> None:
        """Removes the checkpoints that the recipe does not keep.

        Called when every run that goes on together with this one has saved the same
        update, so that at any moment they have one in common.
        """
        kept = self._recipe.keep_checkpoints, self._recipe.keep_best
        checkpoints.prune(self.folder, self._saved, *kept)

    def close(self) -> None:
        """Closes the metrics."""
        self._writer.close()
        self._events.close()

    def finish(
        self, params: dict, source: data.FrameSource, measured: dict[str, float]
    ) -> None:
        """Writes examples, weights, and last the manifest, which says that all is done.

        Args:
            params: the trained weights.
            source: the run's frames.
            measured: what `Clock.stop` gave.
        """
        if self._recipe.examples:
            save_examples(
                self.folder, self._recipe.task, params, source, self._recipe.examples
            )
        records.write_tree(self.folder / records.WEIGHTS, params)
        end: dict[str, Any] = {"final_params_sha256": records.fingerprint(params)}
        if self._guard.warnings:
            end["warnings"] = self._guard.warnings
        records.write_json(
            self.folder / records.MANIFEST, self._manifest | measured | end
        )
        after = f"its weights are {self.folder / records.WEIGHTS}"
        if self._recipe.task.name == "prednet":
            script = "python experiments/predict.py"
            after = f"{script} --weights={self.folder} shows what it predicts"
        how_far = reached(self.folder, self._validated)
        print(
            f"{self.folder}: {self._recipe.updates} updates in "
            f"{measured['wall_seconds']:.1f} s{how_far}; {after}"
        )


def asked_for(recipe: Recipe, update: int) -> bool:
    """Whether the recipe asks for a checkpoint of an update."""
    every = recipe.checkpoint_every
    return update == recipe.updates or bool(every and update % every == 0)


def follow(
    recipe: Recipe,
    keepers: Mapping[int, Keeper],
    steps: Iterator[tuple[Any, Mapping[int, UpdateRecord]]],
    state_of: Callable[[Any, int], TrainState],
    interruption: Interruption,
    *,
    done: int,
    name: str,
    whole: Callable[[Any], Any] = lambda states: states,
) -> Any:
    """Trains to the end, with the records of every run.

    A checkpoint is saved where the recipe asks for one, when a signal came, and without
    `checkpoint_every` every `_SECONDS`; all runs save the same update.

    Args:
        recipe: of the runs.
        keepers: those that this process writes, by any number.
        steps: the training: states, and the record of each run.
        state_of: from states and a number to the state of that run.
        interruption: what notes signals.
        done: updates made before.
        name: of the training, for its progress.
        whole: collects states that several processes hold; all of them call it.

    Returns:
        The last states; None where all updates were made before.

    Raises:
        RunError: a training cannot go on.
    """
    bar = Progress(name, recipe.updates, done, shown=recipe.progress)
    states, saved = None, time.monotonic()
    try:
        for states, lines in traced(steps, recipe.profile):
            interruption.defer()
            update = next(iter(lines.values())).update
            late = time.monotonic() - saved > _SECONDS and not recipe.checkpoint_every
            number, due = process.largest(interruption.noted or 0, late)
            save = bool(number or due) or asked_for(recipe, update)
            held = whole(states) if save else states
            for n, keeper in keepers.items():
                keeper.see(lines[n], functools.partial(state_of, held, n), save)
            if save:
                for keeper in keepers.values():
                    keeper.prune()
                saved = time.monotonic()
            if number:
                interruption.noted = signal.Signals(number)
                process.meet("saved")
                where = next((str(k.folder) for k in keepers.values()), name)
                interruption.obey(
                    f"{where} is saved after update {update}; --resume goes on"
                )
            bar.update(*lines.values())
    finally:
        bar.close()
        for keeper in keepers.values():
            keeper.close()
    return states


def reached(folder: Path, validated: Mapping[str, Any] | None = None) -> str:
    """How far a training got, in words: its last loss beside that of copying.

    Means over the last fifth of all updates, also those of earlier processes. Empty for
    a network that has no frame to copy.

    Args:
        folder: directory of the run.
        validated: the last frozen score, if there is one.
    """
    metrics = records.read_run(folder).metrics
    last = -max(1, len(metrics["loss"]) // 5)
    loss, copied = (metrics[name][last:] for name in ("loss", "copy_last_frame_loss"))
    compared = np.isfinite(copied)
    if not np.any(copied[compared]):
        return ""
    ratio = loss[compared].mean() / copied[compared].mean()
    text = f", loss {ratio:.2f} of copying the last frame's"
    if validated is None:
        return text
    return f"{text} while training, {validated['ratio']:.2f} frozen, held out"
