"""Trains every arm on the same weights and data, and ends in a verdict.

    python experiments/compare_backends.py --workdir=results/compare

Each arm is a process of its own (`experiments/train.py`). The margin of equivalence is
a fraction of the control's loss, fixed beforehand. Writes verdict.json, report.html and
one directory per run, in place of what an earlier comparison left. What an interrupted
comparison finished is kept: runs of the same flags, source, versions and device.
"""

import contextlib
import shlex
import sys
import time
from pathlib import Path

import _cli
import _flags
from absl import flags

from prednet_jax import (
    comparison,
    errors,
    locks,
    noise,
    process,
    records,
    report,
    runs,
    saddles,
    statistics,
    tasks,
)
from prednet_jax.config import PredNetConfig
from prednet_jax.studies import symmetric_runs

FLAGS = flags.FLAGS
# Records of speed, saddles and curvature that the page shows too.
PUBLISHED = Path(__file__).resolve().parent.parent / "results" / "published"
_flags.define_setup_flags(
    models=list(tasks.NAMED), updates=400, workdir="results/compare"
)
flags.adopt_module_key_flags(_flags)
flags.DEFINE_list(
    "arms",
    [
        "threads_1",
        "reduction_order_run",
        "gaussian_10",
        "stale_targets",
        "gpu",
        "gpu_deterministic",
    ],
    f"Of {', '.join(runs.NAMES)}, where a spec is one of train.py --noise. "
    "Arms beside float32 and reduction_order, which are always run. GPU arms are "
    "skipped, with the reason printed, where no GPU is found.",
)
flags.DEFINE_integer("first_seed", 3000, "The first root seed.")
flags.DEFINE_integer("seeds", 8, "Number of seeds: first_seed, first_seed + 1, ...")
flags.DEFINE_float(
    "margin", 0.02, "Margin of equivalence, as a fraction of the control's mean metric."
)
flags.DEFINE_integer("jobs", 2, "Processes at a time, on the CPU.")


def main(argv: list[str]) -> None:
    """Checks, runs, judges, reports."""
    del argv
    process.prepare()
    started = time.perf_counter()
    _flags.check_numbers(1, "jobs")
    design = make_design()
    runs.check(design)
    locks.check(design.root)
    jobs = design.runs()
    for name, reason in design.skipped:
        print(f"skipped {name}: {reason}")
    missing, reasons = runs.kept(jobs)
    minutes = design.seconds(missing) / 60 / min(FLAGS.jobs, 2)
    if FLAGS.dry_run:
        for job in jobs:
            print(job.shown)
        print(f"estimated time: about {minutes:.0f} minutes on two cores")
        return
    if line := runs.said(reasons):
        print(line)
    print(f"{len(missing)} processes, about {minutes:.0f} minutes on two cores")
    with locks.hold(design.root):
        runs.clear(design.root, jobs)
        execute(missing)
        print(
            "positive controls: escape times, identical units, a symmetric saddle",
            flush=True,
        )
        verdict = comparison.judge(design, positive_controls())
        verdict["design"]["command"] = shlex.join(["python", *sys.argv])
        verdict["design"]["flags"] = _cli.chosen_flags()
        verdict["seconds"] = time.perf_counter() - started
        publish(design.root, verdict)


def make_design() -> runs.Design:
    """What the flags describe."""
    if not FLAGS.arms:
        raise errors.UserError(
            f"--arms=: expected at least one of {', '.join(runs.NAMES)}"
        )
    return runs.Design(
        script=_script("train.py"),
        arms=runs.arm_names(FLAGS.arms),
        seeds=FLAGS.seeds,
        first_seed=FLAGS.first_seed,
        margin=FLAGS.margin,
        **_flags.setup(),
    )


def _script(name: str) -> str:
    path = Path(__file__).with_name(name)
    with contextlib.suppress(ValueError):  # started from elsewhere: keep it absolute
        path = path.relative_to(Path.cwd())
    return str(path)


def execute(jobs: list[runs.Job]) -> None:
    """Runs jobs to their end; the first that fails ends the comparison."""
    with (
        runs.Progress(len(jobs), unit="process") as progress,
        contextlib.closing(runs.execute(jobs, processes=FLAGS.jobs)) as running,
    ):
        for ended in running:
            if ended is None:
                progress.beat()
                continue
            if ended.error is not None:
                raise ended.error
            arm = ended.job.arm
            draw = f", draw {ended.job.draw}" if arm.draws > 1 else ""
            progress.ended(f"{ended.job.model} {arm.name}{draw}: {arm.meaning}")


# A control, not a sample: the network of part A of docs/study/plan.md, on one of its
# pilot's seeds.
SYMMETRIC = symmetric_runs.Design(
    config=PredNetConfig(channels=(3, 4, 4), r_channels=(2, 4, 4), height=24, width=32),
    window=10,
    updates=2000,
    tile=1,
)
SYMMETRIC_SEED = 2


def positive_controls() -> dict:
    """Escape times, identical units, a symmetric saddle of PredNet; run here."""

    def noisy(gradient, granularity: str):
        return noise.inject(gradient, noise.ReductionOrder(granularity=granularity))

    found = symmetric_runs.noise_can_help(SYMMETRIC, SYMMETRIC_SEED, FLAGS.margin)
    return saddles.positive_controls(noisy).as_dict() | {
        "noise_can_help": statistics.Check(passed=found[0], figure=found[1])
    }


def publish(root: Path, verdict: dict) -> None:
    """Writes the verdict and the report, prints the table."""
    records.write_json(root / "verdict.json", verdict)
    page = report.build(root, PUBLISHED)
    print()
    print(report.text_table(verdict))
    print(
        "\nThis size is a check of the instrument. The published answer is carried by "
        "part C of the study, with part A as its control (docs/study/plan.md)."
    )
    print(f"{verdict['seconds'] / 60:.1f} minutes; report: {page}\n")
    print(report.claim_lines(verdict))


if __name__ == "__main__":
    _cli.run(main)
