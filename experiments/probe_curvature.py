"""Measures the curvature of the loss along a training: would noise help at a saddle?

    python experiments/probe_curvature.py

trains a small PredNet and a small autoencoder on embedded data and stops at some
updates.

    python experiments/probe_curvature.py --run=runs/first

uses the checkpoints of a run of train.py instead. At each stop it measures, for the
loss without noise on a fixed probe set: the norm of the gradient; the lowest and
highest eigenvalue of the Hessian H and of P^-1/2 H P^-1/2 (P is the scale by which Adam
divides), with residuals; the projection of the optimiser's last step on the direction
of lowest curvature; and how many updates noise would save there.

Writes probe_curvature.json to --workdir. The results have two
limits. Negative curvature can be proved, but its absence cannot. And the saving holds
only if P and the local quadratic do not change during the escape.
"""

import itertools
import textwrap
from pathlib import Path

import _cli
import _flags
from absl import flags

from prednet_jax import errors, process, records, tasks
from prednet_jax.errors import UserError
from prednet_jax.studies import curvature_probe

FLAGS = flags.FLAGS
flags.DEFINE_string("run", None, "Directory of a train.py run with checkpoints.")
flags.DEFINE_list("models", list(tasks.NAMED), "Networks to train without --run.")
flags.DEFINE_list(
    "updates",
    None,
    "Updates to stop at. Default: 1,10,50,250; all saved ones of --run.",
)
flags.DEFINE_list("channels", ["3", "6"], "Widths of PredNet, without --run.")
flags.DEFINE_integer("height", 12, "Rows of PredNet's frames, without --run.")
flags.DEFINE_integer("width", 16, "Columns of PredNet's frames, without --run.")
flags.DEFINE_integer("window", 6, "Transitions an update, without --run.")
flags.DEFINE_list("hidden", ["32", "8", "32"], "Autoencoder's widths, without --run.")
flags.DEFINE_integer("seed", 0, "Root seed of weights, data and probes, without --run.")
flags.DEFINE_enum(
    "precision",
    None,
    ["float32", "float64"],
    "Default: float32, or with --run that of the run.",
)
flags.DEFINE_integer("windows", 4, "Windows in the probe set of a PredNet.")
flags.DEFINE_integer("images", 32, "Images in the probe set of an autoencoder.")
flags.DEFINE_integer("steps", 40, "Lanczos steps of the first round.")
flags.DEFINE_integer(
    "max_steps",
    None,
    "The steps are doubled up to this number while a value still moves by 5 %. "
    "Default: twice --steps.",
)
flags.DEFINE_integer("starts", 2, "Number of random start vectors per round.")
flags.DEFINE_float(
    "noise",
    2.7e-7,
    "Relative gradient noise whose effect is predicted. For random summation order in "
    "float32 it was measured as 5e-8 (PredNet) to 4e-7 (autoencoder).",
)
flags.DEFINE_string("workdir", "results/probe_curvature", "Where to write.")


def main(argv: list[str]) -> None:
    """Checks the flags, measures every training, writes table and JSON."""
    del argv
    process.prepare(cache=True)
    updates = check_flags()
    options = {
        "noise": FLAGS.noise,
        "steps": FLAGS.steps,
        "max_steps": FLAGS.max_steps or 2 * FLAGS.steps,
        "starts": FLAGS.starts,
    }
    rows = []
    found = trainings(updates, options)
    print(curvature_probe.HEADER)
    for row in itertools.chain.from_iterable(found):
        rows.append(row)
        print(curvature_probe.line(row), flush=True)
    write(rows, Path(FLAGS.workdir))


def check_flags() -> tuple[int, ...] | None:
    """Checks all flags; returns the updates of --updates, or None."""
    _flags.check_numbers(1, "windows", "images", "steps", "starts")
    if FLAGS.max_steps is not None and FLAGS.max_steps < FLAGS.steps:
        raise UserError(
            f"--max_steps={FLAGS.max_steps}: expected at least --steps={FLAGS.steps}"
        )
    errors.positive("--noise", FLAGS.noise)
    updates = _flags.integers("updates")
    if FLAGS.updates is not None and (not updates or min(updates) < 1):
        raise UserError(
            f"--updates={','.join(FLAGS.updates)}: expected numbers from 1, "
            "such as 1,10,50"
        )
    return updates or None


def trainings(updates: tuple[int, ...] | None, options: dict) -> list:
    """The trainings whose curvature is measured."""
    if FLAGS.run:
        return [
            curvature_probe.saved(
                Path(FLAGS.run),
                updates=updates,
                windows=FLAGS.windows,
                images=FLAGS.images,
                precision=FLAGS.precision,
                **options,
            )
        ]
    found = list(map(_flags.small_task, FLAGS.models))
    return [
        curvature_probe.fresh(
            task,
            updates=tuple(sorted(set(updates or (1, 10, 50, 250)))),
            window=FLAGS.window,
            samples=FLAGS.windows if task.windowed else FLAGS.images,
            seed=FLAGS.seed,
            precision=FLAGS.precision or "float32",
            **options,
        )
        for task in found
    ]


def write(rows: list[dict], folder: Path) -> None:
    """Prints the legend and the findings; writes JSON."""
    findings = curvature_probe.findings(rows, FLAGS.noise)
    print(curvature_probe.LEGEND.format(noise=FLAGS.noise), "\n\nFindings", sep="")
    for finding in findings:
        print(textwrap.fill(finding, 100, initial_indent="- ", subsequent_indent="  "))
    folder.mkdir(parents=True, exist_ok=True)
    records.write_json(
        folder / "probe_curvature.json",
        {"rows": rows, "findings": findings, **_cli.provenance()},
    )
    print(folder / "probe_curvature.json")


if __name__ == "__main__":
    _cli.run(main)
