"""Measures the curvature of the loss along a training: would noise help at a saddle?

    python experiments/probe_curvature.py
    python experiments/probe_curvature.py --models=prednet --updates=1,100
    python experiments/probe_curvature.py --precision=float64 --steps=80

Trains a small PredNet and a small autoencoder on embedded data and stops at some
updates. At each stop it measures, for the loss without noise on a fixed probe set, the
lowest and highest eigenvalue of the Hessian H (raw) and of P^-1/2 H P^-1/2 (Adam; P is
the scale by which it divides). Negative curvature can be proved, but its absence
cannot. The last column is the relative noise of the gradient that would save one update
there, if P and the local quadratic did not change. probe_curvature.json in --workdir
also has residuals and the projections of Adam's last step.

Without flags it takes 70 seconds of one core.
"""

from pathlib import Path

import _cli
import _flags
import pandas as pd
from absl import flags

from prednet_jax import errors, process, tasks
from prednet_jax.report import tables
from prednet_jax.saddles import curvature_probe

FLAGS = flags.FLAGS
flags.DEFINE_list("models", list(tasks.NAMED), "Networks to train.")
flags.DEFINE_list("updates", ["1", "10", "50", "250"], "Updates to stop at.")
flags.DEFINE_list("channels", ["3", "6"], "Widths of PredNet.")
flags.DEFINE_integer("height", 12, "Rows of PredNet's frames.")
flags.DEFINE_integer("width", 16, "Columns of PredNet's frames.")
flags.DEFINE_integer("window", 6, "Transitions per update.")
flags.DEFINE_list("hidden", ["32", "8", "32"], "Autoencoder's widths.")
flags.DEFINE_integer("seed", 0, "Root seed of weights, data and probes.")
_flags.define_precision_flag()
flags.DEFINE_integer("windows", 4, "Windows in the probe set of a PredNet.", 1)
flags.DEFINE_integer("images", 32, "Images in the probe set of an autoencoder.", 1)
flags.DEFINE_integer(
    "steps", 40, "Lanczos steps; twice as many where a value still moves by 5 %.", 1
)
flags.DEFINE_integer("starts", 2, "Number of random start vectors.", 1)
flags.DEFINE_float(
    "noise",
    2.7e-7,
    "Relative gradient noise whose effect is predicted. For random summation order in "
    "float32 it was measured as 5e-8 (PredNet) to 4e-7 (autoencoder).",
)
flags.DEFINE_string("workdir", "results/probe_curvature", "Directory to write.")


def main() -> None:
    """Checks the flags, measures every training, writes table and JSON."""
    process.prepare(cache=True)
    errors.positive("--noise", FLAGS.noise)
    updates = tuple(sorted(set(_flags.integers("updates"))))
    if not updates or updates[0] < 1 or updates[-1] >= 2**31:
        raise errors.UserError(
            f"--updates={','.join(FLAGS.updates)}: expected numbers from 1 to "
            "2147483647, such as 1,10,50"
        )
    errors.each_once("--models", FLAGS.models)
    rows = []
    for task in list(map(_flags.small_task, FLAGS.models)):
        for row in curvature_probe.fresh(
            task,
            updates=updates,
            window=FLAGS.window,
            samples=FLAGS.windows if task.windowed else FLAGS.images,
            seed=FLAGS.seed,
            precision=FLAGS.precision,
            noise=FLAGS.noise,
            steps=FLAGS.steps,
            starts=FLAGS.starts,
        ):
            rows.append(row)
            print(f"measured: {task.name}, update {row['update']}", flush=True)
    cells = tables.rows(pd.json_normalize(rows), curvature_probe.COLUMNS)
    print(tables.columns(cells, right=range(1, len(curvature_probe.COLUMNS))))
    print("Negative curvature that was not found proves nothing.")
    path = Path(FLAGS.workdir) / "probe_curvature.json"
    _cli.write(path, {"rows": rows})
    print(path)


if __name__ == "__main__":
    _cli.run(main)
