"""One process of a comparison or a sweep: its command, its facts and its stored runs.

docs/runs.md lists the facts of a run (`store`). A run that ended gets a
receipt (`write_receipt`) and is never made again. `verified` reads it, and refuses a
run that is truncated, altered or made by another job.
"""

import contextlib
import functools
import hashlib
import importlib.util
import os
import shlex
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax import data, process, records, tasks, weights
from prednet_jax.files import FileError
from prednet_jax.runs import store
from prednet_jax.runs.arms import Arm
from prednet_jax.runs.store import RunState, Status
from prednet_jax.tasks import Task
from prednet_jax.training.settings import Settings

PACKAGE = Path(__file__).parents[1]
#: The files whose SHA-256 a receipt holds, where they exist.
FILES = (records.MANIFEST, records.METRICS, records.WEIGHTS, records.EXAMPLES)
# Flags that name a path.
_PATHS = ("data", "init_weights", "validation_data", "profile")
_VERSIONS = ("jax", "jaxlib", "flax", "optax", "numpy")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One process: one draw of one arm of one network, one seed after the other.

    Attributes:
        task: the network.
        arm: the arm.
        seeds: root seeds.
        folder: directory of the runs, which are `folder/seed_N`.
        script: path of `train.py`, as the command names it.
        settings: settings of its runs, including those of the arm.
        setting: more flags of `train.py`, `name=value name=value`, which distinguish it
            from jobs of equal model, arm and seed.
    """

    task: Task
    arm: Arm
    seeds: tuple[int, ...]
    folder: Path
    script: str
    settings: Settings
    setting: str = ""

    @property
    def model(self) -> str:
        """Returns the name of the network."""
        return self.task.name

    def arguments(self, workdir: str | os.PathLike) -> tuple[str, ...]:
        """Returns the arguments of the script, for runs in `workdir/seed_N`."""
        seeds = ",".join(map(str, self.seeds))
        own = {"seeds": seeds, "workdir": os.fspath(workdir)}
        return tuple(f"--{k}={v}" for k, v in (self.flags | own).items())

    @property
    def command_line(self) -> str:
        """Returns the exact command line, with the environment in front."""
        variables = [f"{k}={v}" for k, v in self.arm.environment]
        words = (*variables, "python", self.script, *self.arguments(self.folder))
        return shlex.join(words)

    @property
    def title(self) -> str:
        """Returns network, arm and setting, for one line of text."""
        return f"{self.model} {self.arm.name} {self.setting}".rstrip()

    @property
    def name(self) -> str:
        """Returns its title, and which repeat of its arm it is."""
        repeat = f", repeat {self.draw + 1}" if self.arm.draws > 1 else ""
        return f"{self.title}{repeat}"

    @property
    def flags(self) -> dict[str, str]:
        """Returns the flags of its command by name."""
        window = ("window",) if self.task.windowed else ()
        always = (*self.task.settings(), "updates", "data", *window)
        return self.settings.flags(*always) | setting_flags(self.setting)

    @property
    def updates(self) -> int:
        """Returns the number of updates of each run."""
        return self.settings.training.updates

    @property
    def draw(self) -> int:
        """Returns the number of the noise draw, from 0."""
        return self.settings.training.draw

    @property
    def threads(self) -> int | None:
        """Returns the number of processors that it may use, or None for all."""
        return self.settings.computation.threads or None

    @property
    def device(self) -> str:
        """Returns the kind of the device, with the number of threads for a CPU."""
        if self.arm.gpu:
            return process.gpu_found() or "gpu"
        return f"cpu, threads {self.threads or process.available_threads()}"

    def environment(self) -> dict[str, str]:
        """Returns the variables that affect results, of this process and of the arm.

        A Ray worker has other variables, so call this in the process that the user
        started.
        """
        return records.environment() | dict(self.arm.environment)

    def of(self, *seeds: int) -> "Job":
        """Returns the same job for some of its seeds only."""
        return replace(self, seeds=seeds)

    def replaced(self, **settings: Any) -> "Job":
        """Returns the same job with other values of some settings."""
        return replace(self, settings=self.settings.replaced(**settings))

    def run_folder(self, seed: int) -> Path:
        """Returns the directory of one seed's run."""
        return self.folder / f"seed_{seed}"


def absolute(path: str, flag: str = "data") -> str:
    """Returns an absolute path, since runs start in other directories.

    The names that a flag accepts are not changed.
    """
    names: Container[str] = () if flag == "profile" else data.NAMES
    if flag == "init_weights":  # A file comes before a name here.
        names = () if os.path.exists(path) else weights.pretrained_names()
    return path if path in names else os.path.abspath(os.path.expanduser(path))


def setting_flags(text: str) -> dict[str, str]:
    """Returns the flags of `train.py` that a setting stands for, by name."""
    words = (word.partition("=") for word in shlex.split(text))
    return {k: absolute(v, k) if k in _PATHS else v for k, _, v in words}


def facts(job: Job, seed: int) -> store.Facts:
    """Returns the facts that determine the numbers of one of a job's runs."""
    return {
        "flags": dict(sorted(job.flags.items())),
        "files": _files(job),
        "seed": seed,
        "environment": records.of_numbers(job.environment()),
        "source": source(job.script, job.model),
        "versions": _versions(),
        "device": job.device,
    }


def _files(job: Job) -> dict[str, str]:
    """Returns the SHA-256 of the files that each flag of a run names."""
    digests, chosen = {}, job.flags
    outside = chosen.get("allow_outside", "").lower() in ("true", "t", "1")
    cut = {"crop": chosen.get("crop", "auto"), "layout": chosen.get("layout")}
    named = {"data": chosen["data"]}
    # Without a path of their own, held-out frames lie in the data.
    if "validate_every" in chosen or "validation_data" in chosen:
        named["validation_data"] = chosen.get("validation_data", chosen["data"])
    for flag, name in named.items():
        if flag == "validation_data":  # Of a folder of parts only this one is read.
            name = data.split_parts(name).get("validation", name)
        # MNIST lies on disk too, below a folder that a variable may name.
        if name not in data.NAMES or name.endswith("mnist"):
            size = tasks.frame_size(job.task)
            digests[flag] = _frames(name, **size, **cut, allow_outside=outside)
    if "init_weights" in chosen:
        digests["init_weights"] = _weights(chosen["init_weights"])
    return digests


@functools.cache
def _frames(name: str, **options: Any) -> str:
    return data.open_source(name, **options).fingerprint


@functools.cache
def _weights(path: str) -> str:
    """Returns the SHA-256 of a run's weights, or of all bytes at another path."""
    folder = Path(path)
    if (folder / records.MANIFEST).is_file():
        final = records.read_manifest(folder).final_params_sha256
        return final or records.fingerprint(weights.load_task(folder)[1])
    files = sorted(f for f in (folder, *folder.rglob("*")) if f.is_file())
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()


@functools.cache
def _versions() -> dict[str, str]:
    versions = records.versions()
    return {name: versions[name] for name in _VERSIONS}


@functools.cache
def source(script: str, model: str = "prednet") -> str:
    """Returns the SHA-256 of the package's Python files, script and helpers `_*.py`.

    The module of a task from elsewhere belongs to them.
    """
    path = Path(script)
    package = [
        (f.relative_to(PACKAGE).as_posix(), f) for f in sorted(PACKAGE.rglob("*.py"))
    ]
    script_files = [path, *sorted(path.parent.glob("_*.py"))]
    named = package + [(f"scripts/{f.name}", f) for f in script_files]
    if model not in tasks.NAMED:
        spec = importlib.util.find_spec(model.partition(":")[0])
        named.append((model, Path((spec and spec.origin) or "")))
    digest = hashlib.sha256()
    for name, file in named:
        if file.is_file():
            digest.update(f"{name}:{file.stat().st_size};".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def write_receipts(job: Job) -> None:
    """Writes the receipts of runs that have ended; their process may still run."""
    for seed in job.seeds:
        folder = job.run_folder(seed)
        if not (folder / store.RECEIPT).exists() and _has_ended(folder):
            write_receipt(job, seed)


def _has_ended(folder: Path) -> bool:
    with contextlib.suppress(FileError):
        return records.read_manifest(folder).ended
    return False


def write_receipt(job: Job, seed: int) -> None:
    """Writes the receipt of a run that has ended, with its weights and all updates.

    A run that diverged ends with the first update that is not finite, or with the last.
    """
    folder = job.run_folder(seed)
    run = records.read_run(folder)
    updates = run.metrics.get("update", np.zeros(0))
    count, path = len(updates), folder / records.METRICS
    in_order = np.array_equal(updates, np.arange(1, count + 1))
    if not in_order or "loss" not in run.metrics:
        raise FileError(f"{path}: expected updates 1, 2, ... with a loss each")
    failed = run.manifest.failure is not None
    lost = failed and any(np.isnan(column[-1]) for column in run.metrics.values())
    if count != job.updates and not (lost and count < job.updates):
        raise FileError(f"{path}: {count} updates; expected {job.updates}")
    if not failed:
        path = folder / records.WEIGHTS
        digest = records.fingerprint(records.read_tree(path))
        wanted = run.manifest.final_params_sha256
        if digest != wanted:
            raise FileError(
                f"{path}: weights {digest}; expected final_params_sha256 {wanted}"
            )
    store.write_receipt(folder, facts(job, seed), FILES)


def split_finished(jobs: Iterable[Job]) -> tuple[list[Job], Counter[RunState]]:
    """Returns the jobs with the missing seeds, and the number of runs by state."""
    missing, reasons = [], Counter[RunState]()
    for job in jobs:
        states = {
            seed: store.state(job.run_folder(seed), facts(job, seed), FILES)
            for seed in job.seeds
        }
        reasons.update(states.values())
        seeds = [seed for seed, state in states.items() if not state.kept]
        if seeds:
            missing.append(job.of(*seeds))
    return missing, reasons


def describe_reasons(reasons: Counter[RunState]) -> str | None:
    """Returns the states of `split_finished` in a line, or None for new runs alone."""
    counts = {state: count for state, count in reasons.items() if count}
    total = sum(counts.values())
    kept = counts.pop(RunState(Status.KEPT), 0)
    new = counts.pop(RunState(Status.NEW), 0)
    if new == total:
        return None
    causes = ", ".join(f"{n} {state}" for state, n in sorted(counts.items(), key=str))
    return f"{kept} of {total} runs kept" + (causes and f"; made again: {causes}")


def verified(job: Job, seed: int) -> records.Run:
    """Reads a run that is whole and belongs to the job."""
    folder = job.run_folder(seed)
    store.verify(folder, facts(job, seed), FILES)
    return records.read_run(folder)


def any_diverged(job: Job) -> bool:
    """Returns whether a run of the job diverged."""
    folders = (job.run_folder(seed) for seed in job.seeds)
    ended = [folder for folder in folders if (folder / store.RECEIPT).exists()]
    return any(records.read_manifest(folder).failure for folder in ended)
