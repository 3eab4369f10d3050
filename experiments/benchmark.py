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
foreign   noise on a transformer, a residual CNN and an MLP, under XLA's default flags
tools     what the tools of noise cost on the same three, likewise
accuracy  how often these tools are right: no times; a quarter of an hour
all       step, conv and noise at sizes that take a few minutes

Ratios within one run are similar on other machines; seconds are not.
"""

import importlib
import json
import sys
from pathlib import Path

import _cli
import _flags
from absl import flags

from prednet_jax import device, process
from prednet_jax.errors import UserError, whole

FLAGS = flags.FLAGS
SUITES = (
    "step", "conv", "noise", "replicas", "backends", "cases", "foreign", "tools",
    "accuracy", "all",
)  # fmt: skip
# By default every suite takes minutes; flags select the published size.
_flags.define_model_flags(channels="3,12,24,48", height=48, width=64)
flags.adopt_module_key_flags(_flags)
flags.DEFINE_enum("suite", "all", SUITES, "What to measure.")
flags.DEFINE_integer("window", 10, "Frames per window.")
flags.DEFINE_integer("batch", 1, "Number of sequences trained together.")
flags.DEFINE_integer("repeats", 5, "Timed windows, after two warm-up windows.")
flags.DEFINE_string(
    "noise", "none", "Noise spec of the suites `step`, `replicas` and `foreign`."
)
flags.DEFINE_enum(
    "precision", "float32", ["float32", "float64"], "Precision of weights and frames."
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
flags.DEFINE_bool(
    "searches",
    False,
    "Suite `tools`: localize, effects and decisions instead.",
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
    "Where `backends` writes backends.json; report.py shows them on "
    "the page of a comparison in the same directory.",
)


def main(argv: list[str]) -> None:
    """Checks, measures, prints."""
    del argv
    # These measure what all other programs see: XLA's default flags.
    if FLAGS.suite not in ("foreign", "tools", "accuracy") or FLAGS.tuned:
        process.prepare(threads=FLAGS.threads, cache=FLAGS.cache)
    elif FLAGS.threads:
        process.limit_threads(FLAGS.threads)
    for name, low in (("window", 2), ("batch", 1), ("repeats", 1)):
        whole(f"--{name}", getattr(FLAGS, name), low)
    for name in ("batches", "replica_counts"):
        _counts(name)
    if FLAGS.model != "prednet":
        raise UserError(f"--model={FLAGS.model}: expected prednet")
    if FLAGS.suite == "replicas":
        process.split_cpu(device.available_threads())
    if FLAGS.suite != "all":
        print(json.dumps(_measure(FLAGS.suite)))
        return
    for suite in ("step", "conv", "noise"):
        print(f"== {suite}", flush=True)
        print(json.dumps(_measure(suite)), flush=True)


def _measure(suite: str) -> dict:
    """Runs a suite of `benchmarks/`, which is not an installed package."""
    config = _flags.task().config
    positional: dict[str, tuple] = {
        "replicas": (_counts("replica_counts"),),
        "cases": (_counts("batches"),),
        "backends": (_command(config), Path(FLAGS.workdir), _cli.provenance()),
    }
    named = {
        "step": "window batch repeats noise precision inference profile",
        "conv": "repeats",
        "noise": "window repeats",
        "replicas": "window repeats noise precision profile",
        "cases": "window repeats precision profile",
        "backends": "window precision profile",
        "foreign": "networks noise repeats",
        "tools": "networks repeats searches",
        "accuracy": "",
    }
    root = str(Path(__file__).resolve().parent.parent)
    if root not in sys.path:
        sys.path.append(root)
    module = importlib.import_module(f"benchmarks.{suite}")
    return module.run(
        config,
        *positional.get(suite, ()),
        **{name: getattr(FLAGS, name) for name in named[suite].split()},
    )


def _counts(name: str) -> tuple[int, ...]:
    """The value of a flag that lists whole numbers of at least 1.

    Raises:
        UserError: the list is empty or has another value.
    """
    found = _flags.integers(name)
    if not found or min(found) < 1:
        raise UserError(
            f"--{name}={','.join(map(str, found))}: expected whole numbers of at least "
            "1, such as 1,4"
        )
    return found


def _command(config) -> list[str]:
    """The command that starts this script again with the same network and repeats."""
    return [
        sys.executable,
        str(Path(__file__)),
        f"--height={config.height}",
        f"--width={config.width}",
        f"--{'' if FLAGS.cache else 'no'}cache",
        *(f"--{n}={','.join(getattr(FLAGS, n))}" for n in _LISTS),
        *(f"--{n}={getattr(FLAGS, n)}" for n in _VALUES),
    ]


_LISTS = ("channels", "batches", "replica_counts")
_VALUES = ("variant", "convolution", "window", "repeats", "precision")


if __name__ == "__main__":
    _cli.run(main)
