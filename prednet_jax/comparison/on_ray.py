"""Runs jobs on the machines of a Ray cluster, or of this machine through Ray.

Ray chooses the machine, and tries again when a worker or a machine is lost; nothing is
computed in its workers. A task starts the very child that `execution.execute` starts,
in a temporary folder of its machine, and sends back the files of the finished run. They
are written here, once, so no file system is shared and a lost try leaves nothing.

Ray is imported by `execute` alone.
"""

import logging
import os
import socket
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from prednet_jax import device, records, tasks
from prednet_jax.comparison import children, execution, fingerprints
from prednet_jax.comparison.execution import LOG, Ended, ProcessError
from prednet_jax.comparison.jobs import Job
from prednet_jax.errors import UserError

#: A Ray of this machine's own, started for the sweep and ended with it.
LOCAL = "local"
# What Ray would say or send of its own accord.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    # Workers would be of low priority, and so would what they start.
    "RAY_worker_niceness": "0",
}
_OBJECT_STORE_BYTES = 512 * 2**20
_RUN = "run"


class KilledError(RuntimeError):
    """A signal ended a child; its task is tried again."""


def execute(
    jobs: Iterable[Job], *, address: str = LOCAL, retries: int = 3
) -> Iterator[Ended | None]:
    """Runs jobs; see `execution.execute` for what it yields.

    A job asks for as many CPUs as it has threads, for a GPU if its arm does, and for
    the custom resource `hardware` where that has a colon, as in `gpu:h200`.

    Args:
        jobs: the processes to run.
        address: `host:port` of a cluster, `auto` for the one of this machine, or
            `LOCAL`.
        retries: how often a job is tried again whose worker, machine or process was
            lost.

    Raises:
        UserError: there is no Ray, no cluster, or no machine for a job.
    """
    jobs = list(jobs)
    ray = connect(address)
    try:
        check(jobs, ray.nodes(), address)
        task = ray.remote(run_here)
        waiting = {
            task.options(
                name=f"prednet_jax {job.title}",
                max_retries=retries,
                retry_exceptions=[KilledError],
                **demands(job),
            ).remote(
                launch(job), _inside(job.script), fingerprints.source(job.script)
            ): job
            for job in jobs
        }
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=1.0)
            if not ready:
                yield None
            for reference in ready:
                yield _received(waiting.pop(reference), ray, reference)
    finally:
        ray.shutdown()


def connect(address: str) -> Any:
    """Ray, connected to a cluster.

    Raises:
        UserError: it is not installed, or nothing answers there.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise UserError(
            f"address={address!r}: Ray is not installed; expected it (pip install "
            "'prednet-jax[sweep]'), or --address=none to do without"
        ) from None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        options |= {
            "num_cpus": device.available_threads(),
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
        }
    try:
        ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"address={address!r}: no Ray there ({first}); expected host:port of a "
            "cluster, auto, local or none"
        ) from None
    return ray


def demands(job: Job) -> dict[str, Any]:
    """What a job asks of a machine, as options of a Ray task."""
    named = {job.hardware: 1} if ":" in job.hardware else {}
    return {
        "num_cpus": job.threads or 1,
        "num_gpus": int(job.arm.gpu),
        "resources": named,
    }


def check(jobs: Iterable[Job], nodes: Iterable[dict], address: str) -> None:
    """Refuses a job that no machine could ever take: Ray would wait for one for ever.

    Args:
        jobs: the processes to run.
        nodes: what `ray.nodes` gave.
        address: of the cluster, for the message.

    Raises:
        UserError: there is such a job.
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


def launch(job: Job) -> children.Launch:
    """What is sent to the machine; the script is that of the machine's own checkout."""
    environment = job.environment()
    if job.model not in tasks.NAMED:
        # The child works elsewhere; the module is looked for where we are.
        environment["PYTHONPATH"] = os.getcwd()
    return children.Launch(
        script="",
        arguments=(*job.arguments(_RUN), "--noprogress"),
        environment=environment,
        threads=job.threads,
    )


def _inside(script: str) -> str:
    """Path of a script in this checkout."""
    return str(Path(script).resolve().relative_to(fingerprints.PACKAGE.parent))


def run_here(start: children.Launch, script: str, source: str) -> dict[str, Any]:
    """The task: runs a job in a child of this worker.

    Args:
        start: from `launch`.
        script: path of the script in a checkout.
        source: `fingerprints.source` of where the sweep was started.

    Returns:
        `status` of the child, `host`, and `files` by path: every file of its runs and
        its log. Without `status`: why nothing was run, as `refused`.

    Raises:
        KilledError: a signal ended the child.
    """
    host = socket.gethostname()
    path = fingerprints.PACKAGE.parent / script
    here = fingerprints.source(str(path))
    if here != source:
        return {
            "refused": f"{host}: source {here[:12]} in {fingerprints.PACKAGE.parent}; "
            f"expected {source[:12]}, the same commit on every machine"
        }
    own = dict(start.environment)
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        # The device that Ray has reserved for this task.
        own["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
    mine = children.Launch(
        script=str(path),
        arguments=start.arguments,
        environment=own,
        threads=start.threads,
    )
    with tempfile.TemporaryDirectory(prefix="prednet_jax_run_") as folder:
        root = Path(folder)
        with children.started(mine, root / LOG, temporary=root) as child:
            status = child.wait()
        if children.killed(status):
            raise KilledError(f"status {status} on {host}")
        found = (file for file in root.rglob("*") if file.is_file())
        return {
            "status": status,
            "host": host,
            "files": {str(f.relative_to(root)): f.read_bytes() for f in found},
        }


def _received(job: Job, ray: Any, reference: Any) -> Ended:
    """What became of a job."""
    try:
        found = ray.get(reference)
    except (ray.exceptions.RayError, KilledError) as error:
        last = str(error).strip().splitlines()[-1:]
        lost = f"{job.title}: lost again and again ({' '.join(last)})"
        return Ended(job, ProcessError(lost))
    return _write(job, found)


def _write(job: Job, found: dict[str, Any]) -> Ended:
    """Writes what `run_here` has sent."""
    if "refused" in found:
        return Ended(job, UserError(found["refused"]))
    execution.make_room(job)
    for name, content in found["files"].items():
        path = job.folder / Path(name).relative_to(_RUN if name != LOG else "")
        path.parent.mkdir(parents=True, exist_ok=True)
        records.write_bytes(path, content)
    return Ended(job, execution.ending(job, found["status"]))
