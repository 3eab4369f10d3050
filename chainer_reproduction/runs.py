"""Trainings in Chainer, each in a process of its own, and the rows of their tables.

The record of a run is `FOLDER/NAME.json`. A run that has a record is not repeated, so
that an interrupted study continues where it was.
"""

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chainer_reproduction.environments import (
    CHAINER,
    HERE,
    Environment,
    UnavailableError,
    call,
    ensure,
)
from prednet_jax.data import open_source
from prednet_jax.errors import UserError

Row = dict[str, Any]


class Size(NamedTuple):
    """Network and window of a run."""

    channels: tuple[int, ...]
    height: int
    width: int
    window: int


QUICK = Size((3, 6, 12), 24, 32, 10)
FULL = Size((3, 12, 24, 48), 48, 64, 20)


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        name: name of its record.
        arm: name of what is changed, one of `plans.ARMS`.
        size: network and window.
        frames: number of frames that are predicted; one frame more is read.
        flags: further flags of in_chainer/run.py.
        study: name of the study that it belongs to.
        seed: seed of the initial weights.
        data_seed: seed of the frames.
        threads: number of threads of the BLAS.
        environment: in which it runs.
        data: npz file of frames; None: the embedded walk.
    """

    name: str
    arm: str
    size: Size
    frames: int
    flags: tuple[str, ...] = ()
    study: str = ""
    seed: int = 0
    data_seed: int = 0
    threads: int = 1
    environment: Environment = CHAINER
    data: Path | None = None


def frames_file(folder: Path, size: Size, length: int, seed: int = 0) -> Path:
    """An npz file of the walk's first frames, which other environments can read."""
    path = folder / f"walk_{size.width}x{size.height}_{seed}_{length}.npz"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        source = open_source("walk", height=size.height, width=size.width, seed=seed)
        temporary = path.with_suffix(".tmp.npz")
        np.savez(temporary, frames=source.read(0, length))
        temporary.replace(path)
    return path


def train_all(
    runs: Iterable[Run], folder: Path, frames: Path, jobs: int = 1
) -> list[Row]:
    """Makes the runs that have no record; the rows of all in their order, as `row_of`.

    Runs whose environment cannot be made are skipped, and the reason is printed.

    Args:
        runs: runs of one environment stand together.
        folder: folder of the records.
        frames: folder of the frames.
        jobs: number of runs at a time.
    """
    rows: list[Row] = []
    for environment, group in groupby(runs, key=lambda run: run.environment):
        try:
            python = ensure(environment)
        except UnavailableError as error:
            print(f"{environment.name}: skipped: {error}")
            continue
        chosen = list(group)
        data = [
            run.data or frames_file(frames, run.size, run.frames + 1, run.data_seed)
            for run in chosen
        ]
        with ThreadPoolExecutor(jobs) as pool:
            rows += pool.map(train, chosen, data, repeat(python), repeat(folder))
    return rows


def train(run: Run, data: Path, python: Path, folder: Path) -> Row:
    """Makes one run unless the folder has its record; its row."""
    path = folder / f"{run.name}.json"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        flags = (
            f"--frames={data}",
            f"--output={path}",
            f"--length={run.frames + 1}",
            f"--channels={','.join(map(str, run.size.channels))}",
            f"--seed={run.seed}",
            f"--window={run.size.window}",
        )
        script = HERE / "in_chainer" / "run.py"
        call(python, script, *flags, *run.flags, threads=run.threads)
    try:
        row = row_of(run, json.loads(path.read_text()))
    except (ValueError, KeyError) as error:
        raise UserError(
            f"{path}: no record ({error!r}); remove it and repeat"
        ) from None
    print(f"{run.name}: {row['final_sha256'][:12]}", flush=True)
    return row


def row_of(run: Run, record: Row) -> Row:
    """What is known of a run: its record, and what the tables have beside it."""
    losses = record["losses"]
    return record | {
        "arm": run.arm,
        "study": run.study,
        "release": record["chainer"],
        "data_seed": run.data_seed,
        "threads": run.threads,
        "frames": len(losses),
        "updates": updates(len(losses), record["window"]),
        # The last quarter of the frames.
        "mean_loss": f"{np.mean(losses[-(len(losses) // 4) :]):.9g}",
    }


def losses_of(rows: Sequence[Row]) -> list[Row]:
    """One row per update: loss of the window's last frame, and its mean."""
    updated = []
    for row in rows:
        window = row["window"]
        for update in range(1, row["updates"] + 1):
            stop = update * window - 1 if window > 1 else update
            part = row["losses"][max(0, stop - window) : stop]
            updated.append(
                {
                    "arm": row["arm"],
                    "seed": row["seed"],
                    "update": update,
                    "last_frame_loss": f"{part[-1]:.9g}",
                    "mean_loss": f"{np.mean(part):.9g}",
                }
            )
    return updated


def updates(frames: int, window: int) -> int:
    """Number of updates in a training that predicts so many frames."""
    return frames if window == 1 else (frames + 1) // window
