"""One process of a comparison or a sweep: its runs, its command, and its facts.

The facts of a run (`store`) are its flags, the content of the data and weights that
they name by a path, environment variables, the source of the package, versions and the
kind of device.
"""

import functools
import hashlib
import importlib.util
import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prednet_jax import data, device, provenance, records, tasks
from prednet_jax.runs.arms import Arm
from prednet_jax.tasks import Task

PACKAGE = Path(__file__).parents[1]
_VERSIONS = ("jax", "jaxlib", "flax", "optax", "numpy")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One process: one draw of one arm of one network, one seed after the other.

    Attributes:
        task: the network.
        arm: the arm.
        draw: number of the noise draw, from 0.
        seeds: root seeds, trained one after the other.
        folder: directory of the runs, which are `folder/seed_N`.
        script: path of `train.py`, as the command names it.
        flags: flags of the script, with those of the arm; the last of two equal names
            counts.
        threads: number of processors that it may use; None: all.
        hardware: the machine that it needs, such as `gpu:h200`; empty: any.
        setting: flags that tell it apart from jobs of equal model, arm, seed, draw and
            hardware.
    """

    task: Task
    arm: Arm
    draw: int
    seeds: tuple[int, ...]
    folder: Path
    script: str
    flags: tuple[str, ...]
    threads: int | None = None
    hardware: str = ""
    setting: str = ""

    @property
    def model(self) -> str:
        """Name of the network."""
        return self.task.name

    @property
    def command(self) -> tuple[str, ...]:
        """Arguments of the Python interpreter."""
        return (self.script, *self.arguments(self.folder))

    def arguments(self, workdir: str | os.PathLike) -> tuple[str, ...]:
        """Arguments of the script, for runs in `workdir/seed_N`."""
        seeds = ",".join(map(str, self.seeds))
        return (*self.flags, f"--seeds={seeds}", f"--workdir={os.fspath(workdir)}")

    @property
    def shown(self) -> str:
        """The exact command line, with the environment in front."""
        variables = [f"{k}={v}" for k, v in self.arm.environment]
        return shlex.join([*variables, "python", *self.command])

    @property
    def title(self) -> str:
        """Network, arm, draw, hardware and setting, for one line of text."""
        parts = [self.model, self.arm.name]
        parts += [f"draw {self.draw}"] if self.draw else []
        parts += [part for part in (self.hardware, self.setting) if part]
        return " ".join(parts)

    @property
    def chosen(self) -> dict[str, str]:
        """The flags by name."""
        found = (flag.removeprefix("--").partition("=") for flag in self.flags)
        return {name: value for name, _, value in found}

    @property
    def updates(self) -> int:
        """Number of updates of each run."""
        return int(self.chosen["updates"])

    @property
    def device(self) -> str:
        """Kind of the device, with the number of threads for a CPU."""
        if self.arm.gpu:
            return self.hardware or _gpu() or "gpu"
        return f"cpu, threads {self.threads or device.available_threads()}"

    def environment(self) -> dict[str, str]:
        """The variables that matter: those of this process, overridden by the arm's.

        Call it in the process that was started by the user; a Ray worker's environment
        differs.
        """
        return provenance.environment() | dict(self.arm.environment)

    def numbers_environment(self) -> dict[str, str]:
        """The part of `environment` that may change numbers."""
        return provenance.of_numbers(self.environment())

    def of(self, *seeds: int) -> "Job":
        """The same job for some of its seeds only."""
        return replace(self, seeds=seeds)

    def run_folder(self, seed: int) -> Path:
        """The directory of one seed's run."""
        return self.folder / f"seed_{seed}"


def facts(job: Job, seed: int) -> dict[str, Any]:
    """What determines the numbers of a run.

    Args:
        job: the job.
        seed: one of its seeds.

    Raises:
        UserError: the frames cannot be opened.
    """
    return {
        "flags": dict(sorted(job.chosen.items())),
        "files": _files(job),
        "seed": seed,
        "environment": job.numbers_environment(),
        "source": source(job.script) + _task_source(job.model),
        "versions": _versions(),
        "device": job.device,
    }


def _files(job: Job) -> dict[str, str]:
    """What a run reads from paths: SHA-256 of the content, by flag."""
    digests, chosen = {}, job.chosen
    name = chosen.get("data", job.task.data)
    if name not in data.NAMES:
        height, width, channels = job.task.frame
        digests["data"] = _frames(
            name,
            height=height,
            width=width,
            channels=channels,
            crop=chosen.get("crop", "auto"),
            allow_outside=chosen.get("allow_outside") == "true",
        )
    if "init_weights" in chosen:
        digests["init_weights"] = _weights(chosen["init_weights"])
    return digests


@functools.cache
def _frames(name: str, **options: Any) -> str:
    return data.open_source(name, **options).fingerprint


@functools.cache
def _weights(path: str) -> str:
    """SHA-256 of the final weights of a run; else of all bytes at the path."""
    folder = Path(path)
    if (folder / records.MANIFEST).is_file():
        manifest = records.read_json(folder / records.MANIFEST)
        return str(manifest.get("final_params_sha256"))
    files = sorted(f for f in (folder, *folder.rglob("*")) if f.is_file())
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()


@functools.cache
def _versions() -> dict[str, str]:
    versions = provenance.versions()
    return {name: versions[name] for name in _VERSIONS}


@functools.cache
def source(script: str) -> str:
    """SHA-256 of the package's Python files, the script, and its helpers `_*.py`."""
    path = Path(script)
    beside = [path, *sorted(path.parent.glob("_*.py"))]
    digest = hashlib.sha256()
    for name, file in [
        *(
            (f.relative_to(PACKAGE).as_posix(), f)
            for f in sorted(PACKAGE.rglob("*.py"))
        ),
        *((f"scripts/{f.name}", f) for f in beside if f.is_file()),
    ]:
        digest.update(f"{name}:{file.stat().st_size};".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


@functools.cache
def _task_source(model: str) -> str:
    """SHA-256 of the module of a task from elsewhere; empty for the package's own."""
    if model in tasks.NAMED:
        return ""
    spec = importlib.util.find_spec(model.partition(":")[0])
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return ""
    return "+" + hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()


@functools.cache
def _gpu() -> str | None:
    return device.gpu_found()
