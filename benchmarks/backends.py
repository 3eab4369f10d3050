"""The suite `backends`: `cases` and `replicas`, each in processes of its own.

XLA fixes its number of threads per process, so each number has a process.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prednet_jax import device, records
from prednet_jax.config import PredNetConfig
from prednet_jax.report import beside

THREADS = (1, 2, 4, 6)


def run(
    config: PredNetConfig,
    command: Sequence[str],
    workdir: Path,
    provenance: Mapping[str, Any],
    *,
    window: int,
    precision: str,
    profile: str | None,
) -> dict[str, Any]:
    """Measures, prints a table, writes backends.json.

    Args:
        config: the network of `command`, for the record.
        command: interpreter, benchmark.py, and all flags except suite, threads and
            profile.
        workdir: where to write.
        provenance: command, flags, versions and commit, for the record.
        window: as in `command`, for the record, and so `precision`.
        precision: float32 or float64.
        profile: directory for a folder of traces per process, or None.

    Raises:
        RuntimeError: a process failed; the message has its command.
    """

    def child(suite: str, threads: int) -> dict[str, Any]:
        full = [*command, f"--suite={suite}", f"--threads={threads}"]
        if profile:
            full.append(f"--profile={profile}/{suite}_threads_{threads}")
        print(f"  {suite}, {threads} thread(s) ...", file=sys.stderr, flush=True)
        done = subprocess.run(full, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(full)}: {done.stderr.strip()[-300:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    available = device.available_threads()
    counts = sorted({n for n in THREADS if n < available} | {available})
    rows: list[dict] = []
    for threads in counts:
        found = child("cases", threads)
        rows += [{"threads": threads} | row for row in found["rows"]]
    result = {
        "suite": "backends",
        **provenance,
        "rows": rows,
        "replicas": child("replicas", available)["rows"],
        "device": found["device"],
        "shape": [config.height, config.width, *config.channels],
        "window": window,
        "precision": precision,
        "threads_not_here": [n for n in THREADS if n > available],
    }
    print(beside.speed_table(result), flush=True)
    workdir.mkdir(parents=True, exist_ok=True)
    records.write_json(workdir / beside.SPEED, result)
    return result
