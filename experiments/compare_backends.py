"""Trains every arm on the same weights and data, and ends in a verdict.

    python experiments/compare_backends.py --workdir=results/compare

Each arm is a process of its own (`experiments/train.py`). The margin of equivalence is
a fraction of the control's loss, fixed beforehand. Writes verdict.json, report.html and
one directory per run, in place of what an earlier comparison left.
"""

import contextlib
import shlex
import sys
import time
from concurrent import futures
from pathlib import Path

import _cli
import _flags
from absl import flags

from prednet_jax import (
    comparison,
    data,
    noise,
    process,
    records,
    report,
    saddles,
    statistics,
    tasks,
)
from prednet_jax.config import PredNetConfig
from prednet_jax.studies import symmetric_runs

FLAGS = flags.FLAGS
flags.DEFINE_list(
    "models",
    list(tasks.NAMED),
    "Networks to compare: prednet, autoencoder, or module:object, as in train.py.",
)
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
    "Arms beside float32 and reduction_order, which are always run. GPU arms are "
    "skipped, with the reason printed, where no GPU is found.",
)
flags.DEFINE_integer("first_seed", 3000, "The first root seed.")
flags.DEFINE_integer("seeds", 8, "Number of seeds: first_seed, first_seed + 1, ...")
flags.DEFINE_float(
    "margin", 0.02, "Margin of equivalence, as a fraction of the control's mean metric."
)
flags.DEFINE_list("channels", ["3", "6", "12"], "Widths of PredNet's layers.")
flags.DEFINE_integer("height", 24, "Rows of a frame.")
flags.DEFINE_integer("width", 32, "Columns of a frame.")
flags.DEFINE_string(
    "data",
    None,
    "Frames of networks that are trained on windows, as in train.py; default: each "
    "one's own, walk for prednet.",
)
flags.DEFINE_string(
    "images",
    None,
    "Images of networks that are trained on one per update; default: each one's own, "
    "digits for the autoencoder.",
)
flags.DEFINE_integer("window", 10, "Transitions per update.")
flags.DEFINE_integer("updates", 400, "Updates of networks that see windows.")
flags.DEFINE_integer("image_updates", 500, "Updates of networks that see images.")
flags.DEFINE_float("last", 0.2, "The metric is the mean loss of this last fraction.")
flags.DEFINE_string("workdir", "results/compare", "Where to write.")
flags.DEFINE_integer("jobs", 2, "Processes at a time, on the CPU.")
flags.DEFINE_bool("dry_run", False, "Print the exact commands and the time, no more.")


def main(argv: list[str]) -> None:
    """Checks, runs, judges, reports."""
    del argv
    process.prepare()
    started = time.perf_counter()
    _flags.check_numbers(1, "jobs")
    design = make_design()
    comparison.check(design)
    runs = design.runs()
    for name, reason in design.skipped:
        print(f"skipped {name}: {reason}")
    minutes = design.seconds(runs) / 60 / min(FLAGS.jobs, 2)
    if FLAGS.dry_run:
        for job in runs:
            print(job.shown)
        print(f"estimated time: about {minutes:.0f} minutes on two cores")
        return
    print(f"{len(runs)} processes, about {minutes:.0f} minutes on two cores")
    comparison.clear(design.root)
    Progress(len(runs)).execute(runs)
    print(
        "positive controls: escape times, identical units, a symmetric saddle",
        flush=True,
    )
    verdict = comparison.judge(design, positive_controls())
    verdict["design"]["command"] = shlex.join(["python", *sys.argv])
    verdict["design"]["flags"] = _cli.chosen_flags()
    verdict["seconds"] = time.perf_counter() - started
    publish(design.root, verdict)


def make_design() -> comparison.Design:
    """What the flags describe."""
    images = data.own_size(FLAGS.images or "digits")[2]
    return comparison.Design(
        root=Path(FLAGS.workdir),
        script=_script("train.py"),
        tasks=tuple(_flags.small_task(m, channels=images) for m in FLAGS.models),
        arms=tuple(FLAGS.arms),
        **{
            name: getattr(FLAGS, name)
            for name in (
                "seeds",
                "first_seed",
                "data",
                "images",
                "window",
                "updates",
                "image_updates",
                "last",
                "margin",
            )
        },
    )


def _script(name: str) -> str:
    path = Path(__file__).with_name(name)
    with contextlib.suppress(ValueError):  # started from elsewhere: keep it absolute
        path = path.relative_to(Path.cwd())
    return str(path)


class Progress:
    """Runs jobs, some at a time, and says which have ended.

    The bits of a run do not depend on what else the machine does; its seconds do. Jobs
    on a GPU run alone, after the others: each takes the device's memory.
    """

    def __init__(self, total: int):
        from tqdm import tqdm

        self.bar = tqdm(
            total=total, unit="process", disable=not sys.stderr.isatty(), smoothing=0
        )
        self.ended = 0

    def execute(self, jobs: list) -> None:
        """Runs jobs to their end; the first that fails ends the comparison."""
        alone = [job for job in jobs if job.arm.gpu]
        with futures.ThreadPoolExecutor(FLAGS.jobs) as pool:
            running = {
                pool.submit(comparison.execute, job): job
                for job in jobs
                if not job.arm.gpu
            }
            try:
                for done in futures.as_completed(running):
                    done.result()
                    self.say(running[done])
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        for job in alone:
            comparison.execute(job)
            self.say(job)

    def say(self, job) -> None:
        """One line for a job that has ended, above the progress bar."""
        self.ended += 1
        draw = f", draw {job.draw}" if job.arm.draws > 1 else ""
        self.bar.write(
            f"[{self.ended}/{self.bar.total}] {job.model} {job.arm.name}{draw}: "
            f"{job.arm.meaning}",
            file=sys.stdout,
        )
        sys.stdout.flush()
        self.bar.update()


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
    page = report.build(root)
    print()
    print(report.text_table(verdict))
    print(
        "\nThis size is a check of the instrument. The published answer is carried by "
        "part C of the study, with part A as its control (docs/study/plan.md)."
    )
    print(f"{verdict['seconds'] / 60:.1f} minutes; report: {page}")


if __name__ == "__main__":
    _cli.run(main)
