"""The suite `backends` of benchmark.py: the cases and the replicas, process by process.

Threads are per process, so each count is a process of its own.
"""

import json
import subprocess
import sys
from pathlib import Path

from absl import flags

FLAGS = flags.FLAGS
THREADS = (1, 2, 4, 6)


def run(script: Path, workdir: Path) -> dict:
    """Measures, prints a table, writes backends.json and backends.png.

    Args:
        script: benchmark.py.
        workdir: where to write.

    Raises:
        ValueError: a process failed; the message holds its command.
    """
    from prednet_jax import device, records
    from prednet_jax.report import speed

    available = device.available_threads()
    counts = sorted({n for n in THREADS if n < available} | {available})
    left_out = [n for n in THREADS if n > available]
    rows: list[dict] = []
    for threads in counts:
        found = _child(script, "cases", threads)
        rows += [{"threads": threads} | row for row in found["rows"]]
    result = {
        "suite": "backends",
        "rows": rows,
        "replicas": _child(script, "replicas", available)["rows"],
        "energy": found["energy"],
        "device": found["device"],
        "shape": _size(),
        "window": FLAGS.window,
        "precision": FLAGS.precision,
        "threads_not_here": left_out,
    }
    print(speed.text_table(result), flush=True)
    workdir.mkdir(parents=True, exist_ok=True)
    records.write_json(workdir / speed.FILE, result)
    records.write_bytes(workdir / "backends.png", speed.figure(result, speed.LIGHT))
    return result


def _size() -> list[int]:
    import _flags

    config = _flags.prednet_config()
    return [config.height, config.width, *config.channels]


def _child(script: Path, suite: str, threads: int) -> dict:
    command = [
        sys.executable,
        str(script),
        f"--suite={suite}",
        f"--threads={threads}",
        f"--batches={','.join(FLAGS.batches)}",
        f"--replica_counts={','.join(FLAGS.replica_counts)}",
        f"--window={FLAGS.window}",
        f"--repeats={FLAGS.repeats}",
        f"--precision={FLAGS.precision}",
        f"--convolution={FLAGS.convolution}",
        f"--channels={','.join(FLAGS.channels)}",
        f"--variant={FLAGS.variant}",
        f"--{'' if FLAGS.cache else 'no'}cache",
    ]
    for name in ("height", "width"):
        if getattr(FLAGS, name) is not None:
            command.append(f"--{name}={getattr(FLAGS, name)}")
    if FLAGS.profile:
        command.append(f"--profile={FLAGS.profile}/{suite}_threads_{threads}")
    print(f"  {suite}, {threads} thread(s) ...", file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])
