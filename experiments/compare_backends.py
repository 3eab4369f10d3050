"""Repeats the published study on this machine in minutes, and reports its claims.

    python experiments/compare_backends.py                  # five minutes
    python experiments/compare_backends.py --minutes=15     # more seeds or updates
    python experiments/compare_backends.py --seeds=8 --updates=3000 --arms=ulp,gpu_order

Every arm (a treatment, such as a kind of noise) trains from the same weights on the
same data, in a separate process (`experiments/train.py`). Without --seeds, --updates
and --arms a short measurement of this machine's speed and the records of the study
decide how many seeds and updates fit into --minutes, and which size can detect the
most; the decision is printed first. Seeds are fresh unless --first_seed or --seeds is
given, so that every run is new evidence.

Writes verdict.json, report.html and one directory per run into --workdir, in place of
an earlier comparison's files. A comparison that was interrupted continues: it keeps its
seeds, its size and the runs that had finished.
"""

import contextlib
import dataclasses
import importlib
import math
import secrets
import shlex
import sys
import time
from pathlib import Path

import _cli
import _flags
from absl import flags

from prednet_jax import errors, files, process, records, report, runs, tasks
from prednet_jax.records.verdict import Verdict
from prednet_jax.runs import budget, comparison, progress, published, session
from prednet_jax.runs.saddle_runs import Saddle
from prednet_jax.saddles import symmetric

FLAGS = flags.FLAGS
_cli.TOPICS |= {
    "Size": ["minutes", "seeds", "first_seed", "updates", "image_updates"],
    "What is compared": ["arms", "margin", "last"],
    "Processors": ["jobs", "threads"],
    "Output": ["workdir", "tables", "dry_run"],
}
_flags.define_setup_flags(
    models=list(tasks.NAMED), updates=published.UPDATES[-1], workdir="results/compare"
)
flags.DEFINE_float(
    "minutes",
    5.0,
    "Wall minutes that the comparison may take. They decide the number of seeds and "
    "updates, so they cannot be combined with --seeds, --updates or --arms.",
)
flags.DEFINE_list(
    "arms",
    None,
    "Arms in addition to float32 and reduction_order, which are always run. Defaults "
    "to another fixed order and stale targets, for networks that see windows. Arms "
    "that need a GPU, or more processors than there are, are skipped with the reason. "
    f"Accepted: {', '.join(runs.NAMES)}; <spec> is a noise as train.py --noise takes "
    "it.",
)
# The first seed, where only their number is given, and their number.
FIRST_SEED, FEW = 3000, 3
flags.DEFINE_integer(
    "first_seed",
    None,
    f"The first root seed. Defaults to {FIRST_SEED} with --seeds, else to a random "
    "one.",
)
flags.DEFINE_integer(
    "seeds",
    None,
    "Number of seeds: first_seed, first_seed + 1, ... Defaults to what --minutes "
    f"allow, or to {FEW} with --updates, --arms or another network.",
)
flags.DEFINE_float(
    "margin",
    0.02,
    "Changes of the loss below this fraction count as no effect (0.02 is 2 %).",
)
flags.DEFINE_integer("jobs", 2, "Trainings at a time, on the CPU.", 1)
flags.DEFINE_integer(
    "threads", 1, "Processors of each training; 0 means all. The study used 1.", 0
)
flags.DEFINE_bool("tables", False, "Print the tables of the report too.")
# Flags that decide the size of a comparison; with one of them there is no budget.
_SIZES = ("seeds", "updates", "image_updates", "arms", "last")


def main() -> None:
    """Checks the flags; plans, executes, judges and reports the comparison."""
    # A missing package that draws the report is noticed now, not after the trainings.
    importlib.import_module("prednet_jax.report.page")
    process.prepare()
    started = time.monotonic()
    root = Path(FLAGS.workdir)
    if FLAGS.arms == []:
        raise errors.UserError(
            f"--arms=: expected at least one of {', '.join(runs.NAMES)}"
        )
    errors.expect(
        0.5 <= FLAGS.minutes < math.inf, "--minutes", FLAGS.minutes, "0.5 or more"
    )
    design = make_design(_plan_of_flags())
    runs.check(design)
    files.check_unlocked(design.root)
    if FLAGS.dry_run:
        design = make_design(_kept_plan() or _plan_of_flags())
        for name, reason in design.skipped:
            print(f"skipped {name}: {reason}")
        for job in design.runs():
            print(job.command_line)
        return
    with progress.Reporter() as reporter:
        reporter.paragraph(_purpose(design, timed()))
        with files.hold(design.root):
            plan = _plan(reporter, started)
            design = make_design(plan)
            deadline = None
            if plan.minutes:
                deadline = started + 60 * plan.minutes - plan.closing
            design, saddle = session.train(
                reporter,
                design,
                _saddle(design, plan),
                processes=FLAGS.jobs,
                deadline=deadline,
            )
            reporter.stage("judging the runs and drawing the report")
            verdict = judge(design, saddle, plan)
            seconds = time.monotonic() - started
            verdict = dataclasses.replace(verdict, seconds=seconds)
            records.write_json(root / report.VERDICT, verdict.to_json())
            page = report.build(root)
            (root / budget.PLAN).unlink(missing_ok=True)
    if FLAGS.tables:
        print(f"\n{report.text_table(verdict)}")
    minutes = (time.monotonic() - started) / 60
    print(f"\nFinished after {minutes:.1f} minutes. Report: {page}\n")
    print(report.claim_lines(verdict))


def timed() -> bool:
    """Returns whether --minutes decide the size."""
    given = [name for name in _SIZES if FLAGS[name].present]
    design, other = make_design(_plan_of_flags()), ["no PredNet"]
    for task in design.tasks:
        if task.name == "prednet":
            other = published.load().other_setting(design, task)
    if FLAGS["minutes"].present and given:
        raise errors.UserError(
            f"--minutes={FLAGS.minutes:g} with --{given[0]}: --minutes choose the size "
            "of the comparison; remove one of the two"
        )
    if FLAGS["minutes"].present and other:
        raise errors.UserError(
            f"--minutes={FLAGS.minutes:g} needs the setting of the study, and this has "
            f"{', '.join(other)}; give --seeds and --updates instead of --minutes"
        )
    return not given and not other


def _purpose(design: runs.Design, by_minutes: bool) -> str:
    """Describes the planned comparison, its duration, and the reason for both."""
    networks = " and ".join(task.name for task in design.tasks)
    size = f"{design.seeds} seeds, {design.updates} updates"
    if by_minutes:
        size = f"about {FLAGS.minutes:g} minutes"
    return (
        f"Trains {networks} several times from the same initial weights, with sums "
        "added in different orders and with the mistake of the article's script (stale "
        f"targets), to see what changes the loss ({size}; {FLAGS.jobs} processes at a "
        f"time). Runs are kept in {design.root}; after an interruption the same "
        "command continues."
    )


def _plan_of_flags() -> budget.Plan:
    """Returns the plan that the flags alone describe."""
    first = FIRST_SEED if FLAGS.first_seed is None else FLAGS.first_seed
    if _fresh():
        first = secrets.randbelow(2**31)
    seeds = FEW if FLAGS.seeds is None else FLAGS.seeds
    return budget.Plan(first, budget.Size(seeds=seeds, updates=FLAGS.updates))


def _fresh() -> bool:
    return FLAGS.first_seed is None and FLAGS.seeds is None


def _kept_plan() -> budget.Plan | None:
    """Returns the plan of an interrupted comparison that the flags ask for, or None."""
    kept = budget.Plan.read(Path(FLAGS.workdir))
    if kept is None or not _fresh():
        return None
    if timed():
        asked = FLAGS.minutes if FLAGS["minutes"].present else kept.minutes
        same = kept.minutes is not None and kept.minutes == asked
    else:
        same = kept.minutes is None and kept.size == _plan_of_flags().size
    return kept if same else None


def _plan(reporter: progress.Reporter, started: float) -> budget.Plan:
    """Returns the plan of an interrupted comparison, or a new one.

    The plan is kept on disk and printed.
    """
    root = Path(FLAGS.workdir)
    if kept := _kept_plan():
        size = budget.describe_size(kept.first_seed, kept.size)
        reporter.line(f"Continues the comparison that was interrupted: {size}.")
        return kept
    plan, fresh = _plan_of_flags(), _fresh()
    if (root / report.VERDICT).is_file() and fresh:
        reporter.paragraph(
            f"An earlier comparison is in {root}. This one has other seeds, so it is "
            "new evidence; its report replaces the earlier one."
        )
    if timed():
        speed = session.measure(reporter, make_design(plan), FLAGS.jobs)
        left = 60 * FLAGS.minutes - (time.monotonic() - started)
        choice = budget.choose(left, speed, FLAGS.jobs)
        plan = budget.Plan(plan.first_seed, choice.size, FLAGS.minutes, speed.closing)
        reporter.paragraph(budget.describe_choice(choice, speed))
    reporter.line(f"Size: {budget.describe_size(plan.first_seed, plan.size)}.")
    root.mkdir(parents=True, exist_ok=True)
    plan.write(root)
    return plan


def make_design(plan: budget.Plan) -> runs.Design:
    """Returns the design of a plan, with the flags that every plan shares."""
    setup, size = _flags.setup(), plan.size
    setup["tasks"] = tuple(t for t in setup["tasks"] if t.name not in size.without)
    return runs.Design(
        script=_script("train.py"),
        arms=None if FLAGS.arms is None else runs.arm_names(FLAGS.arms),
        without=size.without,
        seeds=size.seeds,
        first_seed=plan.first_seed,
        margin=FLAGS.margin,
        threads=FLAGS.threads or None,
        keep_every=published.UPDATES[0] if plan.minutes else 0,
        **setup | {"updates": size.updates},
    )


def _script(name: str) -> str:
    path = Path(__file__).with_name(name)
    with contextlib.suppress(ValueError):  # started from elsewhere: keep it absolute
        path = path.relative_to(Path.cwd())
    return str(path)


def _saddle(design: runs.Design, plan: budget.Plan) -> Saddle | None:
    """Returns the trainings from a saddle that belong to a plan, or None."""
    arms, updates = plan.size.saddle_arms, plan.size.saddle_updates
    if not plan.minutes:
        updates = max(design.updates, symmetric.BINS)
    if not arms or "prednet" not in [task.name for task in design.tasks]:
        return None
    script = _script("symmetric_start.py")
    return Saddle(design.root / "saddle", arms, updates, plan.first_seed, script)


def judge(design: runs.Design, saddle: Saddle | None, plan: budget.Plan) -> Verdict:
    """Returns the verdict about the runs on disk, next to the published study."""
    study = published.load()
    others = []
    if saddle is not None and (rows := saddle.rows()):
        others.append(study.saddle_claim(rows, design.margin))
    verdict = comparison.judge(design, study.losses(design), others)
    command = shlex.join(["python", *sys.argv])
    about = {"command": command, "flags": _cli.chosen_flags()}
    about |= verdict.design | _size_record(plan, design, saddle)
    return dataclasses.replace(verdict, design=about)


def _size_record(plan: budget.Plan, design: runs.Design, saddle: Saddle | None) -> dict:
    """Returns the planned and the reached design, for the verdict."""
    study = published.load()
    differs = {
        task.name: study.other_setting(design, task)
        for task in design.tasks
        if task.windowed
    }
    if design.updates not in study.by_updates:
        for reasons in differs.values():
            reasons.append(f"{design.updates} updates instead of 1000, 2000 or 3000")
    return {
        "minutes": plan.minutes,
        "planned_updates": plan.size.updates,
        "updates": {task.name: design.updates_of(task) for task in design.tasks},
        "window": design.window,
        "networks": {task.name: task.network() for task in design.tasks},
        "data": {task.name: design.data_of(task) for task in design.tasks},
        "given_up": plan.size.given_up,
        "saddle_updates": saddle.updates if saddle else None,
        "differs_from_study": differs,
    }


if __name__ == "__main__":
    _cli.run(main)
