"""Makes runs of the Chainer training, each in a process of its own, and their records.

The record of a run is `DIR/NAME.json`. A run that has a record is not repeated, so that
an interrupted study continues where it was.
"""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from environments import IN_CHAINER

from prednet_jax.data import open_source


@dataclass(frozen=True)
class Size:
    """Network and window of a run."""

    channels: tuple[int, ...]
    height: int
    width: int
    window: int


QUICK = Size((3, 6, 12), 24, 32, 10)
FULL = Size((3, 12, 24, 48), 48, 64, 20)


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        name: name of its record.
        arm: name of what is changed, such as one of `chainer_plans.ARMS`.
        seed: seed of the initial weights.
        data: npz file of the frames.
        frames: number of frames; the first of them is not predicted.
        size: network and window.
        flags: further flags of in_chainer/run.py.
        threads: number of threads of the BLAS.
        data_seed: seed of the frames.
    """

    name: str
    arm: str
    seed: int
    data: Path
    frames: int
    size: Size
    flags: tuple[str, ...] = field(default=())
    threads: int = 1
    data_seed: int = 0


def frames_file(folder: Path, size: Size, length: int, seed: int = 0) -> Path:
    """An npz file of the walk's first frames, which Chainer's environment can read."""
    path = folder / f"walk_{size.width}x{size.height}_{seed}_{length}.npz"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        source = open_source("walk", height=size.height, width=size.width, seed=seed)
        temporary = path.with_suffix(".tmp.npz")
        np.savez(temporary, frames=source.read(0, length))
        temporary.replace(path)
    return path


def runs_of(
    arms: Mapping[str, tuple[str, ...]],
    folder: Path,
    *,
    prefix: str,
    size: Size,
    frames: int,
    seed: int = 0,
    data_seed: int = 0,
    threads: int = 1,
) -> list[Run]:
    """One run per arm, named after it.

    Args:
        arms: further flags of in_chainer/run.py, by arm.
        folder: folder of the frames.
        prefix: prefix of the names.
        size: network and window.
        frames: number of transitions; one frame more is read.
        seed: seed of the initial weights.
        data_seed: seed of the frames.
        threads: number of threads of the BLAS.
    """
    data = frames_file(folder, size, frames + 1, data_seed)
    return [
        Run(
            name=f"{prefix}-{arm.replace(', ', '-').replace(' ', '_')}",
            arm=arm,
            seed=seed,
            data=data,
            frames=frames + 1,
            size=size,
            flags=flags,
            threads=threads,
            data_seed=data_seed,
        )
        for arm, flags in arms.items()
    ]


def execute(run: Run, python: Path, folder: Path) -> dict:
    """The record of a run; the run is made if the folder has no record of it.

    Raises:
        subprocess.CalledProcessError: the run failed; its output is printed.
    """
    path = folder / f"{run.name}.json"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            str(python),
            str(IN_CHAINER / "run.py"),
            f"--frames={run.data}",
            f"--output={path}",
            f"--length={run.frames}",
            f"--channels={','.join(map(str, run.size.channels))}",
            f"--seed={run.seed}",
        ]
        if not any(flag.startswith("--window=") for flag in run.flags):
            command.append(f"--window={run.size.window}")
        # PYTHONPATH of this process is for another interpreter.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
            environment[name] = str(run.threads)
        done = subprocess.run(
            [*command, *run.flags],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            print(done.stdout + done.stderr)
            done.check_returncode()
    return {"arm": run.arm, **json.loads(path.read_text())}


def execute_all(
    runs: Iterable[Run], python: Path, folder: Path, jobs: int
) -> list[dict]:
    """The records of all runs, in order; `jobs` runs are made at a time."""

    def one(run: Run) -> dict:
        record = execute(run, python, folder)
        print(f"{run.name}: {record['final_sha256'][:12]}", flush=True)
        return record

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, runs))


def mean_loss(record: dict) -> float:
    """Mean loss of the last quarter of a record's frames."""
    losses = record["losses"]
    return float(np.mean(losses[-(len(losses) // 4) :]))
