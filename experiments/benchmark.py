"""Measures the speed of training, and what noise costs.

    python experiments/benchmark.py
    python experiments/benchmark.py --height=120 --width=160 --channels=3,48,96,192
    python experiments/benchmark.py --suite=foreign --noise=reduction_order

The suite `step` times one training window of a network: seconds (median), frames per
second, and the time to compile. The suite `foreign` times a transformer, a residual CNN
and an MLP with noise and without, under XLA's default flags. The last line is one JSON
object. Ratios within one run are similar on other machines; seconds are not.
"""

import importlib
import inspect
import json
import sys
from pathlib import Path

import _cli
import _flags
from absl import flags

from prednet_jax import process
from prednet_jax.errors import UserError

FLAGS = flags.FLAGS
# By default every suite takes minutes; flags select the published size.
_flags.define_model_flags(channels="3,12,24,48", height=48, width=64)
_flags.define_precision_flag()
flags.DEFINE_enum("suite", "step", ["step", "foreign"], "What to measure.")
_MOST = 1_000_000
flags.DEFINE_integer("window", 10, "Frames per window.", 2, _MOST)
flags.DEFINE_integer("batch", 1, "Number of sequences trained together.", 1, _MOST)
flags.DEFINE_integer(
    "repeats", 5, "Timed windows, after two warm-up windows.", 1, _MOST
)
flags.DEFINE_string("noise", "none", "Noise spec of the suites `step` and `foreign`.")
flags.DEFINE_bool(
    "rematerialize", False, "Compute frames again in the backward pass, for memory."
)
flags.DEFINE_integer("threads", 0, "Number of processors to use, enforced; 0: all.")
flags.DEFINE_string("torch_python", None, "A Python with PyTorch: `step` times it too.")
flags.DEFINE_list(
    "networks", ["transformer", "cnn", "mlp"], "Networks of the suite `foreign`."
)
flags.DEFINE_bool("tuned", False, "Run `foreign` under the XLA flags of other scripts.")


def main() -> None:
    """Checks the flags, measures, and prints the results."""
    # The others measure what all other programs see: XLA's default flags.
    if FLAGS.suite == "step" or FLAGS.tuned:
        process.prepare(threads=FLAGS.threads)
    elif FLAGS.threads:
        process.limit_threads(FLAGS.threads)
    if FLAGS.model != "prednet":
        raise UserError(f"--model={FLAGS.model}: expected prednet")
    # `benchmarks/` is not an installed package.
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    run = getattr(importlib.import_module("benchmarks.speed"), FLAGS.suite)
    values = _cli.chosen_flags() | {"config": _flags.prednet_config()}
    taken = inspect.signature(run).parameters
    known = {*taken, *(_flags.PREDNET if "config" in taken else ())}
    of_some = (
        *("batch", "networks", "noise", "precision", "rematerialize"),
        *("torch_python", "window"),
    )
    for name in (*of_some, *_flags.PREDNET):
        if FLAGS[name].present and name not in known:
            raise UserError(
                f"--{name} has no effect with --suite={FLAGS.suite}; remove it"
            )
    print(json.dumps(run(**{name: values[name] for name in taken})), flush=True)


if __name__ == "__main__":
    _cli.run(main)
