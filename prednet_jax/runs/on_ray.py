"""Runs jobs through Ray, on the machines of a cluster or on this one.

Ray chooses the machine and tries again when a worker or a machine is lost. A Ray task
computes nothing itself: it starts the same child as `executor.execute`, in a temporary
folder of its machine, and sends the files of the finished run back. Only this process
writes them, so no shared file system is needed and a lost try leaves nothing behind.

Only `connect` imports Ray.
"""

import dataclasses
import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from prednet_jax import device, records, tasks
from prednet_jax.errors import UserError
from prednet_jax.runs import executor
from prednet_jax.runs.executor import LOG, Ended, Launch, ProcessError
from prednet_jax.runs.jobs import PACKAGE, Job, source

#: The address of a Ray instance on this machine, started and ended with the sweep.
LOCAL = "local"
# Defaults of Ray that are changed: no usage reports, no notices. By default workers,
# and the processes that they start, have a low priority.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_worker_niceness": "0",
}
_OBJECT_STORE_BYTES = 512 * 2**20
# Seconds in which a cluster has to answer.
_PATIENCE = 10.0
_ACCEPTED = "expected host:port of a cluster, auto, local or none"
# Folder of the runs, relative to the temporary one.
_RUN = "run"
# Ends the given processes when the parent has ended, which holds its standard input.
_GUARD = """
import os, signal, sys
sys.stdin.read()
for pid in map(int, sys.argv[1:]):
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
"""


class KilledError(RuntimeError):
    """A signal ended a child; Ray tries its task again."""


def execute(
    jobs: Iterable[Job], *, address: str = LOCAL, retries: int = 3
) -> Iterator[Ended | None]:
    """Runs jobs; see `executor.execute` for what it yields.

    Args:
        jobs: the processes to run; `demands` says what they need of a machine.
        address: `host:port` of a cluster, `auto` for the cluster that this machine
            belongs to, or `LOCAL`.
        retries: how often a job is tried again when its worker, machine or process was
            lost.

    Raises:
        UserError: Ray is not installed, there is no cluster at the address, or no
            machine of it can run a job.
    """
    jobs = list(jobs)
    ray = connect(address)
    guard = _guard() if address == LOCAL else None
    try:
        check(jobs, ray.nodes(), address)
        task = ray.remote(run_here)
        waiting = {
            task.options(
                name=f"prednet_jax {job.title}",
                max_retries=retries,
                retry_exceptions=[KilledError],
                **demands(job),
            ).remote(launch(job), source(job.script)): job
            for job in jobs
        }
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=1.0)
            if not ready:
                yield None
            for reference in ready:
                job = waiting.pop(reference)
                try:
                    outcome = ray.get(reference)
                except (ray.exceptions.RayError, KilledError) as error:
                    last = " ".join(str(error).strip().splitlines()[-1:])
                    lost = f"{job.title}: lost again and again ({last})"
                    yield Ended(job, ProcessError(lost))
                else:
                    yield _write(job, outcome)
    finally:
        ray.shutdown()
        if guard is not None:
            guard.kill()
            guard.communicate()


def _guard() -> subprocess.Popen | None:
    """Ends what Ray has started here if this process is killed.

    Ray's agents would stay for a minute, while they try to report it. None: the
    processes cannot be listed.
    """
    try:
        listed = subprocess.run(
            ["ps", "-A", "-o", "ppid=,pid=,comm="],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
    pairs = [(int(row[0]), int(row[1])) for row in rows if row[2:] != ["ps"]]
    below = {os.getpid()}
    while more := {pid for parent, pid in pairs if parent in below} - below:
        below |= more
    words = [sys.executable, "-I", "-S", "-c", _GUARD]
    return subprocess.Popen(
        [*words, *map(str, below - {os.getpid()})],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def connect(address: str) -> Any:
    """Returns the module `ray`, connected to a cluster.

    Raises:
        UserError: Ray is not installed, or no cluster answers at the address.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise UserError(
            f"address={address!r}: Ray is not installed; expected it (pip install "
            "'.[sweep]'), or --address=none to do without"
        ) from None
    if match := re.fullmatch(r"(?:ray://)?\[?(.+?)\]?:(\d+)", address):
        try:  # Where nothing answers Ray would try for many minutes.
            where = match[1], int(match[2])
            socket.create_connection(where, _PATIENCE).close()
        except (OSError, OverflowError) as error:
            raise UserError(
                f"address={address!r}: nothing answers there ({error}); {_ACCEPTED}"
            ) from None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        options |= {
            "num_cpus": device.available_threads(),
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
        }
    try:
        with warnings.catch_warnings():
            # JAX warns of every fork; the processes that Ray forks become programs of
            # its own at once.
            warnings.filterwarnings("ignore", r"os\.fork\(\)", RuntimeWarning)
            ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"address={address!r}: no Ray there ({first}); {_ACCEPTED}"
        ) from None
    return ray


def demands(job: Job) -> dict[str, Any]:
    """The resources that a job requests, as options of a Ray task.

    One CPU per thread, a GPU if its arm needs one, and the custom resource `hardware`
    if that has a colon, as in `gpu:h200`.
    """
    return {
        "num_cpus": job.threads or 1,
        "num_gpus": int(job.arm.gpu),
        "resources": {job.hardware: 1} if ":" in job.hardware else {},
    }


def check(jobs: Iterable[Job], nodes: Iterable[dict], address: str) -> None:
    """Refuses a job that no machine can run; Ray would wait for a machine for ever.

    `nodes` is the result of `ray.nodes`.
    """
    machines = [node["Resources"] for node in nodes if node["Alive"]]
    for job in jobs:
        asked = demands(job)
        wanted = {"CPU": asked["num_cpus"], "GPU": asked["num_gpus"]}
        wanted = {k: v for k, v in (wanted | asked["resources"]).items() if v}
        if not any(all(m.get(k, 0) >= v for k, v in wanted.items()) for m in machines):
            text = ", ".join(f"{k}={v}" for k, v in wanted.items())
            raise UserError(
                f"{job.title}: no machine at address={address!r} has {text}; expected "
                "one started with `ray start --num-cpus=N --resources='{\"NAME\": N}'`"
            )


def launch(job: Job) -> Launch:
    """What to start on a machine; the script is named relative to its checkout."""
    here = executor.launch(job, _RUN)
    environment = dict(here.environment)
    if job.model not in tasks.NAMED:
        # The child has another working directory; the task's module lies in ours.
        environment["PYTHONPATH"] = os.getcwd()
    script = Path(job.script).resolve().relative_to(PACKAGE.parent)
    return dataclasses.replace(here, script=str(script), environment=environment)


def run_here(start: Launch, expected: str) -> dict[str, Any]:
    """The Ray task: runs a job in a child of this worker.

    `start` is the result of `launch`, `expected` of `jobs.source` where the sweep was
    started. If a signal ended the child, Ray tries again (`KilledError`).

    Returns:
        `status` of the child and `files`, `{path: content}` of its log and of its runs.
        If nothing was run, only `refused`, the reason.
    """
    host = socket.gethostname()
    script = str(PACKAGE.parent / start.script)
    here = source(script)
    if here != expected:
        return {
            "refused": f"{host}: source {here[:12]} in {PACKAGE.parent}; "
            f"expected {expected[:12]}, the same commit on every machine"
        }
    # The device that Ray has reserved for this task.
    reserved = {k: v for k, v in os.environ.items() if k == "CUDA_VISIBLE_DEVICES"}
    environment = dict(start.environment) | reserved
    mine = dataclasses.replace(start, script=script, environment=environment)
    with tempfile.TemporaryDirectory(prefix="prednet_jax_run_") as folder:
        root = Path(folder)
        with executor.started(mine, root / LOG, temporary=root) as child:
            status = child.wait()
        if executor.killed(status):
            raise KilledError(f"status {status} on {host}")
        files = (file for file in root.rglob("*") if file.is_file())
        content = {str(f.relative_to(root)): f.read_bytes() for f in files}
        return {"status": status, "files": content}


def _write(job: Job, outcome: dict[str, Any]) -> Ended:
    """Writes the files that `run_here` has sent."""
    if "refused" in outcome:
        return Ended(job, UserError(outcome["refused"]))
    executor.make_room(job)
    for name, content in outcome["files"].items():
        path = job.folder / Path(name).relative_to(_RUN if name != LOG else "")
        path.parent.mkdir(parents=True, exist_ok=True)
        records.write_bytes(path, content)
    return Ended(job, executor.ending(job, outcome["status"]))
