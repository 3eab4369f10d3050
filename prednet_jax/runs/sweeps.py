"""A sweep: networks x arms x hardware x settings x seeds, one process per run.

A run lies in `runs/MODEL/ARM/FINGERPRINT/seed_N`. Other flags, other source code or
other versions give another fingerprint, so a finished run is never overwritten.
"""

import io
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax import data, records
from prednet_jax.errors import UserError, whole
from prednet_jax.runs import arms, jobs, store
from prednet_jax.runs.arms import Arm
from prednet_jax.runs.design import Setup
from prednet_jax.runs.jobs import Job
from prednet_jax.tasks import Task

RESULT = "runs.parquet"
#: Measurements in a manifest that differ between equal runs; they get own columns.
TIMINGS = ("wall_seconds", "processor_seconds_per_second", "measured_parallelism")
ENDPOINTS = ("loss", "last_frame_loss", "copy_last_frame_loss", "grad_norm")
_DIGESTS = ("initial_params_sha256", "data_order_sha256", "final_params_sha256")
# Flags that the sweep sets itself; a setting may not have them.
_OWN = (
    "batch", "draw", "model", "noise", "overwrite", "replicas", "resume", "seed",
    "seeds", "threads", "workdir",
)  # fmt: skip
# Flags of `train.py` that a setting may have and that name a path.
_PATHS = ("data", "init_weights", "profile")


@dataclass(frozen=True, kw_only=True)
class Sweep(Setup):
    """The design of a sweep.

    Attributes:
        arms: names of arms.
        seeds: root seeds.
        draws: number of noise draws, for arms whose noise is random.
        hardware: where runs take place: `cpu` or `gpu` for any machine, `gpu:NAME` or
            `threads:N` for one that offers this resource. GPU arms run on GPUs only,
            other arms on CPUs only.
        settings: further flags of `train.py`; each setting is a text
            `name=value name=value`.
        threads: number of processors for a run on a CPU, unless its arm or `threads:N`
            gives another; None: all.

    Raises:
        UserError: a value is outside what is accepted.
    """

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    draws: int = 1
    hardware: tuple[str, ...] = ("cpu", "gpu")
    settings: tuple[str, ...] = ("",)
    threads: int | None = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("draws", self.draws, 1)
        if self.threads is not None:
            whole("threads", self.threads, 1)
        for name in ("arms", "seeds", "hardware", "settings"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise UserError(
                    f"{name}={','.join(map(str, values))}: expected at least one, each "
                    "once"
                )
        for seed in self.seeds:
            whole("seeds", seed, 0, 2**32 - 1)
        for name in self.hardware:
            if not re.fullmatch(r"cpu|gpu|gpu:\S+|threads:[1-9]\d*", name):
                raise UserError(
                    f"hardware={name!r}: expected cpu, gpu, gpu:NAME or threads:N"
                )
        for text in self.settings:
            setting_flags(text)
        for arm in self.chosen:
            if not any(_meets(arm, name) for name in self.hardware):
                kind = "gpu or gpu:NAME" if arm.gpu else "cpu"
                raise UserError(
                    f"hardware={','.join(self.hardware)}: none for arm {arm.name}; "
                    f"expected {kind} too"
                )

    @cached_property
    def chosen(self) -> tuple[Arm, ...]:
        """The arms."""
        return tuple(map(arms.arm, self.arms))

    def jobs(self) -> list[Job]:
        """Every run, seed by seed: an interrupted sweep then has complete seeds."""
        return [
            self._job(task, arm, draw, seed, hardware, setting)
            for task in self.tasks
            for seed in self.seeds
            for arm in self.chosen
            for hardware in self.hardware
            if _meets(arm, hardware)
            for setting in self.settings
            for draw in range(self.draws if arm.draws > 1 else 1)
        ]

    def _job(
        self, task: Task, arm: Arm, draw: int, seed: int, hardware: str, setting: str
    ) -> Job:
        kind, _, named = hardware.partition(":")
        threads = None if arm.gpu else arm.threads or self.threads
        if kind == "threads":
            threads = int(named)
        confined = (f"--threads={threads}",) if threads else ()
        job = Job(
            task=task,
            arm=arm,
            draw=draw,
            seeds=(seed,),
            folder=self.root,
            script=self.script,
            flags=(
                *self.flags(task, draw),
                *confined,
                *setting_flags(setting),
                *arm.flags,
            ),
            threads=threads,
            hardware=hardware if named else "",
            setting=setting,
        )
        name = store.key(jobs.facts(job, seed))[:12]
        return replace(job, folder=self.root / "runs" / task.name / arm.name / name)


def _meets(arm: Arm, hardware: str) -> bool:
    """Whether an arm runs there; one that sets its own threads runs on any machine."""
    kind = hardware.partition(":")[0]
    return (kind == "gpu") == arm.gpu and (kind != "threads" or arm.threads is None)


def absolute(path: str) -> str:
    """A path from the root, since runs start in other directories; names stay."""
    if path in data.NAMES:
        return path
    return os.path.abspath(os.path.expanduser(path))


def setting_flags(text: str) -> tuple[str, ...]:
    """The flags of `train.py` that a setting stands for.

    Raises a UserError if a word is not `name=value`, or the sweep sets it itself.
    """
    found: list[str] = []
    for word in text.split():
        match = re.fullmatch(r"([a-z]\w*)=\S+", word)
        if match is None or match[1] in _OWN:
            raise UserError(
                f"setting={text!r}: {word}; expected name=value of train.py, none of "
                f"{', '.join(_OWN)}"
            )
        name, _, value = word.partition("=")
        found.append(f"--{name}={absolute(value) if name in _PATHS else value}")
    return tuple(found)


def row(job: Job, last: float) -> dict[str, Any]:
    """A job of one seed, whose run has ended, as a row of the merged result.

    Metrics are averaged over the `last` fraction of the updates. A RecordError says
    that the run is incomplete or belongs to another job.
    """
    (seed,) = job.seeds
    run = jobs.verified(job, seed)
    count = max(1, round(last * job.updates))
    loss = run.metrics["loss"]
    diverged = jobs.FAILURE in run.manifest
    ends: dict[str, float | None] = dict.fromkeys(ENDPOINTS)
    for name in ends:
        mean = run.metrics.get(name, np.array([np.nan]))[-count:].mean()
        if not diverged and np.isfinite(mean):
            ends[name] = float(mean)
    lost = np.flatnonzero(~np.isfinite(loss))
    diverged_at = int(lost[0]) + 1 if len(lost) else len(loss) if diverged else None
    manifest = dict(run.manifest)
    digests = {name: manifest.get(name) for name in _DIGESTS}
    timings = {name: manifest.pop(name, None) for name in TIMINGS}
    return {
        "model": job.model,
        "arm": job.arm.name,
        "hardware": job.hardware,
        "setting": job.setting,
        "seed": seed,
        "draw": job.draw,
        "settings": json.dumps(job.chosen, sort_keys=True),
        "updates": job.updates,
        **ends,
        "diverged_at": diverged_at,
        "fingerprint": store.key(jobs.facts(job, seed)),
        **digests,
        **timings,
        "manifest": json.dumps(manifest, sort_keys=True),
    }


def summary(every: Iterable[Job], rows: Mapping[Job, dict[str, Any]]) -> str:
    """A table of the arms: how many runs are done, mean loss and mean seconds."""
    lines: list[tuple[str, ...]] = [("network and arm", "done", "loss", "seconds")]
    titles: dict[str, list[Job]] = {}
    for job in every:
        titles.setdefault(job.title, []).append(job)
    for title, of_title in titles.items():
        done = [rows[job] for job in of_title if job in rows]
        means = []
        for name in ("loss", "wall_seconds"):
            values = [row[name] for row in done if row[name] is not None]
            means.append(f"{np.mean(values):.4g}" if values else "-")
        lines.append((title, f"{len(done)}/{len(of_title)}", *means))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
    return "\n".join(padded)


def merge(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes the merged result as one Parquet file; a UserError without pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            f"{RESULT}: pyarrow is not installed; expected it (pip install '.[sweep]')"
        ) from None
    text, number, whole_number = pyarrow.string(), pyarrow.float64(), pyarrow.int64()
    kinds = dict.fromkeys(("seed", "draw", "updates", "diverged_at"), whole_number)
    kinds |= dict.fromkeys((*ENDPOINTS, *TIMINGS), number)
    rows = list(rows)
    schema = pyarrow.schema([(name, kinds.get(name, text)) for name in rows[0]])
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema), buffer)
    records.write_bytes(path, buffer.getvalue())
