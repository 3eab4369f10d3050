"""Trains every arm on the same weights and data, and ends in a verdict.

    python experiments/compare_backends.py --workdir=results/compare

Each arm is a process of its own (`experiments/train.py`). A pilot on seeds of its own
fixes the margin of equivalence before the main runs start. Writes verdict.json,
report.html and one directory per run, in place of what an earlier comparison left.
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
from prednet_jax.comparison import execution, reading

FLAGS = flags.FLAGS
flags.DEFINE_list(
    "models",
    list(tasks.NAMED),
    "Networks to compare: prednet, autoencoder, or module:object, as in train.py.",
)
flags.DEFINE_list(
    "arms",
    [
        "float64",
        "threads_1",
        "ulp",
        "gaussian_2.7e-7",
        "gaussian_10",
        "stale_targets",
        "gpu",
        "gpu_deterministic",
    ],
    "Arms beside float32 and reduction_order, which are always run. GPU arms are "
    "skipped, with the reason printed, where no GPU is found.",
)
flags.DEFINE_integer("seeds", 10, "Seeds of the main runs: 0, 1, ...")
flags.DEFINE_integer("pilot_seeds", 4, "Seeds of the pilot: 2000, 2001, ...")
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
flags.DEFINE_integer("updates", 200, "Updates of networks that see windows.")
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
    pilot, runs = design.pilot(), design.runs()
    for name, reason in design.skipped:
        print(f"skipped {name}: {reason}")
    minutes = design.seconds(pilot + runs) / 60 / min(FLAGS.jobs, 2)
    if FLAGS.dry_run:
        for job in pilot + runs:
            print(job.shown)
        print(f"estimated time: about {minutes:.0f} minutes on two cores")
        return
    print(f"{len(pilot + runs)} processes, about {minutes:.0f} minutes on two cores")
    comparison.clear(design.root)
    progress = Progress(len(pilot + runs))
    progress.execute(pilot)
    pilots = {task.name: comparison.fix_margin(design, task) for task in design.tasks}
    for model, fixed in pilots.items():
        print(
            f"margin of {model}: {fixed.margin.value:.3g}, {fixed.margin.origin}; "
            f"power to call a zero effect equivalent with {design.seeds} seeds: "
            f"{fixed.planned_power(design.seeds):.2f}",
            flush=True,
        )
    progress.execute(runs)
    print("positive controls: escape times, identical units", flush=True)
    verdict = comparison.judge(design, pilots, positive_controls(), find_stall)
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
                "pilot_seeds",
                "data",
                "images",
                "window",
                "updates",
                "image_updates",
                "last",
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
        part = job.folder.parent.parent.name
        self.bar.write(
            f"[{self.ended}/{self.bar.total}] {part} {job.model} {job.arm.name}: "
            f"{job.arm.meaning}",
            file=sys.stdout,
        )
        sys.stdout.flush()
        self.bar.update()


def positive_controls() -> dict:
    """Escape-time theory and the separation of identical units, run here."""

    def noisy(gradient, granularity: str):
        return noise.inject(gradient, noise.ReductionOrder(granularity=granularity))

    return saddles.positive_controls(noisy).as_dict()


def find_stall(control: comparison.Job) -> statistics.Stall:
    """Probes the control's first seed where its loss stalls."""
    run = records.read_run(control.run_folder(control.seeds[0]))
    update = reading.stalled_at(run.metrics["loss"])
    if update is None:
        return statistics.Stall(
            stalled=False, negative_curvature=False, small_projection=False
        )
    model = control.model
    print(f"noise lowered the loss of {model}: probing update {update}", flush=True)
    folder = Path(FLAGS.workdir) / "curvature" / model
    execution.probe_job(control, update, folder, _script("probe_curvature.py"))
    row = records.read_json(folder / "probe_curvature.json")["rows"][0]
    escape = row["escape"]
    return statistics.Stall(
        stalled=True,
        negative_curvature=row["preconditioned"]["negative_curvature_proved"],
        # Written as null where the escape direction would never be left: infinite.
        small_projection=escape is not None
        and (escape["updates_saved"] is None or escape["updates_saved"] >= 1),
    )


def publish(root: Path, verdict: dict) -> None:
    """Writes the verdict and the report, prints the table."""
    records.write_json(root / "verdict.json", verdict)
    page = report.build(root)
    print()
    print(report.text_table(verdict))
    print(f"\n{verdict['seconds'] / 60:.1f} minutes; report: {page}")


if __name__ == "__main__":
    _cli.run(main)
