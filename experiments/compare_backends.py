"""Repeats the published study on this machine in minutes, and reports its claims.

    python experiments/compare_backends.py                  # five minutes
    python experiments/compare_backends.py --minutes=15     # more seeds, more updates
    python experiments/compare_backends.py --seeds=8 --updates=3000 --arms=ulp,gpu_order

Every arm trains on the same weights and data, in a process of its own
(`experiments/train.py`). Without --seeds, --updates and --arms a short measurement of
this machine's speed and the records of the study decide how many seeds and updates fit
into --minutes, and which size can show most; the decision is printed first. Seeds are
fresh unless --first_seed or --seeds is given, so that every run is new evidence.

Flags by topic:

    size              --minutes; or --seeds, --updates, --image_updates, --first_seed
    networks, frames  --models --channels --height --width --data --images --window
    what is compared  --arms --margin --last
    processors        --jobs --threads
    output            --workdir --tables --dry_run

Writes verdict.json, report.html and one directory per run into --workdir, in place of
what an earlier comparison left. A comparison that was interrupted continues: it keeps
its seeds, its size and the runs that had finished.
"""

import contextlib
import importlib
import math
import secrets
import shlex
import shutil
import statistics
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import _cli
import _flags
from absl import flags

from prednet_jax import data, errors, files, process, records, report, runs, tasks
from prednet_jax.runs import (
    budget,
    comparison,
    executor,
    progress,
    published,
    shortened,
)
from prednet_jax.saddles import symmetric
from prednet_jax.training import run_recorder
from prednet_jax.weights import pretrained

FLAGS = flags.FLAGS
_flags.define_setup_flags(
    models=list(tasks.NAMED), updates=published.RUNGS[-1], workdir="results/compare"
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
    f"Of {', '.join(runs.NAMES)}, where a spec is one of train.py --noise. "
    "Arms in addition to float32 and reduction_order, which are always run. Default: "
    "another fixed order and stale targets, for networks that see windows. Arms that "
    "need a GPU, or more processors than there are, are skipped with the reason.",
)
# The first seed, where only their number is given, and their number.
FIRST_SEED, FEW = 3000, 3
#: Where the plan of a comparison is kept until its verdict.
PLAN = "plan.json"
flags.DEFINE_integer(
    "first_seed",
    None,
    f"The first root seed. Default: {FIRST_SEED} with --seeds, else a fresh one.",
)
flags.DEFINE_integer(
    "seeds",
    None,
    "Number of seeds: first_seed, first_seed + 1, ... Default: as --minutes allow, "
    f"{FEW} with --updates, --arms or another network.",
)
flags.DEFINE_float(
    "margin", 0.02, "Margin of equivalence, as a fraction of the control's mean metric."
)
flags.DEFINE_integer("jobs", 2, "Processes at a time, on the CPU.", 1)
flags.DEFINE_integer(
    "threads", 1, "Processors of each training, 1 as in the study; 0: all.", 0
)
flags.DEFINE_bool("tables", False, "Print the tables of contrasts too.")
# Flags that decide the size of a comparison; with one of them there is no budget.
_SIZES = ("seeds", "updates", "image_updates", "arms", "last")


@dataclass(frozen=True)
class Plan:
    """What a comparison repeats; kept on the disk until there is a verdict.

    Attributes:
        first_seed: the first root seed.
        rung: seeds, updates, and the parts that are given up.
        minutes: what it was chosen for; None: the flags decided.
        closing: seconds that judging the runs and the report take.
    """

    first_seed: int
    rung: budget.Rung
    minutes: float | None = None
    closing: float = 0.0

    def write(self, root: Path) -> None:
        """Keeps the plan in the directory of the comparison."""
        records.write_json(root / PLAN, asdict(self))

    @classmethod
    def read(cls, root: Path) -> "Plan | None":
        """Reads the plan of an interrupted comparison; None: there is none."""
        if not (root / PLAN).is_file():
            return None
        stored = records.read_json(root / PLAN)
        try:
            rung = stored.pop("rung")
            without = tuple(rung.pop("without"))
            return cls(**stored, rung=budget.Rung(**rung, without=without))
        except (AttributeError, KeyError, TypeError):
            raise files.FileError(
                f"{root / PLAN}: not the plan of a comparison; remove it to begin anew"
            ) from None


def main() -> None:
    """Checks, plans, runs, judges, reports."""
    # What draws the report is missed now, and not after the trainings.
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
        _list_jobs(make_design(_kept_plan() or _plan_of_flags()))
        return
    with progress.Reporter() as reporter:
        reporter.line(_purpose(design, timed()))
        with files.hold(design.root):
            plan = _plan(reporter, started)
            design = make_design(plan)
            deadline = None
            if plan.minutes:
                deadline = started + 60 * plan.minutes - plan.closing
            design, saddle = train(reporter, design, plan, deadline)
            reporter.stage("judging the runs and drawing the report")
            verdict = judge(design, saddle)
            verdict["design"] |= _size_record(plan, design, saddle)
            verdict["seconds"] = time.monotonic() - started
            show_learned(design)
            records.write_json(root / report.VERDICT, verdict)
            page = report.build(root)
            (root / PLAN).unlink(missing_ok=True)
    if FLAGS.tables:
        print(f"\n{report.text_table(verdict)}")
    print(f"\nFinished after {verdict['seconds'] / 60:.1f} minutes. Report: {page}\n")
    print(report.claim_lines(verdict))


def timed() -> bool:
    """Returns whether --minutes decide the size."""
    given = [name for name in _SIZES if FLAGS[name].present]
    design = make_design(_plan_of_flags())
    other = [
        difference
        for task in design.tasks
        if task.name == "prednet"
        for difference in published.load().other_setting(design, task)
    ]
    if "prednet" not in [task.name for task in design.tasks]:
        other = ["no PredNet"]
    if FLAGS["minutes"].present and given:
        raise errors.UserError(
            f"--minutes={FLAGS.minutes:g} with --{given[0]}: --minutes choose the size "
            "of the comparison; remove one of the two"
        )
    if FLAGS["minutes"].present and other:
        raise errors.UserError(
            f"--minutes={FLAGS.minutes:g} needs the setting of the study, and this is "
            f"{', '.join(other)}; give --seeds and --updates instead"
        )
    return not given and not other


def _purpose(design: runs.Design, by_minutes: bool) -> str:
    """Returns what the comparison will do, for how long, and why."""
    networks = " and ".join(task.name for task in design.tasks)
    size = f"{design.seeds} seeds, {design.updates} updates"
    if by_minutes:
        size = f"about {FLAGS.minutes:g} minutes"
    return (
        f"Trains {networks} several times from the same initial weights, with sums "
        "added in different orders and with the mistake of the published script, to "
        f"see what changes the loss ({size}; {FLAGS.jobs} processes at a time). Runs "
        f"are kept in {design.root}."
    )


def _plan_of_flags() -> Plan:
    """Returns the plan that the flags alone describe."""
    first = FIRST_SEED if FLAGS.first_seed is None else FLAGS.first_seed
    if _fresh():
        first = secrets.randbelow(2**31)
    seeds = FEW if FLAGS.seeds is None else FLAGS.seeds
    return Plan(first, budget.Rung(seeds=seeds, updates=FLAGS.updates))


def _fresh() -> bool:
    return FLAGS.first_seed is None and FLAGS.seeds is None


def _kept_plan() -> Plan | None:
    """Returns the plan of an interrupted comparison that the flags ask for, or None."""
    kept = Plan.read(Path(FLAGS.workdir))
    if kept is None or not _fresh():
        return None
    if timed():
        asked = FLAGS.minutes if FLAGS["minutes"].present else kept.minutes
        same = kept.minutes is not None and kept.minutes == asked
    else:
        same = kept.minutes is None and kept.rung == _plan_of_flags().rung
    return kept if same else None


def _plan(reporter: progress.Reporter, started: float) -> Plan:
    """Returns the plan of an interrupted comparison, or a new one.

    It is kept and printed.
    """
    root = Path(FLAGS.workdir)
    if kept := _kept_plan():
        reporter.line(f"Continues the comparison that was interrupted: {_size(kept)}.")
        return kept
    plan, fresh = _plan_of_flags(), _fresh()
    if (root / report.VERDICT).is_file() and fresh:
        reporter.line(
            f"An earlier comparison is in {root}. This one has other seeds, so it is "
            "new evidence; its report replaces the earlier one."
        )
    if timed():
        speed = measure(reporter, make_design(plan))
        left = 60 * FLAGS.minutes - (time.monotonic() - started)
        choice = budget.choose(left, speed, FLAGS.jobs)
        plan = Plan(plan.first_seed, choice.rung, FLAGS.minutes, speed.closing)
        reporter.line(_reasons(choice, speed))
    reporter.line(f"Size: {_size(plan)}.")
    root.mkdir(parents=True, exist_ok=True)
    plan.write(root)
    return plan


def _size(plan: Plan) -> str:
    rung, first = plan.rung, plan.first_seed
    last = first + rung.seeds - 1
    seeds = f"seed {first}" if rung.seeds == 1 else f"seeds {first} to {last}"
    return f"{seeds}, {rung.updates} updates each"


def _reasons(choice: budget.Choice, speed: budget.Speed) -> str:
    """Returns what was chosen and why, with what is given up."""
    rung = choice.rung
    effect, higher, total = published.load().rungs[rung.updates].stale_effect()
    text = (
        f"An update takes {1e3 * budget.COSTS['float32'][1] * speed.updates:.0f} ms "
        f"here. Chosen: {_counts(rung)}, about {choice.seconds / 60:.1f} minutes more. "
        f"In the study's records the weights have separated by then in "
        f"{rung.chance:.0%} of such repetitions, without which nothing can be said "
        f"about noise, and stale targets had raised the loss in {higher} of {total} "
        f"seeds ({effect:+.0%})."
    )
    if choice.others:
        others = ", ".join(f"{_counts(o)} {o.chance:.0%}" for o in choice.others)
        text += f" Other sizes that fit: {others}."
    if rung.without:
        parts = "; ".join(budget.GIVEN_UP[name] for name in rung.without)
        text += f" Given up for want of time: {parts}. More --minutes include it."
    if not choice.fits:
        text += " This is the smallest size, and it may take longer than was asked for."
    return text


def _counts(rung: budget.Rung) -> str:
    return f"{rung.seeds} seed{'s' * (rung.seeds > 1)} of {rung.updates} updates"


def make_design(plan: Plan) -> runs.Design:
    """Returns the design of a plan, with the flags that every plan shares."""
    setup, rung = _flags.setup(), plan.rung
    if "autoencoder" in rung.without:
        setup["tasks"] = tuple(t for t in setup["tasks"] if t.name != "autoencoder")
    return runs.Design(
        script=_script("train.py"),
        arms=None if FLAGS.arms is None else runs.arm_names(FLAGS.arms),
        without=rung.without,
        seeds=rung.seeds,
        first_seed=plan.first_seed,
        margin=FLAGS.margin,
        threads=FLAGS.threads or None,
        keep_every=published.RUNGS[0] if plan.minutes else 0,
        **setup | {"updates": rung.updates},
    )


def _script(name: str) -> str:
    path = Path(__file__).with_name(name)
    with contextlib.suppress(ValueError):  # started from elsewhere: keep it absolute
        path = path.relative_to(Path.cwd())
    return str(path)


def _list_jobs(design: runs.Design) -> None:
    for name, reason in design.skipped:
        print(f"skipped {name}: {reason}")
    for job in design.runs():
        print(job.command_line)


def measure(reporter: progress.Reporter, design: runs.Design) -> budget.Speed:
    """Times the two programs that every size needs, both at the same time.

    They are compiled for the comparison too: it finds them in the cache on disk.
    """
    names = ("float32", "reduction_order")
    reporter.stage(
        f"measuring how fast this machine is ({' and '.join(names)}: compile, and "
        f"{budget.MEASURED_UPDATES} updates)"
    )
    folder = design.root / "measurement"
    shutil.rmtree(folder, ignore_errors=True)
    design = replace(
        design,
        root=folder,
        arms=(),
        tasks=tuple(task for task in design.tasks if task.name == "prednet"),
        seeds=1,
        updates=budget.MEASURED_UPDATES,
        keep_every=0,
    )
    jobs = [
        replace(job, flags=tuple(flag for flag in job.flags if flag[0] != "examples"))
        for job in design.runs()
        if not job.draw
    ]
    for ended in executor.execute(jobs, processes=FLAGS.jobs):
        if ended.error is not None:
            raise ended.error
    seconds = {}
    for job in jobs:
        taken = records.read_run(job.run_folder(job.seeds[0])).metrics["seconds"]
        # The first update includes compiling.
        seconds[job.arm.name] = float(taken[0]), statistics.median(taken[1:])
    shutil.rmtree(folder)
    return budget.Speed.measured(seconds)


@dataclass(frozen=True)
class Saddle:
    """The trainings from an exact saddle, in one process; their rows are `runs.csv`."""

    folder: Path
    arms: tuple[str, ...]
    updates: int
    seed: int

    @property
    def script(self) -> executor.Script:
        """Returns the process; it keeps the trainings that have finished."""
        arguments = (
            "--programs=symmetric",
            f"--arms={','.join(self.arms)}",
            "--deltas=0",
            f"--seeds={self.seed}",
            f"--updates={self.updates}",
            f"--workdir={self.folder}",
        )
        return executor.Script(
            name="the training from an exact saddle",
            launch=executor.ProcessCommand(
                script=_script("symmetric_start.py"),
                arguments=arguments,
                environment=records.environment() | {"JAX_PLATFORMS": "cpu"},
                threads=1,
            ),
            log=self.folder / executor.LOG,
        )

    def rows(self) -> list[symmetric.Row]:
        """Returns the rows of its trainings; none unless all have finished."""
        path = self.folder / "runs.csv"
        rows = symmetric.read(path) if path.exists() else []
        return rows if len(rows) == len(self.arms) else []

    def state(self) -> progress.State:
        """Returns how far it is, as its log has it."""
        path = self.folder / executor.LOG
        text = path.read_text(errors="replace") if path.exists() else ""
        lines = [line for line in text.splitlines() if ": update " in line]
        if self.rows() or not lines:
            return progress.State(float(bool(self.rows())))
        done = sum(f"update {self.updates} of" in line for line in lines)
        part = int(lines[-1].split(": update ")[1].split()[0]) / self.updates
        share = (done + part * (part < 1)) / len(self.arms)
        return progress.State(min(share, 1.0), lines[-1])


def _saddle(design: runs.Design, plan: Plan) -> Saddle | None:
    """Returns the trainings from a saddle that belong to a plan.

    Its folder is prepared.
    """
    arms, updates = plan.rung.saddle_arms, plan.rung.saddle_updates
    if not plan.minutes:
        updates = max(design.updates, symmetric.BINS)
    if not arms or "prednet" not in [task.name for task in design.tasks]:
        return None
    saddle = Saddle(design.root / "saddle", arms, updates, plan.first_seed)
    about = {**asdict(saddle), "folder": "", "source": runs.source(_script("train.py"))}
    about = {"plan": {**about, "arms": list(arms)}, "versions": records.versions()}
    made_by = saddle.folder / "made_by.json"
    if not made_by.exists() or records.read_json(made_by) != about:
        shutil.rmtree(saddle.folder, ignore_errors=True)
        saddle.folder.mkdir(parents=True)
        records.write_json(made_by, about)
    return saddle


def train(
    reporter: progress.Reporter,
    design: runs.Design,
    plan: Plan,
    deadline: float | None,
) -> tuple[runs.Design, Saddle | None]:
    """Runs what is missing; returns the design and the saddle that were reached.

    Where the time does not suffice, that is a smaller design.
    """
    for name, reason in design.skipped:
        reporter.line(f"skipped {name}: {reason}")
    jobs = design.runs()
    missing, reasons = runs.kept(jobs)
    if line := runs.describe_reasons(reasons):
        reporter.line(line)
    runs.clear(design.root, jobs)
    saddle = _saddle(design, plan)
    # What every claim needs is first; of the rest, what takes longest.
    order = {"float32": 0, "reduction_order": 1, "stale_targets": 2}
    first = [job for job in missing if job.model == "prednet" and job.arm.name in order]
    first.sort(key=lambda job: (order[job.arm.name], job.draw))
    queue: list[runs.Job | executor.Script] = [*first]
    if saddle is not None and not saddle.rows():
        queue.append(saddle.script)
    queue += sorted(
        (job for job in missing if job not in first),
        key=lambda job: (not job.task.windowed, "noise" not in job.chosen),
    )
    works: list[tuple[float, progress.Work]] = [
        (_cost(job), progress.Training(job)) for job in jobs
    ]
    if saddle is not None:
        each = [budget.COSTS[f"saddle {arm}"][1] for arm in saddle.arms]
        works.append((sum(each) * saddle.updates, saddle))
    needed = [job for job in jobs if job.model == "prednet" and job.arm.name in order]
    stop = threading.Event()
    watch = _Watch(reporter, needed, stop, deadline)
    reporter.line(f"{len(queue)} processes, {FLAGS.jobs} at a time")
    reporter.follow(works, watch)
    begun = time.monotonic()
    running = executor.execute(queue, processes=FLAGS.jobs, stop=stop)
    with contextlib.closing(running):
        for number, ended in enumerate(running, 1):
            if ended.error is not None and not stop.is_set():
                raise ended.error
            if ended.error is None:
                passed = progress.clock(time.monotonic() - begun)
                reporter.line(f"[{number}/{len(queue)}] {_ended(ended)} ({passed})")
    if not stop.is_set():
        return design, saddle
    reporter.stage("cutting the runs that the time did not suffice for")
    return shorten(reporter, design, needed, saddle)


def _cost(job: runs.Job) -> float:
    name = job.arm.name if job.task.windowed else "autoencoder"
    _, update = budget.COSTS.get(name, budget.COSTS["reduction_order"])
    return update * job.updates * len(job.seeds)


def _ended(ended: runs.Ended) -> str:
    if isinstance(ended.job, executor.Script):
        return f"finished: {ended.job.name}"
    arm, job = ended.job.arm, ended.job
    draw = f", draw {job.draw}" if arm.draws > 1 else ""
    return f"finished: {job.model} {arm.name}{draw} ({arm.meaning})"


class _Watch:
    """Prints the first finding when the runs have it, and stops them in time."""

    def __init__(
        self,
        reporter: progress.Reporter,
        needed: list[runs.Job],
        stop: threading.Event,
        deadline: float | None,
    ):
        self._reporter, self._needed, self._stop = reporter, needed, stop
        self._deadline, self._late = deadline, False
        self._stale = {job.arm.name: job for job in needed if not job.draw}
        self._found = not {"float32", "stale_targets"} <= set(self._stale)

    def __call__(self) -> None:
        """Looks at the files of the runs."""
        if not self._found:
            self._first_finding()
        if self._deadline is None or self._stop.is_set():
            return
        if time.monotonic() < self._deadline:
            return
        if shortened.largest_rung(self._needed, published.RUNGS) is not None:
            self._stop.set()
        elif not self._late:
            self._late = True
            self._reporter.line(
                f"The {FLAGS.minutes:g} minutes are over, and the runs have not made "
                f"{published.RUNGS[0]} updates yet: this machine is slower than it "
                "was when it was measured. They continue until they have."
            )

    def _first_finding(self) -> None:
        losses = [
            progress.early_loss(self._stale[name])
            for name in ("stale_targets", "float32")
        ]
        if None in losses:
            return
        self._found = True
        stale, control = losses
        change = (
            f"{abs(stale / control - 1):.0%} {'higher' if stale > control else 'lower'}"
        )
        seed = self._stale["float32"].seeds[0]
        self._reporter.line(
            f"First finding: after {progress.FIRST_FINDING} updates of seed {seed} the "
            f"loss is {change} with stale targets, the mistake of the published "
            "script, than with true ones."
        )


def shorten(
    reporter: progress.Reporter,
    design: runs.Design,
    needed: list[runs.Job],
    saddle: Saddle | None,
) -> tuple[runs.Design, Saddle | None]:
    """Returns the largest design that the runs have reached; their rest is cut off."""
    rung = shortened.largest_rung(needed, published.RUNGS)
    assert rung is not None
    seeds = range(design.first_seed, design.first_seed + rung.seeds)
    lost: list[str] = []
    tasks_left, without = list(design.tasks), list(design.without)
    for job in design.runs():
        updates = rung.updates if job.task.windowed else job.updates
        if all(shortened.reached(job, seed) >= updates for seed in seeds):
            for seed in seeds:
                shortened.shorten(job, seed, updates)
        elif job.task.windowed:
            without.append(job.arm.name)
            lost.append(f"{job.model} {job.arm.name}")
        elif job.task in tasks_left:
            tasks_left.remove(job.task)
            lost.append(job.model)
    if saddle is not None and not saddle.rows():
        saddle = None
        lost.append("the start on an exact saddle")
    text = f"The time is over: what is judged is {_counts(rung)}"
    reporter.line(f"{text}, without {', '.join(lost)}." if lost else f"{text}.")
    design = replace(
        design,
        tasks=tuple(tasks_left),
        without=tuple(dict.fromkeys(without)),
        seeds=rung.seeds,
        updates=rung.updates,
    )
    return design, saddle


def judge(design: runs.Design, saddle: Saddle | None) -> dict:
    """Returns the verdict about the runs on disk, next to the published study."""
    study = published.load()
    others = []
    if saddle is not None and (rows := saddle.rows()):
        others.append(study.saddle_claim(rows, design.margin))
    verdict = comparison.judge(design, study.losses(design), others)
    verdict["design"]["command"] = shlex.join(["python", *sys.argv])
    verdict["design"]["flags"] = _cli.chosen_flags()
    return verdict


def _size_record(plan: Plan, design: runs.Design, saddle: Saddle | None) -> dict:
    """Returns what was planned and reached, for the verdict's design."""
    study = published.load()
    differs = {
        task.name: study.other_setting(design, task)
        for task in design.tasks
        if task.windowed
    }
    if design.updates not in study.rungs:
        for reasons in differs.values():
            reasons.append(f"{design.updates} updates instead of 1000, 2000 or 3000")
    return {
        "minutes": plan.minutes,
        "planned_updates": plan.rung.updates,
        "updates": {task.name: design.updates_of(task) for task in design.tasks},
        "window": design.window,
        "networks": {task.name: task.network() for task in design.tasks},
        "data": {task.name: design.data_of(task) for task in design.tasks},
        "given_up": [budget.GIVEN_UP[n] for n in plan.rung.without],
        "saddle_updates": saddle.updates if saddle else None,
        "differs_from_study": differs,
    }


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
            run_recorder.write_examples(place, task, params, source, count)


if __name__ == "__main__":
    _cli.run(main)
