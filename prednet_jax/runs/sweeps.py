"""A sweep: networks x arms x settings x seeds, one process per run, through Ray.

docs/runs.md describes where a run lies and when it is made again. A Ray task
computes nothing itself: it starts the same child as `executor.execute`, in a temporary
folder of its machine, and sends the files of the finished run back. Only this process
writes them, so a lost try leaves nothing behind. Only `connect` imports Ray.
"""

import dataclasses
import io
import itertools
import json
import logging
import os
import re
import shlex
import signal
import socket
import tempfile
import threading
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax import process, records, tasks
from prednet_jax.errors import UserError, check_int, each_once
from prednet_jax.runs import arms, executor, jobs, store
from prednet_jax.runs.arms import Arm
from prednet_jax.runs.design import Setup
from prednet_jax.runs.executor import LOG, Ended, ProcessCommand, ProcessError, Running
from prednet_jax.runs.jobs import PACKAGE, Job
from prednet_jax.tasks import Task

#: A row of the merged result.
Row = dict[str, str | float | None]
RESULT = "runs.parquet"
#: The address of a Ray instance on this machine, started and ended with the sweep.
LOCAL = "local"
#: Measurements in a manifest that differ between equal runs; they get own columns.
TIMINGS = ("wall_seconds", "processor_seconds_per_second")
ENDPOINTS = ("loss", "last_frame_loss", "copy_last_frame_loss", "grad_norm")
_DIGESTS = ("initial_params_sha256", "data_order_sha256", "final_params_sha256")
# Flags that the sweep sets itself, which no setting may have.
_OWN = (
    *("batch", "draw", "model", "noise", "overwrite", "replicas", "resume", "seed"),
    *("seeds", "threads", "workdir"),
)
# Defaults of Ray that are changed: no usage reports, no notices. By default workers,
# and the processes that they start, have a low priority.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_worker_niceness": "0",
}
# How often a run is tried again, seconds in which a cluster has to answer, and the
# folder of a run in the temporary one.
_RETRIES, _PATIENCE, _RUN = 3, 10.0, "run"


@dataclass(frozen=True, kw_only=True)
class Sweep(Setup):
    """The design of a sweep.

    Attributes:
        arms: names of arms.
        seeds: root seeds.
        settings: further flags of `train.py`; each setting is a text
            `name=value name=value`, with quotes as a shell reads them.
        threads: number of processors for a run on a CPU, unless its arm gives another.
            Defaults to all.
    """

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: tuple[str, ...] = ("",)
    threads: int | None = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threads is not None:
            check_int("threads", self.threads, 1)
        for name in ("arms", "seeds", "settings"):
            each_once(name, getattr(self, name))
        for seed in self.seeds:
            check_int("seeds", seed, 0, 2**32 - 1)
        for text, arm in itertools.product(self.settings, self.chosen):
            if setting_flags(text).keys() & arm.changes.keys():
                raise UserError(
                    f"setting={text!r} changes a flag that the arm {arm.name} sets; "
                    "remove it, or the arm"
                )

    @cached_property
    def chosen(self) -> tuple[Arm, ...]:
        """Returns the arms."""
        return tuple(map(arms.arm, self.arms))

    def jobs(self) -> list[Job]:
        """Returns every run seed by seed: interrupted sweeps then have whole seeds."""
        return [
            self._job(task, arm, seed, setting)
            for task in self.tasks
            for seed in self.seeds
            for arm in self.chosen
            for setting in self.settings
        ]

    def _job(self, task: Task, arm: Arm, seed: int, setting: str) -> Job:
        threads = 0 if arm.gpu else self.threads or 0
        job = Job(
            task=task,
            arm=arm,
            seeds=(seed,),
            folder=self.root,
            script=self.script,
            settings=self.run_settings(task, arm, threads=threads),
            setting=setting,
        )
        name = store.key(jobs.facts(job, seed))[:12]
        folder = self.root / "runs" / task.name / arm.name / name
        return dataclasses.replace(job, folder=folder)


def setting_flags(text: str) -> dict[str, str]:
    """Returns the flags of `train.py` that a setting stands for, each named once."""
    names: set[str] = set()
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"setting={text!r}: {error}; expected closed quotes") from None
    for word in words:
        name = word.partition("=")[0]
        if name in {*_OWN, *names} or not re.fullmatch(r"[a-z]\w*=.+", word):
            raise UserError(
                f"setting={text!r}: {word}; expected name=value of train.py, each "
                f"once, none of {', '.join(_OWN)}"
            )
        names.add(name)
    return jobs.setting_flags(text)


class KilledError(RuntimeError):
    """A signal ended a child; Ray tries its task again."""


def execute(planned: Iterable[Job], *, address: str = LOCAL) -> Running:
    """Executes jobs as `executor.execute` does; each job gets a CPU per thread."""
    planned = list(planned)
    if not planned:
        return
    ray = connect(address)
    try:
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for job in planned:
            wanted = {"CPU": job.threads or 1, "GPU": int(job.arm.gpu)}
            if not any(
                all(m.get(k, 0) >= n for k, n in wanted.items()) for m in machines
            ):
                raise UserError(
                    f"{job.title}: no machine at address={address!r} has {wanted}"
                )
        again = {"max_retries": _RETRIES, "retry_exceptions": [KilledError]}
        task = ray.remote(**again)(run_here)
        waiting = {
            task.options(
                name=job.title, num_cpus=job.threads or 1, num_gpus=int(job.arm.gpu)
            ).remote(launch(job), jobs.source(job.script)): job
            for job in planned
        }
        while waiting:
            (reference,), _ = ray.wait(list(waiting))
            job = waiting.pop(reference)
            try:
                outcome = ray.get(reference)
            except (ray.exceptions.RayError, KilledError) as error:
                last = " ".join(str(error).strip().splitlines()[-1:])
                lost = f"{job.title}: lost again and again ({last})"
                yield Ended(job, ProcessError(lost))
            else:
                yield receive(job, outcome)
    finally:
        ray.shutdown()


def connect(address: str) -> Any:
    """Returns the module `ray`, connected to a cluster."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    options: dict = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        options |= {"num_cpus": process.available_threads(), "include_dashboard": False}
        options |= {"object_store_memory": 512 * 2**20}
    try:
        if match := re.fullmatch(r"(?:ray://)?\[?(.+?)\]?:(\d+)", address):
            # Where nothing answers Ray would try for many minutes.
            where = match[1], int(match[2])
            socket.create_connection(where, _PATIENCE).close()
        with warnings.catch_warnings():
            # JAX warns of every fork; the processes that Ray forks become programs of
            # its own at once.
            warnings.filterwarnings("ignore", r"os\.fork\(\)", RuntimeWarning)
            ray.init(address=address, **options)
        # Ray's own handler would end in a dump of its stack, after seconds.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.default_int_handler)
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"address={address!r}: no Ray answers there ({first}); expected host:port "
            "of a cluster, auto or local"
        ) from None
    return ray


def launch(job: Job) -> ProcessCommand:
    """Returns the command to start on a machine.

    The script is named relative to its checkout.
    """
    command = executor.launch(job, _RUN)
    environment = dict(command.environment)
    if job.model not in tasks.NAMED:
        # The child has another working directory; the task's module lies in ours, or on
        # our path.
        path = filter(None, (os.getcwd(), os.environ.get("PYTHONPATH")))
        environment["PYTHONPATH"] = os.pathsep.join(path)
    script = Path(job.script).resolve().relative_to(PACKAGE.parent)
    return dataclasses.replace(command, script=str(script), environment=environment)


@dataclass(frozen=True, kw_only=True)
class RemoteOutcome:
    """A run on another machine.

    Attributes:
        refused: reason why it was not started, or an empty text.
        status: exit status of the child.
        files: contents of its log and of the files of its runs, by path.
    """

    refused: str = ""
    status: int = 0
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)


def run_here(start: ProcessCommand, expected: str) -> RemoteOutcome:
    """Executes the command that `launch` gave, in a child of this Ray worker.

    `expected` is `jobs.source` where the sweep was started.
    """
    host = socket.gethostname()
    script = str(PACKAGE.parent / start.script)
    source = jobs.source(script)
    if source != expected:
        return RemoteOutcome(
            refused=f"{host}: source {source[:12]} in {PACKAGE.parent}; expected "
            f"{expected[:12]}, the same commit on every machine"
        )
    # The device that Ray has reserved for this task.
    reserved = {k: v for k, v in os.environ.items() if k == "CUDA_VISIBLE_DEVICES"}
    environment = dict(start.environment) | reserved
    mine = dataclasses.replace(start, script=script, environment=environment)
    with tempfile.TemporaryDirectory(prefix="prednet_jax_run_") as folder:
        root = Path(folder)
        with executor.started(mine, root / LOG, folder=root) as child:
            status = child.wait()
        if executor.killed(status):
            raise KilledError(f"status {status} on {host}")
        paths = (root / LOG, *(root / _RUN).rglob("*"))
        files = (file for file in paths if file.is_file())
        content = {str(f.relative_to(root)): f.read_bytes() for f in files}
        return RemoteOutcome(status=status, files=content)


def receive(job: Job, outcome: RemoteOutcome) -> Ended:
    """Writes the files that `run_here` has sent."""
    if outcome.refused:
        return Ended(job, UserError(outcome.refused))
    executor.make_room(job)
    for name, content in outcome.files.items():
        path = job.folder / Path(name).relative_to(_RUN if name != LOG else "")
        path.parent.mkdir(parents=True, exist_ok=True)
        records.write_bytes(path, content)
    return Ended(job, executor.ending(job, outcome.status))


def row(job: Job, last: float) -> Row:
    """Returns a job of one seed, whose run has ended, as a row of the merged result.

    Metrics are averaged over the `last` fraction of the updates.
    """
    (seed,) = job.seeds
    run = jobs.verified(job, seed)
    count = max(1, round(last * job.updates))
    loss = run.metrics["loss"]
    diverged = run.manifest.failure is not None
    ends: dict[str, float | None] = dict.fromkeys(ENDPOINTS)
    for name in ends:
        mean = run.metrics.get(name, np.array([np.nan]))[-count:].mean()
        if not diverged and np.isfinite(mean):
            ends[name] = float(mean)
    lost = np.flatnonzero(~np.isfinite(loss))
    diverged_at = int(lost[0]) + 1 if len(lost) else len(loss) if diverged else None
    manifest = run.manifest.to_json()
    digests = {name: manifest.get(name) for name in _DIGESTS}
    timings = {name: manifest.pop(name, None) for name in TIMINGS}
    return {
        "model": job.model,
        "arm": job.arm.name,
        "setting": job.setting,
        "seed": seed,
        "settings": json.dumps(job.flags, sort_keys=True),
        "updates": job.updates,
        **ends,
        "diverged_at": diverged_at,
        "fingerprint": store.key(jobs.facts(job, seed)),
        **digests,
        **timings,
        "manifest": json.dumps(manifest, sort_keys=True),
    }


def merge(path: Path, rows: Iterable[Row]) -> None:
    """Writes the merged result as one Parquet file."""
    import pyarrow
    from pyarrow import parquet

    text, number, whole_number = pyarrow.string(), pyarrow.float64(), pyarrow.int64()
    kinds = dict.fromkeys(("seed", "updates", "diverged_at"), whole_number)
    kinds |= dict.fromkeys((*ENDPOINTS, *TIMINGS), number)
    rows = list(rows)
    schema = pyarrow.schema([(name, kinds.get(name, text)) for name in rows[0]])
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema), buffer)
    records.write_bytes(path, buffer.getvalue())
