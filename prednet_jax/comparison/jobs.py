"""One process of a comparison or a sweep: what it is to run, and its exact command."""

import functools
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from prednet_jax import device, provenance
from prednet_jax.comparison.arms import Arm
from prednet_jax.tasks import Task

# Variables of `provenance.ENVIRONMENT` that say where things are, not what is computed.
_PLACES = {"JAX_COMPILATION_CACHE_DIR", "CUDA_VISIBLE_DEVICES", "GLIBC_TUNABLES"}


@dataclass(frozen=True, kw_only=True)
class Job:
    """One process: one draw of one arm of one network, one seed after the other.

    Attributes:
        task: the network.
        arm: the arm.
        draw: number of the noise draw, from 0.
        seeds: root seeds, trained one after the other.
        folder: where the runs lie, `folder/seed_N` each.
        script: path of `train.py`, as the command names it.
        flags: its flags, those of the arm included; the later of two counts.
        threads: processors that it is confined to; None: all.
        hardware: name of the machine that it asks for, such as `gpu:h200`; empty: any.
        setting: what it differs in beside model, arm, seed, draw and hardware.
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
        """The exact command line, environment in front."""
        variables = [f"{k}={v}" for k, v in self.arm.environment]
        return shlex.join([*variables, "python", *self.command])

    @property
    def title(self) -> str:
        """Network, arm, and what else sets it apart, for one line."""
        parts = [self.model, self.arm.name]
        parts += [f"draw {self.draw}"] if self.draw else []
        parts += [part for part in (self.hardware, self.setting) if part]
        return " ".join(parts)

    @property
    def chosen(self) -> dict[str, str]:
        """Its flags by name."""
        found = (flag.removeprefix("--").partition("=") for flag in self.flags)
        return {name: value for name, _, value in found}

    @property
    def updates(self) -> int:
        """Updates of each of its runs."""
        return int(self.chosen["updates"])

    @property
    def device(self) -> str:
        """Kind of the device, and the threads of a processor, as far as known here."""
        if self.arm.gpu:
            return self.hardware or _gpu() or "gpu"
        return f"cpu, threads {self.threads or device.available_threads()}"

    def environment(self) -> dict[str, str]:
        """Variables that matter, for the process: ours, then the arm's.

        Of the process that asks, never of one that launches (a Ray worker has others).
        """
        return provenance.environment() | dict(self.arm.environment)

    def numbers_environment(self) -> dict[str, str]:
        """Those of them that may change numbers."""
        found: Mapping[str, str] = self.environment()
        return {k: v for k, v in sorted(found.items()) if k not in _PLACES}

    def of(self, *seeds: int) -> "Job":
        """The same for some of its seeds."""
        return replace(self, seeds=seeds)

    def run_folder(self, seed: int) -> Path:
        """The directory of one seed's run."""
        return self.folder / f"seed_{seed}"


@functools.cache
def _gpu() -> str | None:
    return device.gpu_found()
