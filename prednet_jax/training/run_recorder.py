"""Records a run while it is trained: a line per update, checkpoints, final results.

Every update is checked for numbers that are not finite. This computes nothing on the
device: the loss and the norm of the gradient are already on the host.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from prednet_jax import data, files, process, records
from prednet_jax.errors import RunError, UserError, log_line
from prednet_jax.models import parameters
from prednet_jax.tasks import Task
from prednet_jax.training import checkpoints, evaluation
from prednet_jax.training.interruption import Interruption
from prednet_jax.training.loop import Pair, UpdateRecord
from prednet_jax.training.progress import Progress, reached
from prednet_jax.training.recipe import Recipe
from prednet_jax.training.settings import TRACE_AFTER
from prednet_jax.training.truncated import TrainState

T = TypeVar("T")
# The values of each update that TensorBoard shows.
SCALARS = ("loss", "last_frame_loss", "copy_last_frame_loss", "grad_norm")
# Updates in a trace.
_TRACED = 3
# Seconds between two checkpoints, where `checkpoint_every` is 0.
_SECONDS = 300.0
# A warning follows so many updates without a gradient.
_ZERO_GRADIENTS = 10
ADVICE = "try a lower --learning_rate, --clip_gradient=1 or --precision=float64"
# Examples end here in an endless source: beyond what any run trains on, where the walk
# of seed 0 shows colours and moves.
_END = 10**8 + 400


def check_finite(
    name: object, record: UpdateRecord, state: Callable[[], TrainState], deep: bool
) -> None:
    """Raises a RunError where loss or gradient is not finite, or the state is not.

    `state` is called where a number is not finite, and with `deep`.
    """
    finite = math.isfinite(record.loss) and math.isfinite(record.grad_norm)
    lost = None if finite and not deep else first_not_finite(state())
    if not finite or lost:
        tensor = "every tensor is finite, the norm overflowed"
        if lost:
            tensor = f"the first tensor that is not finite is {lost}"
        raise RunError(
            f"{name}: update {record.update}: loss {record.loss}, norm of the gradient "
            f"{record.grad_norm}; {tensor}; {ADVICE}"
        )


def first_not_finite(state: TrainState) -> str | None:
    """Returns the name of the first tensor with NaN or infinity, or None.

    In the order of the computation: the carried state shows the forward pass, the
    optimiser's moments the gradient, and the parameters come last.
    """
    for field in ("carry", "optimizer_state", "params"):
        name = parameters.first_not_finite(getattr(state, field))
        if name is not None:
            return f"{field}/{name}".rstrip("/")
    return None


class RunRecorder:
    """Writes one run's records, and ends the run where its numbers are not finite.

    `done` updates were made before; `params` are the weights after them.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        manifest: records.Manifest,
        done: int,
        params: dict | None = None,
    ):
        self.folder = folder
        self._recipe, self._manifest, self._saved = recipe, manifest, done
        self._writer = records.MetricsWriter(folder, keep=done)
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog

        # Each part of a run has its own file: TensorBoard joins them, and drops what an
        # earlier part wrote about later updates. (The `flush` of tensorboardX'
        # SummaryWriter does not wait for its thread, which loses events.) A relative
        # path that starts with `s3:` or `gs:` would be a bucket. TensorboardX adds the
        # second of the clock, which may have been set back.
        own = f".{done:09}.{os.urandom(4).hex()}"
        self._events = EventsWriter(str((folder / "events").absolute()), own)
        self._event(done + 1, session_log=SessionLog(status=SessionLog.START))
        self._losses: list[float] = []
        self._zero_gradients = 0
        self._validated: dict[str, float] | None = None
        if recipe.validation is not None:
            rows = records.read_validation(folder) if done else []  # 0 is scored below.
            kept = [r for r in rows if r["update"] <= done]
            self._validated = kept[-1] if kept else None
            lines = "".join(json.dumps(row) + "\n" for row in kept)
            records.write_bytes(folder / records.VALIDATION, lines.encode())
            if not done and params is not None:
                self._validate(0, params)

    def see(
        self, record: UpdateRecord, state: Callable[[], TrainState], save: bool
    ) -> None:
        """Writes an update, and with `save` a checkpoint of the `state` after it."""
        self._writer.write(**dataclasses.asdict(record))
        self._show(record.update, "", {name: getattr(record, name) for name in SCALARS})
        self._losses.append(record.loss)
        last = record.update == self._recipe.updates
        every = self._recipe.data.validate_every
        scored = every and (last or record.update % every == 0)
        try:
            check_finite(self.folder, record, state, bool(last or scored))
            self._count_zero_gradient(record)
            if self._recipe.validation and scored:
                self._validate(record.update, state().params)
            if save:
                self._save(record.update, state())
        except RunError as error:
            kept = f"; checkpoint {self._saved} is kept" if self._saved else ""
            self._write_manifest(failure=f"{error}{kept}")
            raise RunError(f"{error}{kept}") from None

    def _write_manifest(self, **end: Any) -> None:
        ended = dataclasses.replace(self._manifest, **end)
        records.write_json(self.folder / records.MANIFEST, ended.to_json())

    def _count_zero_gradient(self, record: UpdateRecord) -> None:
        """Warns once, at the tenth update whose gradient is exactly zero."""
        if record.grad_norm != 0:
            return
        self._zero_gradients += 1
        if self._zero_gradients == _ZERO_GRADIENTS:
            log_line(
                f"{self.folder}: the gradient was exactly zero in {_ZERO_GRADIENTS} "
                "updates: the frames are black (see what --crop leaves), or no unit is "
                "active"
            )

    def _validate(self, update: int, params: dict) -> None:
        assert self._recipe.validation is not None
        scored = self._recipe.validation.score(params)
        scores = {name: getattr(scored, name) for name in records.SCORES}
        self._validated = {"update": update, **scores}
        with open(self.folder / records.VALIDATION, "a") as file:
            file.write(json.dumps(self._validated) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._show(update, "validation/", self._validated)

    def _event(self, update: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._events.write_event(Event(wall_time=time.time(), step=update, **content))

    def _show(
        self, update: int, prefix: str, values: Mapping[str, float | None]
    ) -> None:
        """Adds the finite scalars of an update for TensorBoard."""
        from tensorboardX.summary import scalar

        for name, value in values.items():
            if name != "update" and value is not None and math.isfinite(value):
                self._event(update, summary=scalar(prefix + name, value))

    def _save(self, update: int, state: TrainState) -> None:
        # A checkpoint promises the lines of its updates, and their events.
        self._writer.sync()
        self._events.flush()
        scored = self._validated or {"loss": float(np.mean(self._losses))}
        passing = not _is_kept(self._recipe, update)
        checkpoints.save(self.folder, state, loss=scored["loss"], passing=passing)
        self._saved = update
        self._losses.clear()

    def keep(self, state: TrainState) -> None:
        """Saves the state after the last update, unless it is saved already."""
        if self._losses:
            self._save(int(state.update), state)

    def prune(self) -> None:
        """Removes the checkpoints that the recipe does not keep.

        It is called when all runs of one program have saved the update, so that at any
        moment they have a common checkpoint.
        """
        kept = self._recipe.records.keep_checkpoints, self._recipe.records.keep_best
        checkpoints.prune(self.folder, self._saved, *kept)

    def close(self) -> None:
        """Closes metrics and events."""
        self._writer.close()
        self._events.close()

    def finish(
        self, params: dict, source: data.FrameSource, measured: dict[str, float]
    ) -> None:
        """Writes examples, weights, and last the manifest, which ends the run."""
        if self._recipe.records.examples:
            path, count = self.folder / records.EXAMPLES, self._recipe.records.examples
            write_examples(path, self._recipe.task, params, source, count)
        path, digest = self.folder / records.WEIGHTS, records.fingerprint(params)
        records.write_tree(path, params)
        if records.fingerprint(records.read_tree(path)) != digest:
            raise RunError(f"{path}: {checkpoints.UNLIKE}")
        self._write_manifest(**measured, final_params_sha256=digest)
        after = f"its weights are {path}"
        if self._recipe.task.windowed:
            script = "python experiments/predict.py"
            weights = shlex.quote(f"--weights={self.folder}")
            after = f"{script} {weights} shows what it predicts"
        print(
            f"{self.folder}: {self._recipe.updates} updates (this call took "
            f"{measured['wall_seconds']:.1f} s){reached(self.folder, self._validated)};"
            f" {after}"
        )


def write_examples(
    path: Path, task: Task, params: dict, source: data.FrameSource, count: int
) -> None:
    """Writes the last frames of a source, predicted after a warm-up."""
    count = min(count, source.length - task.windowed)
    total = min(source.length, task.warm_up + count)
    start = min(source.length, _END) - total
    frames = source.read(start, start + total)
    predicted, _ = evaluation.predict_frames(task, params, frames)
    predicted = predicted[-count:].astype(np.float32)
    arrays = {"frames": frames[-count:], "predictions": predicted}
    if task.windowed:  # images shown one by one have none before them
        arrays["before"] = frames[-count - 1 : -1]
    records.write_tree(path, arrays, compressed=True)


def _is_kept(recipe: Recipe, update: int) -> bool:
    """Returns whether the recipe asks for a checkpoint of an update."""
    every = recipe.records.checkpoint_every
    return update == recipe.updates or bool(every and update % every == 0)


def record_training(
    recipe: Recipe,
    recorders: Mapping[int, RunRecorder],
    steps: Iterator[tuple[Any, Sequence[UpdateRecord]]],
    pair: Pair,
    interruption: Interruption,
    *,
    done: int,
    name: str,
) -> Any:
    """Trains runs to the end and records every update.

    All save a checkpoint of the same update: where the recipe asks for one, when a
    signal came, and without `checkpoint_every` every five minutes.

    Args:
        recipe: settings that the runs share.
        recorders: the recorders of this process, by position among its runs.
        steps: the training, as `loop.train_runs` yields it.
        pair: the kind of the training.
        interruption: recorder of signals.
        done: updates that were made before.
        name: the name that the progress shows.

    Returns:
        The last states, gathered, or None if all updates were made before.
    """
    bar = Progress(name, recipe.updates, done, shown=recipe.records.progress)
    last_states, saved = None, time.monotonic()
    try:
        for states, lines in traced(steps, recipe.records.profile):
            interruption.defer()
            update = lines[0].update
            late = (
                time.monotonic() - saved > _SECONDS
                and not recipe.records.checkpoint_every
            )
            number, due = process.all_max(interruption.noted or 0, late)
            save = bool(number or due) or _is_kept(recipe, update)
            if save:
                interruption.save()
            last_states = pair.gather(states) if save else states
            for i, recorder in recorders.items():
                recorder.see(
                    lines[i], functools.partial(pair.state_of, last_states, i), save
                )
            if save:
                for recorder in recorders.values():
                    recorder.prune()
                saved = time.monotonic()
            if number:
                interruption.noted = signal.Signals(number)
                process.barrier("saved")
                where = next((r.folder for r in recorders.values()), name)
                interruption.obey(
                    f"{where} is saved after update {update}; --resume continues"
                )
            bar.update(*lines)
    except UserError as error:
        # The next frames cannot be read: what was trained is not lost by that.
        if last_states is None or jax.process_count() > 1:
            raise
        last_states = pair.gather(last_states)
        for i, recorder in recorders.items():
            recorder.keep(pair.state_of(last_states, i))
        raise UserError(
            f"{error}; saved after update {update}, from which --resume continues"
        ) from None
    finally:
        bar.close()
        for recorder in recorders.values():
            recorder.close()
    return last_states


def traced(steps: Iterator[T], folder: str | None) -> Iterator[T]:
    """Yields the same steps; traces the third to the fifth if a folder is given."""
    if folder is None:
        yield from steps
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as links, contextlib.ExitStack() as tracing:
        plain = links.enter_context(files.plain_path(folder))
        trace = jax.profiler.trace(str(plain), create_perfetto_trace=True)
        for number, step in enumerate(steps, 1):
            yield step
            # The next request executes the step after this one.
            if number == TRACE_AFTER:
                tracing.enter_context(trace)
            if number == TRACE_AFTER + _TRACED:
                tracing.close()
