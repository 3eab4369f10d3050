r"""Trains PredNet or the autoencoder, on one stream of frames or on random windows.

    python experiments/train.py --workdir=runs/first --updates=50
    python experiments/train.py --workdir=runs/first --resume --updates=100
    python experiments/train.py --workdir=runs/mine --preset=quick --data=PATH \
        --validation_data=PATH

The directory gets metrics.jsonl (one JSON object per update), manifest.json, the
trained weights and, in checkpoints/, the whole final state. Only --overwrite replaces
an existing run. --resume continues a run with the flags that it started with, also
beyond its end. Without a run it starts one, so the same command can be repeated until
the run is done.

--replicas=10 trains ten seeds in one program. --mode=finetune_rollout continues to
train a network on its own predictions, to predict further ahead (docs/training.md).
"""

import dataclasses
from pathlib import Path
from typing import Any

import _cli
import _flags
import _inherited
import jax
from absl import flags

from prednet_jax import data, errors, process, records
from prednet_jax.errors import UserError
from prednet_jax.objectives import OBJECTIVES, TARGETS, Method
from prednet_jax.training import replicas, settings
from prednet_jax.training.interruption import Interruption
from prednet_jax.training.recipe import Recipe
from prednet_jax.training.settings import ComputationSettings, Settings
from prednet_jax.training.train_seeds import train_seeds

FLAGS = flags.FLAGS
_inherited.define_preset()
_flags.define_model_flags()
_flags.define_all(
    settings.DataSettings, {"crop": data.CROPS, "sampling": settings.SAMPLINGS}
)
_flags.define_all(Method, {"targets": TARGETS, "objective": OBJECTIVES})
_flags.define_all(
    settings.TrainingSettings,
    {"mode": settings.MODES, "schedule": settings.RATE_SCHEDULES},
)
_flags.define_all(settings.RecordSettings, progress=True)
_flags.define_all(
    ComputationSettings,
    {"precision": list(process.PRECISIONS), "replica_mode": replicas.MODES},
)
flags.DEFINE_string("workdir", None, "Directory to write.", required=True)


def main() -> None:
    """Checks every flag, then trains seed by seed, or all at once."""
    asked = read_settings()
    with Interruption() as interruption:
        process.prepare(threads=asked.computation.threads, cache=True)
        replica_mode = prepare_devices(asked)
        workdir = Path(FLAGS.workdir)
        directories = asked.computation.directories(workdir)
        recipe = make_recipe(asked, workdir)
        if asked.computation.precision == "tf32" and not process.has_tf32():
            print("--precision=tf32: this device has no TF32, and computes in float32")
        train_seeds(recipe, directories, interruption, replica_mode=replica_mode)
        if asked.records.plot and jax.process_index() == 0:
            draw_losses(workdir)


def read_settings() -> Settings:
    """Returns the settings: flags, over a run that continues, over a preset."""
    given = _cli.given_flags()
    layers: list[dict[str, Any]] = [_cli.chosen_flags(), _inherited.preset_values()]
    if FLAGS.resume:
        layers.append(_inherited.recorded_values(Path(FLAGS.workdir), given))
    asked = Settings.layered(*layers, given)
    require = _flags.require_other_flag
    rollout = asked.training.mode == "finetune_rollout"
    by_windows = asked.data.sampling == "windows"
    require("--mode=finetune_rollout", rollout, "extrapolate_from")
    require("--sampling=windows", by_windows, "sequences")
    require("--schedule=cosine", asked.training.schedule == "cosine", "rate_floor")
    require("--validate_every", asked.data.validate_every, "validation_data")
    if not rollout:
        return asked
    if not asked.training.init_weights:
        raise UserError(
            "--mode=finetune_rollout: expected --init_weights, a run's directory or a "
            "weight file, to start from"
        )
    if asked.method.extrapolate_from is None:
        first = max(1, asked.data.window * 2 // 3)
        method = dataclasses.replace(asked.method, extrapolate_from=first)
        asked = asked._replace(method=method)
    return asked


def make_recipe(asked: Settings, workdir: Path) -> Recipe:
    """Returns the recipe of the runs, with the weights that they start from."""
    weights, path = None, asked.training.init_weights
    if path:
        kept = _inherited.kept_weights(workdir) if asked.records.resume else None
        task, weights = _inherited.initial_weights(path, asked.network, kept)
        if not kept:
            asked = asked._replace(data=_inherited.frames_of(path, asked.data))
    else:
        task = _flags.task_of(asked.network, asked.data.data)
        _flags.check_model_flags(asked.network.model)
    largest = getattr(getattr(task, "config", None), "pixel_max", 1.0)
    wanted = "at most 1, since frames of uint8 are divided by 255"
    errors.expect(largest <= 1, "--pixel_max", largest, wanted)
    method = asked.method
    if asked.data.sampling == "windows" and task.name == "prednet":
        method = dataclasses.replace(method, objective=method.objective or "mse")
    return Recipe(
        task=task,
        data=asked.data,
        training=asked.training,
        method=method,
        records=asked.records,
        dtype=process.set_precision(asked.computation.precision),
        weights=weights,
        flags=_cli.chosen_flags() | asked.values(),
    )


def draw_losses(folder: Path) -> None:
    """Draws the losses of a single run, where the extra `report` is installed."""
    if not (folder / records.METRICS).exists():
        return
    try:
        from prednet_jax.report.figures import loss_picture
    except ModuleNotFoundError as error:
        if errors.missing_extra(error) is None:
            raise
        return
    records.write_bytes(folder / records.LOSS_PICTURE, loss_picture(folder))


def prepare_devices(asked: Settings) -> str | None:
    """Joins processes and splits the CPU for runs that are trained together.

    Returns how replicas on a device are executed, or None if seeds run one after the
    other.
    """
    own, batch = asked.computation, asked.data.batch
    if not own.replicas and batch == 1:
        names = ("coordinator", "processes", "process", "devices", "replica_mode")
        _flags.require_other_flag("--replicas or --batch", False, *names)
        return None
    number = asked.training.draw
    errors.expect(not number, "--draw", number, "0 with --replicas or --batch")
    if own.seeds:
        raise UserError(
            "--seeds: expected --replicas=N (seeds --seed, --seed + 1, ...) or --seeds "
            "without --batch, not both"
        )
    processes = join_processes(own)
    most = 1  # Of a CPU, where a launcher does not report the number of processes.
    if processes:
        count, available = max(1, own.replicas), process.available_threads()
        most = replicas.most_devices(count, batch, available, processes)
    process.split_cpu(own.devices or most)
    return own.replica_mode


def join_processes(own: ComputationSettings) -> int | None:
    """Joins the processes that train together; returns their number, if known."""
    found = process.launched()
    if own.coordinator not in ("auto", "none"):
        count, number = own.processes, own.process
        if found:
            count = count if FLAGS["processes"].present else found.total or 1
            number = number if FLAGS["process"].present else found.number
        process.join_processes(own.coordinator, count, number)
        return count
    _flags.require_other_flag("--coordinator=host:port", False, "processes", "process")
    if found is None or own.coordinator == "none":
        return 1
    process.join_launched(found)
    return found.total


if __name__ == "__main__":
    _cli.run(main)
