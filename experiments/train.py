"""Trains PredNet or the autoencoder on one stream of frames.

    python experiments/train.py --workdir=runs/first --updates=50

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
flags.DEFINE_bool("progress", sys.stderr.isatty(), "Show a progress bar on stderr.")


def main(argv: list[str]) -> None:
    """Checks every flag, then trains seed by seed."""
    del argv
    if FLAGS.threads:
        from prednet_jax import backends

        backends.limit_threads(FLAGS.threads)
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
        schedule = loop.frame_schedule(
            self.config, source, window=FLAGS.window, updates=FLAGS.updates
        )
        weights = self.weights
        if weights is None:
            weights = loop.initial_params(self.config, seed)
        return source, schedule, weights

    def run(
        self, seed: int, source: object, schedule: object, weights: dict, folder: Path
    ) -> None:
        """Trains one seed and writes its records."""
        from prednet_jax import data, records
        from prednet_jax.training import checkpoints, loop, truncated

        params = loop.prepare_params(weights, self.dtype, self.noise, seed)
        state = truncated.initial_train_state(self.config, params, self.optimizer)
        manifest = common.manifest(self.config) | {
            "model": FLAGS.model,
            "seed": seed,
            "data": source.name,
            "updates": FLAGS.updates,
            "initial_params_sha256": records.fingerprint(weights),
            "data_order_sha256": data.order_fingerprint(source, schedule),
        }
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
            for field in ("initial_params_sha256", "data_order_sha256"):
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
        writer = records.MetricsWriter(folder, keep=done)
        name = f"{FLAGS.model} seed {seed}"
        bar = common.progress(name, FLAGS.updates, done, FLAGS.progress)
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            steps = loop.train(self.update, state, source, schedule, seed=seed)
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
        manifest |= {
            "final_params_sha256": records.fingerprint(state.params),
            "wall_seconds": seconds,
            "processor_seconds_per_second": (time.process_time() - cpu) / seconds,
        }
        if FLAGS.examples:
            common.save_examples(
                folder, self.config, state.params, source, FLAGS.examples
            )
        records.write_json(folder / records.MANIFEST, manifest)
        print(f"{folder}: {FLAGS.updates} updates in {seconds:.1f} s")


if __name__ == "__main__":
    common.run(main)
