"""Repeats the published study on this machine, and says what comes of its claims.

    python experiments/compare_backends.py --workdir=results/compare

Every arm trains on the same weights and data, in a process of its own
(`experiments/train.py`). Without --seeds and --first_seed the seeds are fresh, so that
every run is new evidence; they are recorded. Where the setting is that of the study,
the claims stand beside what was published and where such a repetition should fall.

Writes verdict.json, report.html and one directory per run, in place of what an earlier
comparison left. What an interrupted comparison finished is kept: runs of the same
flags, source, versions and device.
"""

import contextlib
import importlib
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import _cli
import _flags
from absl import flags

from prednet_jax import data, errors, files, process, records, report, runs, tasks
from prednet_jax.runs import comparison, executor
from prednet_jax.saddles import symmetric
from prednet_jax.training import keeping
from prednet_jax.weights import pretrained

# Until the package has a summary of the study of its own.
sys.path.append(str(Path(__file__).resolve().parent.parent))
from study import again

FLAGS = flags.FLAGS
RESULTS = Path(__file__).resolve().parent.parent / "results"
_flags.define_setup_flags(
    models=list(tasks.NAMED), updates=again.PART.updates, workdir="results/compare"
)
flags.DEFINE_list(
    "arms",
    None,
    f"Of {', '.join(runs.NAMES)}, where a spec is one of train.py --noise. "
    "Arms beside float32 and reduction_order, which are always run. Default: another "
    "fixed order and stale targets, for networks that see windows. Arms that need "
    "a GPU, or more processors than there are, are skipped with the reason printed.",
)
# The seeds of comparisons that name their number only; and where fresh ones are kept
# until the verdict, so that one that was interrupted goes on with them.
FIRST_SEED, FEW = 3000, 3
SEEDS = "seeds.json"
flags.DEFINE_integer(
    "first_seed",
    None,
    f"The first root seed. Default: {FIRST_SEED} with --seeds, else a fresh one.",
)
flags.DEFINE_integer(
    "seeds", None, f"Number of seeds: first_seed, first_seed + 1, ... Default: {FEW}."
)
flags.DEFINE_float(
    "margin", 0.02, "Margin of equivalence, as a fraction of the control's mean metric."
)
flags.DEFINE_integer("jobs", 2, "Processes at a time, on the CPU.", 1)


def main() -> None:
    """Checks, runs, judges, reports."""
    # What draws the report is missed now, and not after the trainings.
    importlib.import_module("prednet_jax.report.page")
    process.prepare()
    started = time.perf_counter()
    if FLAGS.arms == []:
        raise errors.UserError(
            f"--arms=: expected at least one of {', '.join(runs.NAMES)}"
        )
    first_seed, seeds = _seeds(Path(FLAGS.workdir) / SEEDS)
    design = runs.Design(
        script=_script("train.py"),
        arms=None if FLAGS.arms is None else runs.arm_names(FLAGS.arms),
        seeds=seeds,
        first_seed=first_seed,
        margin=FLAGS.margin,
        **_flags.setup(),
    )
    runs.check(design)
    files.check_unlocked(design.root)
    jobs = design.runs()
    for name, reason in design.skipped:
        print(f"skipped {name}: {reason}")
    missing, reasons = runs.kept(jobs)
    if FLAGS.dry_run:
        for job in jobs:
            print(job.shown)
        return
    if line := runs.said(reasons):
        print(line)
    print(f"{len(missing)} processes")
    with files.hold(design.root):
        runs.clear(design.root, jobs)
        if _fresh():
            records.write_json(design.root / SEEDS, [first_seed, seeds])
        # Noisy ones take longest: first, so that no core waits for the last one.
        missing.sort(key=lambda job: "noise" not in job.chosen)
        with saddle_runs(design) as saddle:
            execute(missing)
            rows = saddle()
        folder = RESULTS / "study"
        others = [again.saddle_claim(rows, folder, design.margin)] if rows else []
        study = again.published(design, folder)
        verdict = comparison.judge(design, study, others)
        verdict["design"]["command"] = shlex.join(["python", *sys.argv])
        verdict["design"]["flags"] = _cli.chosen_flags()
        verdict["seconds"] = time.perf_counter() - started
        show_learned(design)
        publish(design.root, verdict)


def _seeds(begun: Path) -> tuple[int, int]:
    """The first seed and their number; those of an unfinished comparison are kept."""
    if not _fresh():
        first = FIRST_SEED if FLAGS.first_seed is None else FLAGS.first_seed
        return first, FEW if FLAGS.seeds is None else FLAGS.seeds
    if begun.is_file():
        first, seeds = records.read_json(begun)
        return int(first), int(seeds)
    return secrets.randbelow(2**31), FEW


def _fresh() -> bool:
    return FLAGS.first_seed is None and FLAGS.seeds is None


def _script(name: str) -> str:
    path = Path(__file__).with_name(name)
    with contextlib.suppress(ValueError):  # started from elsewhere: keep it absolute
        path = path.relative_to(Path.cwd())
    return str(path)


def execute(jobs: list[runs.Job]) -> None:
    """Runs jobs to their end; the first that fails ends the comparison."""

    def line(ended: runs.Ended) -> str:
        if ended.error is not None:
            raise ended.error
        arm = ended.job.arm
        draw = f", draw {ended.job.draw}" if arm.draws > 1 else ""
        return f"{ended.job.model} {arm.name}{draw}: {arm.meaning}"

    runs.follow(runs.execute(jobs, processes=FLAGS.jobs), len(jobs), 0, line)


@contextlib.contextmanager
def saddle_runs(design: runs.Design) -> Iterator[Callable[[], list]]:
    """Trains PredNet from an exact saddle beside the other processes; one seed.

    The trainings are as long as the others, in whole parts. Yields a function that
    waits and returns their rows; none if the comparison is not about PredNet.
    """
    if "prednet" not in [task.name for task in design.tasks]:
        yield list
        return
    folder = design.root / "saddle"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    launch = executor.Launch(
        script=_script("symmetric_start.py"),
        arguments=(
            "--programs=symmetric",
            f"--arms={','.join(again.SADDLE_ARMS)}",
            "--deltas=0",
            f"--seeds={design.first_seed}",
            f"--updates={-(-design.updates // symmetric.BINS) * symmetric.BINS}",
            f"--workdir={folder}",
        ),
        environment=records.environment() | {"JAX_PLATFORMS": "cpu"},
    )
    log = folder / executor.LOG
    with executor.started(launch, log) as child:

        def rows() -> list:
            if status := child.wait():
                raise runs.ProcessError(
                    f"the trainings from a saddle ended with status {status}; see {log}"
                )
            return symmetric.read(folder / "runs.csv")

        yield rows


def show_learned(design: runs.Design) -> None:
    """Adds what the package's network predicts to the frames that PredNet's arms show.

    Nothing where these are not frames of the walk in its size.
    """
    config, params = pretrained("walk")
    task, place = tasks.of(config), design.root / "runs" / "prednet" / report.LEARNED
    place.unlink(missing_ok=True)
    walked = [t.frame for t in design.tasks if design.data_of(t) == "walk"]
    for path in sorted(place.parent.glob(f"*/**/{records.EXAMPLES}"))[:1]:
        if task.frame in walked:
            seed = int(path.parent.name.removeprefix("seed_"))
            source = data.open_source("walk", **tasks.frame_size(task), seed=seed)
            count = len(files.read_npz(path)["frames"])
            keeping.write_examples(place, task, params, source, count)


def publish(root: Path, verdict: dict) -> None:
    """Writes the verdict and the report, prints the table."""
    records.write_json(root / report.VERDICT, verdict)
    page = report.build(root)
    (root / SEEDS).unlink(missing_ok=True)
    print(f"\n{report.text_table(verdict)}\n")
    print(f"{verdict['seconds'] / 60:.1f} minutes; report: {page}\n")
    print(report.claim_lines(verdict))


if __name__ == "__main__":
    _cli.run(main)
