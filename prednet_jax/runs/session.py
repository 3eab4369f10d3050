"""Runs the trainings of a comparison within its time, and shows their progress."""

import contextlib
import shutil
import statistics
import threading
import time
from dataclasses import replace

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
        replace(job, settings=job.settings.replaced(examples=0))
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
        seconds[job.arm.name] = float(taken[0]), statistics.median(taken[1:])
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
    # Jobs that every claim needs come first; then the longest ones.
    order = {"float32": 0, "reduction_order": 1, "stale_targets": 2}
    first = [job for job in missing if job.model == "prednet" and job.arm.name in order]
    first.sort(key=lambda job: (order[job.arm.name], job.draw))
    queue: list[Job | executor.Script] = [*first]
    if saddle is not None and not saddle.rows():
        queue.append(saddle.script)
    rest = [job for job in missing if job not in first]
    rest.sort(key=lambda job: (not job.task.windowed, job.arm.noise == "none"))
    queue += rest
    works: list[tuple[float, progress.Work]] = [
        (_cost(job), progress.Training(job)) for job in jobs
    ]
    if saddle is not None:
        each = [budget.COSTS[f"saddle {arm}"][1] for arm in saddle.arms]
        works.append((sum(each) * saddle.updates, saddle))
    needed = [job for job in jobs if job.model == "prednet" and job.arm.name in order]
    stop = threading.Event()
    watch = _Watch(reporter, needed, stop, deadline)
    reporter.line(f"{len(queue)} processes, {processes} at a time")
    reporter.follow(works, watch)
    begun = time.monotonic()
    running = executor.execute(queue, processes=processes, stop=stop)
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


def _cost(job: Job) -> float:
    name = job.arm.name if job.task.windowed else "autoencoder"
    _, update = budget.COSTS.get(name, budget.COSTS["reduction_order"])
    return update * job.updates * len(job.seeds)


def _ended(ended: executor.Ended) -> str:
    if isinstance(ended.job, executor.Script):
        return f"finished: {ended.job.name}"
    arm, job = ended.job.arm, ended.job
    draw = f", draw {job.draw}" if arm.draws > 1 else ""
    return f"finished: {job.model} {arm.name}{draw} ({arm.meaning})"


class _Watch:
    """Prints the first finding when the runs have it, and stops them in time."""

    def __init__(
        self,
        reporter: Reporter,
        needed: list[Job],
        stop: threading.Event,
        deadline: float | None,
    ):
        self._reporter, self._needed, self._stop = reporter, needed, stop
        self._deadline, self._late = deadline, False
        self._stale = {job.arm.name: job for job in needed if not job.draw}
        self._found = not {"float32", "stale_targets"} <= set(self._stale)

    def __call__(self) -> None:
        """Checks the files of the runs."""
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
                "The time is over, and the runs have not made "
                f"{published.RUNGS[0]} updates yet: this machine is slower than it "
                "was when it was measured. They continue until they have."
            )

    def _first_finding(self) -> None:
        stale = progress.early_loss(self._stale["stale_targets"])
        control = progress.early_loss(self._stale["float32"])
        if stale is None or control is None:
            return
        self._found = True
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
    reporter: Reporter,
    design: Design,
    needed: list[Job],
    saddle: Saddle | None,
) -> tuple[Design, Saddle | None]:
    """Returns the largest design that the runs have reached; cuts off later updates."""
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
    text = f"The time is over: what is judged is {budget.counts(rung)}"
    reporter.line(f"{text}, without {', '.join(lost)}." if lost else f"{text}.")
    design = replace(
        design,
        tasks=tuple(tasks_left),
        without=tuple(dict.fromkeys(without)),
        seeds=rung.seeds,
        updates=rung.updates,
    )
    return design, saddle
