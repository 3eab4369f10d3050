r"""Trains PredNet or the autoencoder, on one stream of frames or on random windows.

    python experiments/train.py --workdir=runs/first --updates=50
    python experiments/train.py --workdir=runs/ten --updates=50 --replicas=10

writes runs/first/metrics.jsonl (one JSON object per update), manifest.json, the trained
weights and, in checkpoints/, the whole final state. A run in the same directory is
replaced by --overwrite alone.

    python experiments/train.py --workdir=runs/first --resume

goes on where a run stopped, with the flags it was begun with; with --updates=100 too,
beyond its end. Where nothing was begun it begins, so that one command can be repeated
until it is done. To predict further ahead, as Lotter et al. did, a trained network is
trained on by its own predictions (five frames after ten):

    python experiments/train.py --workdir=runs/far --mode=finetune_rollout \
      --init_weights=runs/first --sampling=windows --window=15 --extrapolate_from=10
"""

import os
from pathlib import Path

import _cli
import _flags
import _inherited
import jax
from absl import flags

from prednet_jax import data, errors, noise, process, records
from prednet_jax.errors import UserError
from prednet_jax.objectives import OBJECTIVES, TARGETS, Method
from prednet_jax.tasks import Task
from prednet_jax.training import recipe, replicas, train_seeds
from prednet_jax.training.interruption import Interruption

FLAGS = flags.FLAGS
# Fields of a recipe that are flags of the same name, and of its method.
FIELDS = (
    *("updates", "window", "draw", "learning_rate", "clip_gradient", "rate_floor"),
    *("sampling", "batch", "validate_every", "checkpoint_every", "keep_checkpoints"),
    *("keep_best", "resume", "overwrite", "examples", "profile", "progress"),
)
METHOD = (
    *("targets", "truncation_leak", "objective", "layer_weights"),
    *("extrapolate_from", "rematerialize"),
)
_inherited.define_preset()
_flags.define_model_flags()
_flags.define_data_flags()
_flags.define_precision_flag()
_flags.define_fields(recipe.Recipe, FIELDS, updates=250, window=20, progress=True)
_flags.define_fields(Method, METHOD, {"targets": TARGETS, "objective": OBJECTIVES})
flags.DEFINE_enum(
    "mode",
    "train",
    ("train", "finetune_rollout"),
    "finetune_rollout: each window is a sequence of its own, whose frames from "
    "--extrapolate_from on (default: two thirds of --window; Lotter et al. 2017: 10 of "
    "15) the network does not see; it sees its own predictions of them. Starts from "
    "--init_weights.",
)
flags.DEFINE_integer(
    "sequences",
    None,
    "Training sequences of --sampling=windows. Default: 256 walks, 4096 sequences of "
    "moving digits, all that files have.",
)
flags.DEFINE_string(
    "validation_data",
    None,
    "Held-out frames for --validate_every, a PATH or name as in --data. Default: the "
    "part val next to train in --data, else a split of --data.",
)
flags.DEFINE_integer("seed", 0, "Root seed of weights, data and noise.")
flags.DEFINE_list(
    "seeds", None, "Several seeds one after the other, in workdir/seed_N each."
)
flags.DEFINE_integer(
    "replicas",
    0,
    "Seeds seed, seed+1, ... trained in one program on all devices, in workdir/seed_N "
    "each; 0: one run.",
)
flags.DEFINE_enum(
    "replica_mode",
    "auto",
    replicas.MODES,
    "Replicas of a device one after the other or at once. auto: map on a CPU, else "
    "vmap.",
)
flags.DEFINE_integer(
    "devices",
    0,
    "Devices that a CPU is split into, for --replicas and --batch. 0: as many as there "
    "are processors, or fewer where that divides the work evenly.",
)
flags.DEFINE_string(
    "coordinator",
    "auto",
    "host:port of process 0, where several processes train together (--replicas, "
    "--batch). auto: as SLURM, Open MPI or Kubernetes say; none: this one alone.",
)
flags.DEFINE_integer(
    "processes", 1, "Processes that --coordinator=host:port joins; mpirun and srun say."
)
flags.DEFINE_integer("process", 0, "Number of this one, from 0; launchers say.")
flags.DEFINE_enum(
    "schedule",
    "constant",
    recipe.RATE_SCHEDULES,
    "cosine: from --learning_rate down to --rate_floor times it after the last update.",
)
flags.DEFINE_string(
    "noise", "none", "Noise spec, such as reduction_order:granularity=element or ulp."
)
flags.DEFINE_integer("threads", 0, "Processors to use, enforced; 0: all.")
flags.DEFINE_string("workdir", None, "Where to write.", required=True)
flags.DEFINE_string(
    "init_weights",
    None,
    "Start from these weights: a file of any kind, a name of prednet_jax.pretrained or "
    "a run (directory, weights or a checkpoint), which says its data and crop too.",
)
flags.DEFINE_bool(
    "plot",
    True,
    "Draw the losses of a single run at its end, as workdir/loss.png (extra report).",
)


def main() -> None:
    """Checks every flag, then trains seed by seed, or all at once."""
    _inherited.apply_preset()
    if FLAGS.resume:
        _inherited.read_flags(Path(FLAGS.workdir), list(_cli.chosen_flags()))
    _check_mode()
    with Interruption() as interruption:
        process.prepare(threads=FLAGS.threads, cache=True)
        if FLAGS.replicas or FLAGS.batch != 1:
            _train_replicas(interruption)
        else:
            _train_seeds(interruption)
        if FLAGS.plot and jax.process_index() == 0:
            _draw(Path(FLAGS.workdir))


def _check_mode() -> None:
    if FLAGS.mode == "train":
        _flags.check_beside("--mode=finetune_rollout", False, "extrapolate_from")
        return
    if not FLAGS.init_weights:
        raise UserError(
            "--mode=finetune_rollout: expected --init_weights, a run's directory or a "
            "weight file, to start from"
        )
    if FLAGS.extrapolate_from is None:
        FLAGS.extrapolate_from = max(1, FLAGS.window * 2 // 3)


def _draw(folder: Path) -> None:
    """The losses of a single run as a picture, where the extra `report` is there."""
    if not (folder / records.METRICS).exists():
        return
    try:
        from prednet_jax.report.figures import loss_picture
    except ModuleNotFoundError as error:
        if errors.missing_extra(error) is None:
            raise
        return
    records.write_bytes(folder / records.LOSS_PICTURE, loss_picture(folder))


def _train_seeds(interruption: Interruption) -> None:
    of_many = ("coordinator", "processes", "process", "devices", "replica_mode")
    _flags.check_beside("--replicas or --batch", False, *of_many)
    folder, seeds = Path(FLAGS.workdir), _flags.integers("seeds")
    folders = {seed: folder / f"seed_{seed}" for seed in seeds} or {FLAGS.seed: folder}
    train_seeds.train_seeds(_recipe(), folders, interruption)


def _recipe() -> recipe.Recipe:
    weights = None
    if FLAGS.init_weights:
        folder = Path(FLAGS.workdir)
        kept = _inherited.kept_weights(folder) if FLAGS.resume else None
        network, weights = _inherited.initial_weights(FLAGS.init_weights, kept)
        if not kept:
            _inherited.inherit_frames(FLAGS.init_weights)
    else:
        network = _flags.task()
    _check_sampling(network)
    by_windows = FLAGS.sampling == "windows"
    method = {name: getattr(FLAGS, name) for name in METHOD}
    if by_windows and network.name == "prednet":
        method["objective"] = FLAGS.objective or "mse"
    method["layer_weights"] = _flags.numbers("layer_weights") or None
    spec = _flags.parse_noise(FLAGS.noise)
    return recipe.Recipe(
        task=network,
        open_source=lambda seed: (
            _flags.open_split(network, "train", FLAGS.sequences)
            if by_windows
            else _flags.open_source(network, seed)
        ),
        method=Method(**method),
        noise=None if spec == noise.Identity() else spec,
        dtype=process.set_precision(FLAGS.precision),
        rate_schedule=FLAGS.schedule,
        weights=weights,
        open_validation=lambda: _flags.open_validation(network),
        **{name: getattr(FLAGS, name) for name in FIELDS},
        flags=_cli.chosen_flags(),
    )


def _check_sampling(network: Task) -> None:
    name = FLAGS.data or network.data
    by_windows = FLAGS.sampling == "windows"
    _flags.check_beside("--sampling=windows", by_windows, "sequences")
    _flags.check_beside("--schedule=cosine", FLAGS.schedule == "cosine", "rate_floor")
    every, own = FLAGS.validate_every, FLAGS.validation_data
    _flags.check_beside("--validate_every", every, "validation_data")
    parts = data.split_parts(name)
    apart = by_windows or name in data.NAMES or parts or own
    if every and not apart:
        raise UserError(
            f"--validate_every={every} with --data={name}: expected --validation_data, "
            "--sampling=windows, which keeps sequences out of training, or a folder "
            "that holds train and validation"
        )
    if own and os.path.realpath(own) == os.path.realpath(parts.get("train", name)):
        raise UserError(
            f"--validation_data={own}: is trained on; expected other frames"
        )


def _train_replicas(interruption: Interruption) -> None:
    errors.whole("--replicas", FLAGS.replicas, 0)
    errors.whole("--devices", FLAGS.devices, 0)
    errors.expect(not FLAGS.draw, "--draw", FLAGS.draw, "0 with --replicas or --batch")
    if FLAGS.seeds:
        raise UserError(
            "--seeds: expected --replicas=N (seeds --seed, --seed + 1, ...) or --seeds "
            "without --batch, not both"
        )
    count, folder = max(1, FLAGS.replicas), Path(FLAGS.workdir)
    processes = _join()
    most = 1  # Of a CPU, where a launcher does not say how many processes there are.
    if processes:
        available = process.available_threads()
        most = replicas.most_devices(count, FLAGS.batch, available, processes)
    process.split_cpu(FLAGS.devices or most)
    # As --seeds names them; a batch alone is one run.
    folders = {
        seed: folder / f"seed_{seed}" if FLAGS.replicas else folder
        for seed in range(FLAGS.seed, FLAGS.seed + count)
    }
    train_seeds.train_seeds(_recipe(), folders, interruption, mode=FLAGS.replica_mode)


def _join() -> int | None:
    """Joins the processes that train together; how many they are, or None: unknown."""
    found = process.launched()
    if FLAGS.coordinator not in ("auto", "none"):
        count, number = FLAGS.processes, FLAGS.process
        if found:
            count = count if FLAGS["processes"].present else found.total or 1
            number = number if FLAGS["process"].present else found.number
        process.join_processes(FLAGS.coordinator, count, number)
        return count
    _flags.check_beside("--coordinator=host:port", False, "processes", "process")
    if found is None or FLAGS.coordinator == "none":
        return 1
    process.join_launched(found)
    return found.total


if __name__ == "__main__":
    _cli.run(main)
