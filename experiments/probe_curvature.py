"""Probes the curvature of the loss along training: are there saddles, would noise help?

    python experiments/probe_curvature.py

trains a small PredNet and a small autoencoder on embedded data and stops at some
updates; or, at the checkpoints of a run of train.py,

    python experiments/probe_curvature.py --run=runs/first

At each stop, on the clean loss of a fixed probe set: the norm of the gradient, the
lowest and highest eigenvalue of the Hessian H and of P^-1/2 H P^-1/2 (P: the scale by
which Adam divides) with residuals, the projection of the optimiser's last step on the
direction of lowest curvature, and how many updates noise would save there.

Writes probe_curvature.json and probe_curvature.png to --workdir. Read the table with
two limits in mind: negative curvature can be proved, its absence cannot; and the saving
assumes that P and the local quadratic stay as they are during the escape.
"""

import math
import textwrap
from pathlib import Path

import common
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_string("run", None, "Directory of a train.py run with checkpoints.")
flags.DEFINE_list("models", list(common.MODELS), "Networks to train without --run.")
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
    "precision", None, ["float32", "float64"], "Default: float32; --run: the run's own."
)
flags.DEFINE_integer("windows", 4, "Windows in the probe set of a PredNet.")
flags.DEFINE_integer("images", 32, "Images in the probe set of an autoencoder.")
flags.DEFINE_integer("steps", 40, "Lanczos steps of the first round.")
flags.DEFINE_integer(
    "max_steps",
    None,
    "Steps double up to this while a value still moves by 5 %. Default: twice --steps.",
)
flags.DEFINE_integer("starts", 2, "Random start vectors a round.")
flags.DEFINE_float(
    "noise",
    2.7e-7,
    "Relative gradient noise whose saving is predicted; default: random summation "
    "order in float32, as measured.",
)
flags.DEFINE_string("workdir", "results/probe_curvature", "Where to write.")


def main(argv: list[str]) -> None:
    """Checks the flags, probes every subject, writes table, JSON and figure."""
    del argv
    updates = check_flags()
    from prednet_jax.study import probe_tables

    common.use_compilation_cache()
    options = {
        "noise": FLAGS.noise,
        "steps": FLAGS.steps,
        "max_steps": FLAGS.max_steps or 2 * FLAGS.steps,
        "starts": FLAGS.starts,
    }
    rows = []
    found = subjects(updates)
    print(probe_tables.HEADER)
    for subject in found:
        for row in subject.rows(**options):
            rows.append(row)
            print(probe_tables.line(row), flush=True)
    write(rows, Path(FLAGS.workdir))


def check_flags() -> tuple[int, ...] | None:
    """The updates asked for; anything that cannot be is refused before it runs."""
    for name in ("windows", "images", "steps", "starts"):
        if getattr(FLAGS, name) < 1:
            raise ValueError(f"--{name}={getattr(FLAGS, name)}: expected at least 1")
    if FLAGS.max_steps is not None and FLAGS.max_steps < FLAGS.steps:
        raise ValueError(
            f"--max_steps={FLAGS.max_steps}: expected at least --steps={FLAGS.steps}"
        )
    if not 0.0 < FLAGS.noise < math.inf:
        raise ValueError(f"--noise={FLAGS.noise}: expected a positive number")
    unknown = [m for m in FLAGS.models if m not in common.MODELS]
    if unknown or not FLAGS.models:
        raise ValueError(
            f"--models={','.join(FLAGS.models)}: expected some of "
            f"{', '.join(common.MODELS)}"
        )
    updates = common.integers("updates", FLAGS.updates)
    if updates is not None and (not updates or min(updates) < 1):
        raise ValueError(
            f"--updates={','.join(FLAGS.updates)}: expected numbers from 1, "
            "such as 1,10,50"
        )
    return updates


def subjects(updates: tuple[int, ...] | None) -> list:
    """The trainings to be probed."""
    from prednet_jax.config import AutoencoderConfig
    from prednet_jax.study import probe

    if FLAGS.run:
        return [
            probe.saved(
                Path(FLAGS.run),
                updates=updates,
                windows=FLAGS.windows,
                images=FLAGS.images,
                precision=FLAGS.precision,
            )
        ]
    networks = {
        "prednet": lambda: probe.small_prednet(
            common.integers("channels", FLAGS.channels) or (),
            FLAGS.height,
            FLAGS.width,
        ),
        "autoencoder": lambda: AutoencoderConfig(
            hidden=common.integers("hidden", FLAGS.hidden) or ()
        ),
    }
    samples = {"prednet": FLAGS.windows, "autoencoder": FLAGS.images}
    return [
        probe.fresh(
            networks[model](),
            updates=tuple(sorted(set(updates or (1, 10, 50, 250)))),
            window=FLAGS.window,
            samples=samples[model],
            seed=FLAGS.seed,
            precision=FLAGS.precision or "float32",
        )
        for model in FLAGS.models
    ]


def write(rows: list[dict], folder: Path) -> None:
    """Legend, findings, JSON and figure, each file whole or not at all."""
    from prednet_jax import records
    from prednet_jax.study import probe_tables

    findings = probe_tables.findings(rows, FLAGS.noise)
    print(probe_tables.legend(FLAGS.noise), "\n\nFindings", sep="")
    for finding in findings:
        print(textwrap.fill(finding, 100, initial_indent="- ", subsequent_indent="  "))
    folder.mkdir(parents=True, exist_ok=True)
    records.write_json(
        folder / "probe_curvature.json",
        {
            "rows": rows,
            "findings": findings,
            "flags": {
                flag.name: flag.value
                for flag in FLAGS.get_key_flags_for_module("__main__")
            },
            "versions": records.versions(),
            "git_commit": records.git_commit(Path(__file__).parent),
        },
    )
    figure = probe_tables.figure(rows, FLAGS.noise)
    records.write_bytes(folder / "probe_curvature.png", figure)
    print(f"{folder / 'probe_curvature.json'}  {folder / 'probe_curvature.png'}")


if __name__ == "__main__":
    common.run(main)
