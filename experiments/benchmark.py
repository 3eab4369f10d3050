"""Benchmarks. The last line of each suite is one JSON object.

    python experiments/benchmark.py --suite=step --height=120 --width=160

step      one training window: seconds (median), frames a second, compile time
conv      each algorithm on each convolution of the network, against the machine's GEMM
noise     the noisy step against the clean one, paired in one run
replicas  seconds per seed and update against the number of replicas
backends  latency and throughput against batch size, training and inference, threads,
          frames on the device or fed from the host, replicas, energy; a process each
cases     what one process of `backends` measures
foreign   noise on a transformer, a residual CNN and an MLP, under XLA's default flags
all       step, conv and noise at sizes that take a few minutes

Ratios within one run carry over between machines; seconds do not.
"""

import json
from pathlib import Path

import _cli
import _flags
from absl import flags

FLAGS = flags.FLAGS
SUITES = ("step", "conv", "noise", "replicas", "backends", "cases", "foreign", "all")
# Small enough that every suite ends in minutes; the published size is a flag away.
_flags.define_model_flags(channels="3,12,24,48", height=48, width=64)
flags.adopt_module_key_flags(_flags)
flags.DEFINE_enum("suite", "all", SUITES, "What to measure.")
flags.DEFINE_integer("window", 10, "Frames a window.")
flags.DEFINE_integer("batch", 1, "Sequences trained together.")
flags.DEFINE_integer("repeats", 5, "Timed windows after two that are not counted.")
flags.DEFINE_string("noise", "none", "Noise spec of the suite `step`.")
flags.DEFINE_enum("precision", "float32", ["float32", "float64"], "Of everything.")
flags.DEFINE_integer("threads", 0, "Processors to use, enforced; 0: all.")
flags.DEFINE_list("networks", ["transformer", "cnn", "mlp"], "Of the suite `foreign`.")
flags.DEFINE_bool(
    "tuned", False, "Suite `foreign`: under the XLA flags that PredNet's scripts set."
)
flags.DEFINE_bool("inference", False, "Suite `step`: predict only, no training.")
flags.DEFINE_bool("cache", False, "Use the persistent compilation cache.")
flags.DEFINE_string(
    "profile",
    None,
    "Directory for a trace of a few updates, for TensorBoard, XProf or Perfetto.",
)
flags.DEFINE_list("batches", ["1", "4", "16"], "Batch sizes of `backends`.")
flags.DEFINE_list("replica_counts", ["1", "2", "8"], "Numbers of replicas.")
flags.DEFINE_string(
    "workdir",
    "results/compare",
    "Where `backends` writes backends.json and backends.png; report.py shows those "
    "beside a verdict.",
)


def main(argv: list[str]) -> None:
    """Checks, measures, prints."""
    del argv
    from prednet_jax import device, process
    from prednet_jax.errors import UserError

    # The suite `foreign` measures what all other programs see: XLA's default flags.
    if FLAGS.suite != "foreign" or FLAGS.tuned:
        process.prepare(threads=FLAGS.threads, cache=FLAGS.cache)
    elif FLAGS.threads:
        process.limit_threads(FLAGS.threads)
    _flags.check_numbers(2, "window")
    _flags.check_numbers(1, "batch", "repeats")
    for name in ("batches", "replica_counts"):
        _counts(name)
    if FLAGS.model != "prednet":
        raise UserError(f"--model={FLAGS.model}: expected prednet")
    if FLAGS.suite == "replicas":
        process.split_cpu(device.available_threads())
    suites = {
        "step": step,
        "conv": conv,
        "noise": noise,
        "replicas": replicas,
        "backends": sweep,
        "cases": cases,
        "foreign": foreign,
    }
    if FLAGS.suite != "all":
        print(json.dumps(suites[FLAGS.suite]()))
        return
    for name in ("step", "conv", "noise"):
        print(f"== {name}", flush=True)
        print(json.dumps(suites[name]()), flush=True)


def _counts(name: str) -> tuple[int, ...]:
    """A flag of whole numbers, each at least 1.

    Raises:
        ValueError: it holds none, or another.
    """
    found = _flags.integers(name)
    if not found or min(found) < 1:
        from prednet_jax.errors import UserError

        raise UserError(
            f"--{name}={','.join(map(str, found))}: expected whole numbers of at least "
            "1, such as 1,4"
        )
    return found


def step() -> dict:
    """One window."""
    import bench_step

    return bench_step.run()


def conv() -> dict:
    """Every algorithm on every convolution."""
    import bench_conv

    return bench_conv.run(_flags.prednet_config(), repeats=FLAGS.repeats)


def noise() -> dict:
    """Noisy steps against the clean one."""
    import bench_noise

    return bench_noise.run(
        _flags.prednet_config(), window=FLAGS.window, repeats=FLAGS.repeats
    )


def replicas() -> dict:
    """Step time against the number of replicas."""
    import bench_replicas

    return bench_replicas.run(
        _flags.prednet_config(),
        _counts("replica_counts"),
        window=FLAGS.window,
        repeats=FLAGS.repeats,
        noise=FLAGS.noise,
        precision=FLAGS.precision,
        profile=FLAGS.profile,
    )


def cases() -> dict:
    """One process of the suite `backends`."""
    import bench_cases

    return bench_cases.run(
        _flags.prednet_config(),
        _counts("batches"),
        window=FLAGS.window,
        repeats=FLAGS.repeats,
        precision=FLAGS.precision,
        profile=FLAGS.profile,
    )


def foreign() -> dict:
    """Noisy training steps of other networks.

    Raises:
        ValueError: a network or a noise is unknown.
    """
    import bench_foreign

    unknown = sorted(set(FLAGS.networks) - set(bench_foreign.NAMES))
    if unknown or not FLAGS.networks:
        raise ValueError(
            f"--networks={','.join(FLAGS.networks)}: expected some of "
            f"{', '.join(bench_foreign.NAMES)}"
        )
    specs = bench_foreign.SPECS if FLAGS.noise == "none" else (FLAGS.noise,)
    return bench_foreign.run(tuple(FLAGS.networks), specs, repeats=FLAGS.repeats)


def sweep() -> dict:
    """Latency, throughput, replicas and energy; a process for each thread count."""
    import bench_backends

    return bench_backends.run(Path(__file__), Path(FLAGS.workdir))


if __name__ == "__main__":
    _cli.run(main)
