"""Benchmarks. The last line of each suite is one JSON object.

    python experiments/benchmark.py --suite=step --height=120 --width=160

step      one training window: seconds (median), frames per second, compile time
conv      each algorithm on each convolution of the network, against the machine's GEMM
noise     the noisy step against the clean step, in one run
replicas  seconds per seed and update, by the number of replicas
backends  latency and throughput of training and inference by batch size and threads,
          with frames on the device or fed from the host; and replicas. One process
          per number of threads
cases     what one process of `backends` measures
pytorch   the step of a PyTorch network (--torch_python) and ours, in turns
foreign   noise on a transformer, a residual CNN and an MLP, under XLA's default flags
tools     what the tools of noise cost on the same three, likewise
accuracy  how often these tools are right: no times; a quarter of an hour
all       step, conv and noise at sizes that take a few minutes

Ratios within one run are similar on other machines; seconds are not.
"""

import importlib
import inspect
import json
import sys
from pathlib import Path

import _cli
import _flags
from absl import flags

from prednet_jax import device, process
from prednet_jax.errors import UserError

FLAGS = flags.FLAGS
# Functions of these names, by the module of `benchmarks/` that has them.
SUITES = {
    "step": "speed", "conv": "conv", "noise": "cost", "replicas": "speed",
    "backends": "speed", "cases": "speed", "pytorch": "speed", "foreign": "cost",
    "tools": "cost", "accuracy": "accuracy",
}  # fmt: skip
# These measure what all other programs see: XLA's default flags.
DEFAULT_FLAGS = ("foreign", "tools", "accuracy")
# By default every suite takes minutes; flags select the published size.
_flags.define_model_flags(channels="3,12,24,48", height=48, width=64)
_flags.define_precision_flag()
flags.adopt_module_key_flags(_flags)
flags.DEFINE_enum("suite", "all", [*SUITES, "all"], "What to measure.")
flags.DEFINE_integer("window", 10, "Frames per window.")
flags.DEFINE_integer("batch", 1, "Number of sequences trained together.")
flags.DEFINE_integer("repeats", 5, "Timed windows, after two warm-up windows.")
flags.DEFINE_string(
    "noise", "none", "Noise spec of the suites `step`, `replicas` and `foreign`."
)
flags.DEFINE_integer("threads", 0, "Number of processors to use, enforced; 0: all.")
flags.DEFINE_list(
    "networks",
    ["transformer", "cnn", "mlp"],
    "Networks of the suites `foreign` and `tools`.",
)
flags.DEFINE_bool(
    "tuned",
    False,
    "Run the suites `foreign` and `tools` under the XLA flags that all other scripts "
    "set.",
)
flags.DEFINE_bool("searches", False, "Suite `tools`: localize and decisions instead.")
flags.DEFINE_bool("cache", False, "Use the persistent compilation cache.")
flags.DEFINE_list("batches", ["1", "4", "16"], "Batch sizes of `backends`.")
flags.DEFINE_list("replica_counts", ["1", "2", "8"], "Numbers of replicas.")
flags.DEFINE_string("torch_python", None, "A Python with PyTorch, for `pytorch`.")
flags.DEFINE_integer("rounds", 3, "Processes of each library in `pytorch`.")
flags.DEFINE_string(
    "workdir",
    "results/compare",
    "Where `backends` writes backends.json, which report.py shows on the page of a "
    "comparison in the same directory.",
)


def main(argv: list[str]) -> None:
    """Checks, measures, prints."""
    del argv
    if FLAGS.suite not in DEFAULT_FLAGS or FLAGS.tuned:
        process.prepare(threads=FLAGS.threads, cache=FLAGS.cache)
    elif FLAGS.threads:
        process.limit_threads(FLAGS.threads)
    _flags.check_numbers(2, "window")
    _flags.check_numbers(1, "batch", "repeats", "rounds")
    if FLAGS.model != "prednet":
        raise UserError(f"--model={FLAGS.model}: expected prednet")
    values = {name: FLAGS[name].value for name in _cli.chosen_flags()} | {
        "config": _flags.prednet_config(),
        "batches": _counts("batches"),
        "replica_counts": _counts("replica_counts"),
        "command": _command,
        "provenance": _cli.provenance(),
        "workdir": Path(FLAGS.workdir),
    }
    if FLAGS.suite == "replicas":
        process.split_cpu(device.available_threads())
    # `benchmarks/` is not an installed package.
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    suites = ("step", "conv", "noise") if FLAGS.suite == "all" else (FLAGS.suite,)
    for suite in suites:
        print(f"== {suite}", flush=True)
        module = importlib.import_module(f"benchmarks.{SUITES[suite]}")
        run = getattr(module, suite)
        taken = inspect.signature(run).parameters
        print(json.dumps(run(**{name: values[name] for name in taken})), flush=True)


def _counts(name: str) -> tuple[int, ...]:
    """The value of a flag that lists whole numbers of at least 1."""
    found = _flags.integers(name)
    if not found or min(found) < 1:
        raise UserError(
            f"--{name}={','.join(map(str, found))}: expected whole numbers of at least "
            "1, such as 1,4"
        )
    return found


def _command(suite: str, threads: int) -> list[str]:
    """The command that measures a suite with the flags of this one."""
    given = _cli.given(without=("suite", "threads", "workdir"))
    chosen = [f"--suite={suite}", f"--threads={threads}"]
    return [sys.executable, str(Path(__file__)), *given, *chosen]


if __name__ == "__main__":
    _cli.run(main)
