"""Trains PredNet or the autoencoder on one stream of frames.

    python experiments/train.py --workdir=runs/first --updates=50
    python experiments/train.py --workdir=runs/ten --updates=50 --replicas=10

writes runs/first/metrics.jsonl (one JSON object an update) and manifest.json. Files of
an earlier run in the same directory are replaced, unless --resume.
"""

import dataclasses
import sys
import time
from pathlib import Path

import common
from absl import flags

FLAGS = flags.FLAGS
common.define_model_flags()
common.define_data_flags()
flags.adopt_module_key_flags(common)
flags.DEFINE_integer("window", 20, "Transitions an update (truncation length), >= 2.")
flags.DEFINE_integer("updates", 250, "Updates to make.")
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
flags.DEFINE_integer(
    "batch",
    1,
    "Sequences of the data trained together, spread over the devices: a source of as "
    "many sequences is dealt out, one of fewer is cut into equal parts.",
)
flags.DEFINE_enum(
    "replica_mode",
    "auto",
    ["auto", "map", "vmap"],
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
    "coordinator", None, "host:port of process 0, where several hosts train together."
)
flags.DEFINE_integer("processes", 1, "Processes that train together.")
flags.DEFINE_integer("process", 0, "Number of this one, from 0.")
flags.DEFINE_enum("targets", "true", ["true", "stale"], "stale: Chainer's CPU bug.")
flags.DEFINE_bool(
    "truncation_leak", False, "Reproduce the gradient Chainer leaks between windows."
)
flags.DEFINE_enum(
    "objective", None, ["squares", "errors"], "Default: as the variant was published."
)
flags.DEFINE_list("layer_weights", None, "Layer weights of the objective `errors`.")
flags.DEFINE_float(
    "learning_rate", None, "Constant Adam rate. Default: as the variant was published."
)
flags.DEFINE_string(
    "noise", "none", "Noise spec, such as reduction_order:granularity=element or ulp."
)
flags.DEFINE_enum("precision", "float32", ["float32", "float64"], "Of everything.")
flags.DEFINE_integer("threads", 0, "Processors to use, enforced; 0: all.")
flags.DEFINE_string("workdir", None, "Where to write.", required=True)
flags.DEFINE_integer("checkpoint_every", 0, "Updates between checkpoints; 0: none.")
flags.DEFINE_bool("resume", False, "Go on from the last checkpoint in workdir.")
flags.DEFINE_string("init_weights", None, "Start from a Chainer or Keras weight file.")
flags.DEFINE_integer(
    "examples", 0, "Frames to predict after training, kept in workdir/examples.npz."
)
flags.DEFINE_string(
    "profile",
    None,
    "Directory for a trace of updates 3 to 5, for TensorBoard, XProf or Perfetto.",
)
flags.DEFINE_bool("progress", sys.stderr.isatty(), "Show a progress bar on stderr.")


def main(argv: list[str]) -> None:
    """Checks every flag, then trains seed by seed."""
    del argv
    if FLAGS.threads:
        from prednet_jax import backends

        backends.limit_threads(FLAGS.threads)
    if FLAGS.replicas or FLAGS.batch != 1:
        import train_replicas

        train_replicas.run(Job)
        return
    for name in ("coordinator", "processes", "process", "devices", "replica_mode"):
        if getattr(FLAGS, name) != FLAGS[name].default:
            raise ValueError(f"--{name}: expected --replicas or --batch beside it")
    job = Job()
    seeds = common.integers("seeds", FLAGS.seeds) or (FLAGS.seed,)
    prepared = [job.prepare(seed) for seed in seeds]
    for seed, run in zip(seeds, prepared, strict=True):
        folder = Path(FLAGS.workdir)
        job.run(seed, *run, folder / f"seed_{seed}" if FLAGS.seeds else folder)


class Job:
    """What all seeds of one call share: the network, the method, the device."""

    def __init__(self) -> None:
        # Imported late: threads have to be limited before a backend starts.
        from prednet_jax import backends, noise, optimizers
        from prednet_jax.training import loop, truncated

        if FLAGS.updates < 1:
            raise ValueError(f"--updates={FLAGS.updates}: expected at least 1")
        if FLAGS.checkpoint_every < 0:
            raise ValueError(
                f"--checkpoint_every={FLAGS.checkpoint_every}: expected at least 0"
            )
        if FLAGS.profile and FLAGS.updates <= common.PROFILE_AFTER:
            raise ValueError(
                f"--updates={FLAGS.updates}: expected at least "
                f"{common.PROFILE_AFTER + 1} with --profile, whose trace begins then"
            )
        if FLAGS.window < 2:
            raise ValueError(f"--window={FLAGS.window}: expected at least 2")
        common.use_compilation_cache()
        self.data = FLAGS.data or ("walk" if FLAGS.model == "prednet" else "digits")
        self.weights = None
        if FLAGS.init_weights:
            self.config, self.weights = common.load_weights(FLAGS.init_weights)
        else:
            self.config = common.model_config(self.data)
        layer_weights = FLAGS.layer_weights and tuple(map(float, FLAGS.layer_weights))
        self.method = truncated.Method(
            objective=FLAGS.objective,
            targets=FLAGS.targets,
            truncation_leak=FLAGS.truncation_leak,
            layer_weights=layer_weights or None,
        )
        spec = noise.parse(FLAGS.noise)
        self.noise = None if spec == noise.Identity() else spec
        self.dtype = backends.set_precision(FLAGS.precision)
        self.optimizer = loop.default_optimizer(self.config, FLAGS.updates)
        if FLAGS.learning_rate is not None:
            self.optimizer = optimizers.chainer_adam(FLAGS.learning_rate)
        self.update = loop.compile_update(
            self.config, self.optimizer, self.method, self.noise
        )

    def prepare(self, seed: int) -> tuple:
        """Opens the data and draws the weights: everything that can be refused."""
        from prednet_jax import keys
        from prednet_jax.training import loop

        keys.stream(seed, "init")
        source = common.open_source(self.data, self.config, seed)
        schedule = self.schedule(source)
        weights = self.weights
        if weights is None:
            weights = loop.initial_params(self.config, seed)
        return source, schedule, weights

    def schedule(self, source: object) -> object:
        """Which frames of a source, or of a stream of it, each update sees."""
        from prednet_jax.training import loop

        return loop.frame_schedule(
            self.config, source, window=FLAGS.window, updates=FLAGS.updates
        )

    def run(
        self, seed: int, source: object, schedule: object, weights: dict, folder: Path
    ) -> None:
        """Trains one seed and writes its records."""
        from prednet_jax import records
        from prednet_jax.training import checkpoints, loop

        state = self.initial_state(seed, weights)
        manifest = self.manifest(seed, [source], schedule, weights)
        done, state = self.open_folder(folder, manifest, state)
        writer = records.MetricsWriter(folder, keep=done)
        name = f"{FLAGS.model} seed {seed}"
        bar = common.progress(name, FLAGS.updates, done, FLAGS.progress)
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            steps = loop.train(self.update, state, source, schedule, seed=seed)
            steps = common.profiled(steps, FLAGS.profile)
            for state, record in steps:
                writer.write(**dataclasses.asdict(record))
                every = FLAGS.checkpoint_every
                if every and record.update % every == 0:
                    checkpoints.save(folder, state)
                bar.set_postfix(loss=f"{record.loss:.5f}", refresh=False)
                bar.update()
        finally:
            bar.close()
            writer.close()
        seconds = time.perf_counter() - wall
        parallelism = (time.process_time() - cpu) / seconds
        self.finish(folder, manifest, state.params, source, seconds, parallelism)
        print(f"{folder}: {FLAGS.updates} updates in {seconds:.1f} s")

    def initial_state(self, seed: int, weights: dict) -> object:
        """The state before the first update, with `--batch` streams."""
        from prednet_jax.training import loop, truncated

        params = loop.prepare_params(weights, self.dtype, self.noise, seed)
        return truncated.initial_train_state(
            self.config, params, self.optimizer, batch=FLAGS.batch
        )

    def manifest(self, seed: int, sources: list, schedule: object, weights: dict):
        """What a run's manifest says before it starts."""
        from prednet_jax import data, noise, records

        orders = [data.order_fingerprint(source, schedule) for source in sources]
        return common.manifest(self.config, self.dtype) | {
            "model": FLAGS.model,
            "seed": seed,
            "data": sources[0].name,
            "updates": FLAGS.updates,
            "noise": noise.format(noise.parse(FLAGS.noise), defaults=True),
            "initial_params_sha256": records.fingerprint(weights),
            "data_order_sha256": common.joined(orders),
        }

    def open_folder(self, folder: Path, manifest: dict, state: object) -> tuple:
        """Makes a run's directory; the updates done there, and the state after them."""
        from prednet_jax import records
        from prednet_jax.training import checkpoints

        folder.mkdir(parents=True, exist_ok=True)
        done = 0
        if FLAGS.resume:
            saved = checkpoints.updates(folder)
            if not saved:
                raise ValueError(
                    f"--resume: no checkpoint in {folder}; expected a run with "
                    "--checkpoint_every"
                )
            old = records.read_json(folder / records.MANIFEST)
            # Manifests of before had no noise.
            old.setdefault("noise", manifest["noise"])
            for field in ("initial_params_sha256", "data_order_sha256", "noise"):
                if old.get(field) != manifest[field]:
                    raise ValueError(
                        f"--resume: {field} {manifest[field]}; expected the "
                        f"{old.get(field)} of {folder}"
                    )
            done = saved[-1]
            state = checkpoints.restore(folder, done, state)
        else:
            checkpoints.clear(folder)
        records.write_json(folder / records.MANIFEST, manifest)
        return done, state

    def finish(
        self,
        folder: Path,
        manifest: dict,
        params: dict,
        source: object,
        seconds: float,
        parallelism: float,
    ) -> None:
        """Writes examples, and the manifest with what is known at the end."""
        from prednet_jax import records

        if FLAGS.examples:
            common.save_examples(folder, self.config, params, source, FLAGS.examples)
        end = {
            "final_params_sha256": records.fingerprint(params),
            "wall_seconds": seconds,
            "processor_seconds_per_second": parallelism,
        }
        records.write_json(folder / records.MANIFEST, manifest | end)


if __name__ == "__main__":
    common.run(main)
