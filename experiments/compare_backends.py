"""Trains every arm on the same weights and data, and ends in a verdict.

    python experiments/compare_backends.py --workdir=results/compare

Each arm is a process of its own (`experiments/train.py`). A pilot on seeds of its own
fixes the margin of equivalence before the main runs start. Writes verdict.json,
report.html and one directory a run; what an earlier comparison left there is replaced.
"""

import contextlib
import os
import shlex
import subprocess
import sys
import time
from concurrent import futures
from pathlib import Path

import common
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_list("models", ["prednet", "autoencoder"], "Networks to compare.")
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
flags.DEFINE_string("data", "walk", "Frames of PredNet, as in train.py.")
flags.DEFINE_string("images", "digits", "Images of the autoencoder, as in train.py.")
flags.DEFINE_integer("window", 10, "Transitions an update of PredNet.")
flags.DEFINE_integer("updates", 200, "Updates of PredNet.")
flags.DEFINE_integer("image_updates", 500, "Updates of the autoencoder.")
flags.DEFINE_float("last", 0.2, "The metric is the mean loss of this last fraction.")
flags.DEFINE_string("workdir", "results/compare", "Where to write.")
flags.DEFINE_integer("jobs", 2, "Processes at a time, on the CPU.")
flags.DEFINE_bool("dry_run", False, "Print the exact commands and the time, no more.")


def main(argv: list[str]) -> None:
    """Checks, runs, judges, reports."""
    del argv
    from prednet_jax import study
    from prednet_jax.study.design import estimate

    started = time.perf_counter()
    if FLAGS.jobs < 1:
        raise ValueError(f"--jobs={FLAGS.jobs}: expected at least 1")
    design = study.Design(
        root=Path(FLAGS.workdir),
        script=_script("train.py"),
        models=tuple(FLAGS.models),
        arms=tuple(FLAGS.arms),
        channels=common.integers("channels", FLAGS.channels) or (),
        **{
            name: getattr(FLAGS, name)
            for name in (
                "seeds",
                "pilot_seeds",
                "height",
                "width",
                "data",
                "images",
                "window",
                "updates",
                "image_updates",
                "last",
            )
        },
    )
    study.check(design)
    pilot, runs = design.pilot(), design.runs()
    for name, reason in design.skipped:
        print(f"skipped {name}: {reason}")
    minutes = estimate(design, pilot + runs) / 60 / min(FLAGS.jobs, 2)
    if FLAGS.dry_run:
        for job in pilot + runs:
            print(job.shown)
        print(f"estimated time: about {minutes:.0f} minutes on two cores")
        return
    print(f"{len(pilot + runs)} processes, about {minutes:.0f} minutes on two cores")
    earlier = [f"margin_{model}.json" for model in study.design.MODELS]
    for name in ("pilot", "runs", "curvature", "verdict.json", "report.html", *earlier):
        study.remove(design.root / name)
    progress = Progress(len(pilot + runs))
    progress.execute(pilot)
    pilots = {model: study.fix_margin(design, model) for model in design.models}
    for model, pilot in pilots.items():
        print(
            f"margin of {model}: {pilot.margin.value:.3g}, {pilot.margin.origin}; "
            f"power to call a zero effect equivalent with {design.seeds} seeds: "
            f"{pilot.planned_power(design.seeds):.2f}",
            flush=True,
        )
    progress.execute(runs)
    print("positive controls: escape times, identical units", flush=True)
    verdict = study.judge(design, pilots, positive_controls(), find_stall)
    verdict["design"]["command"] = shlex.join(["python", *sys.argv])
    verdict["design"]["flags"] = {
        flag.name: flag.value for flag in FLAGS.get_key_flags_for_module("__main__")
    }
    verdict["seconds"] = time.perf_counter() - started
    publish(design.root, verdict)


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
        from prednet_jax import study

        alone = [job for job in jobs if job.arm.gpu]
        with futures.ThreadPoolExecutor(FLAGS.jobs) as pool:
            running = {
                pool.submit(study.execute, job): job for job in jobs if not job.arm.gpu
            }
            try:
                for done in futures.as_completed(running):
                    done.result()
                    self.say(running[done])
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        for job in alone:
            study.execute(job)
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
    from prednet_jax import noise, saddles

    def noisy(gradient, granularity: str):
        return noise.inject(gradient, noise.ReductionOrder(granularity=granularity))

    return saddles.positive_controls(noisy).as_dict()


def find_stall(model: str, control):
    """Probes the control's first seed where its loss stalls.

    The run is trained once more with checkpoints; the same seed gives the same bits.
    """
    from prednet_jax import records, statistics
    from prednet_jax.study import judgement

    run = records.read_run(control.run_folder(control.seeds[0]))
    update = judgement.stalled_at(run.metrics["loss"])
    if update is None:
        return statistics.Stall(
            stalled=False, negative_curvature=False, small_projection=False
        )
    print(f"noise lowered the loss of {model}: probing update {update}", flush=True)
    folder = Path(FLAGS.workdir) / "curvature" / model
    flags_of_run = [
        f for f in control.command[1:] if not f.startswith(("--seeds", "--workdir"))
    ]
    commands = (
        [
            _script("train.py"),
            *flags_of_run,
            f"--seed={control.seeds[0]}",
            f"--workdir={folder}",
            f"--checkpoint_every={update}",
        ],
        [
            _script("probe_curvature.py"),
            f"--run={folder}",
            f"--updates={update}",
            f"--workdir={folder}",
        ],
    )
    for command in commands:
        done = subprocess.run(
            [sys.executable, *command],
            env=os.environ | dict(control.arm.environment),
            check=False,
        )
        if done.returncode:
            raise ValueError(
                f"probing {model} ended with status {done.returncode}; it was: "
                f"{shlex.join(['python', *command])}"
            )
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
    from prednet_jax import records, report

    records.write_json(root / "verdict.json", verdict)
    page = report.build(root)
    print()
    print(report.text_table(verdict))
    print(f"\n{verdict['seconds'] / 60:.1f} minutes; report: {page}")


if __name__ == "__main__":
    common.run(main)
