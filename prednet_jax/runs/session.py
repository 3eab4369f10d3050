"""Runs the trainings of a comparison within its time, and shows their progress."""

import contextlib
import functools
import shutil
import statistics
import threading
import time
from dataclasses import dataclass, replace

from prednet_jax import records
from prednet_jax.runs import (
    budget,
    executor,
    progress,
    published,
    saddle_runs,
    shortened,
)
from prednet_jax.runs.design import Design
from prednet_jax.runs.jobs import Job, describe_reasons, split_finished
from prednet_jax.runs.progress import Reporter
from prednet_jax.runs.saddle_runs import Saddle


def measure(reporter: Reporter, design: Design, processes: int) -> budget.Speed:
    """Times the two programs that every size needs, both at the same time.

    They are compiled for the comparison too: it finds them in the cache on disk.
    """
    reporter.stage(
        f"measuring the speed of this machine: {' and '.join(budget.MEASURED)} are "
        "compiled and trained for a moment, at the same time"
    )
    folder = design.root / "measurement"
    shutil.rmtree(folder, ignore_errors=True)
    design = replace(
        design,
        root=folder,
        arms=(),
        tasks=tuple(task for task in design.tasks if task.name == "prednet"),
        seeds=1,
        updates=1000,
        keep_every=0,
    )
    jobs = [
        job.replaced(examples=0, updates=budget.MEASURED[job.arm.name])
        for job in design.runs()
        if not job.draw
    ]
    for ended in executor.execute(jobs, processes=processes):
        if ended.error is not None:
            raise ended.error
    seconds = {}
    for job in jobs:
        taken = records.read_run(job.run_folder(job.seeds[0])).metrics["seconds"]
        # The first update includes compiling.
        last = taken[-budget.TIMED_UPDATES :]
        seconds[job.arm.name] = float(taken[0]), statistics.median(last)
    shutil.rmtree(folder)
    return budget.Speed.measured(seconds)


def train(
    reporter: Reporter,
    design: Design,
    saddle: Saddle | None,
    *,
    processes: int,
    deadline: float | None,
) -> tuple[Design, Saddle | None]:
    """Executes the missing runs; returns the design and the saddle that were reached.

    If the time does not suffice, a smaller design is returned.
    """
    for name, reason in design.skipped:
        reporter.line(f"skipped {name}: {reason}")
    jobs = design.runs()
    missing, reasons = split_finished(jobs)
    if line := describe_reasons(reasons):
        reporter.line(line)
    executor.clear(design.root, jobs)
    if saddle is not None:
        saddle_runs.prepare(saddle)
    missing.sort(key=_priority)
    queue: list[Job | executor.Script] = [j for j in missing if j.task.windowed]
    works: list[tuple[float, progress.Work]] = [
        (_cost(job), functools.partial(progress.training_state, job)) for job in jobs
    ]
    if saddle is not None:
        queue += saddle.scripts()
        for arm in saddle.arms:
            cost = budget.COSTS[f"saddle {arm}"][1] * saddle.updates
            works.append((cost, functools.partial(saddle.state, arm)))
    queue += [job for job in missing if not job.task.windowed]
    needed = [job for job in jobs if job.model == "prednet" and job.arm.name in NEEDED]
    stop = threading.Event()
    watch = _Watch(reporter, needed, stop, deadline)
    reporter.line(f"{len(queue)} trainings, {processes} at a time:")
    for name, meaning in dict(map(_described, queue)).items():
        reporter.line(f"  {name}: {meaning}")
    reporter.follow(works, watch)
    running = executor.execute(queue, processes=processes, stop=stop)
    with contextlib.closing(running):
        for number, ended in enumerate(running, 1):
            if ended.error is not None and not stop.is_set():
                raise ended.error
            if ended.error is None:
                done = f"finished {number} of {len(queue)}"
                reporter.event(f"{done}: {ended.job.name}")
    if not stop.is_set():
        return design, saddle
    reporter.stage("taking the part of the runs that was reached in time")
    return shorten(reporter, design, needed, saddle)


#: Arms that every claim about PredNet needs, in the order in which they start.
NEEDED = ("float32", "reduction_order", "stale_targets")


def _priority(job: Job) -> tuple[bool, int, bool, int]:
    """Returns the place of a job in the queue: needed ones first, then long ones."""
    name = job.arm.name
    rank = NEEDED.index(name) if name in NEEDED else len(NEEDED)
    return not job.task.windowed, rank, job.arm.noise == "none", job.draw


def _cost(job: Job) -> float:
    name = job.arm.name if job.task.windowed else job.task.name
    _, update = budget.COSTS.get(name, budget.COSTS["reduction_order"])
    return update * job.updates * len(job.seeds)


def _described(job: Job | executor.Script) -> tuple[str, str]:
    """Returns the name and the meaning of a training, the same for its repeats."""
    if isinstance(job, Job):
        return f"{job.model} {job.arm.name}", job.arm.meaning
    return job.name, saddle_runs.MEANINGS[job.name]


@dataclass
class _Watch:
    """Prints the first finding when the runs have it, and stops them in time."""

    reporter: Reporter
    needed: list[Job]
    stop: threading.Event
    deadline: float | None
    found: bool = False
    late: bool = False

    def __call__(self) -> None:
        """Checks the files of the runs."""
        self.found = self.found or self._first_finding()
        if self.deadline is None or time.monotonic() < self.deadline:
            return
        if shortened.largest_size(self.needed, published.UPDATES) is not None:
            self.stop.set()
        elif not self.late:
            self.late = True
            self.reporter.event(
                f"The runs have not made {published.UPDATES[0]} updates, the smallest "
                "number that can be judged, and judging takes the time that is left. "
                "So they continue, and the comparison takes longer than it should."
            )

    def _first_finding(self) -> bool:
        first = {job.arm.name: job for job in self.needed if not job.draw}
        if not {"float32", "stale_targets"} <= first.keys():
            return True
        stale = progress.early_loss(first["stale_targets"])
        control = progress.early_loss(first["float32"])
        if stale is None or control is None:
            return False
        change = (
            f"{abs(stale / control - 1):.0%} {'higher' if stale > control else 'lower'}"
        )
        self.reporter.event(
            f"First finding, of one seed ({first['float32'].seeds[0]}): after "
            f"{progress.FIRST_FINDING} updates the loss is {change} with the mistake "
            "of the article's script (stale targets) than without."
        )
        return True


def shorten(
    reporter: Reporter, design: Design, needed: list[Job], saddle: Saddle | None
) -> tuple[Design, Saddle | None]:
    """Returns the largest design that the runs have reached; cuts off later updates."""
    size = shortened.largest_size(needed, published.UPDATES)
    assert size is not None
    seeds = range(design.first_seed, design.first_seed + size.seeds)
    lost: list[str] = []
    tasks_left, without = list(design.tasks), list(design.without)
    for job in design.runs():
        updates = size.updates if job.task.windowed else job.updates
        if all(shortened.reached(job, seed) >= updates for seed in seeds):
            for seed in seeds:
                shortened.shorten(job, seed, updates)
        elif job.task.windowed:
            without.append(job.arm.name)
            lost.append(f"{job.model} {job.arm.name}")
        elif job.task in tasks_left:
            tasks_left.remove(job.task)
            lost.append(job.model)
    if saddle is not None:
        reached = saddle.finished()
        arms = reached.arms if reached else ()
        lost += [f"saddle {arm}" for arm in saddle.arms if arm not in arms]
        saddle = reached
    text = f"The time is over. Judged are {budget.counts(size)}"
    text += f", without {', '.join(lost)}" * bool(lost)
    if lost or (size.seeds, size.updates) != (design.seeds, design.updates):
        reporter.event(f"{text}.")
    design = replace(
        design,
        tasks=tuple(tasks_left),
        without=tuple(dict.fromkeys(without)),
        seeds=size.seeds,
        updates=size.updates,
    )
    return design, saddle
