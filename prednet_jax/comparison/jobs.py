"""One process of a comparison or a sweep: its runs, and its exact command."""

import functools
import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from prednet_jax import device, provenance
from prednet_jax.comparison.arms import Arm
from prednet_jax.tasks import Task


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


@functools.cache
def _gpu() -> str | None:
    return device.gpu_found()
