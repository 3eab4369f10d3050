"""Speed of training steps on a GPU: programs are compiled together and timed singly.

Because of autotuning, compilation takes most of an hour with a GPU. So a dozen
processes compile at the same time into JAX's cache on disk, one program each. Then one
process loads program after program and times it while nothing else runs. Programs that
are not compiled at the deadline are named and left out. The processes are called as

    python benchmarks/gpu_steps.py compile STEPS
    python benchmarks/gpu_steps.py time STEPS

with the JSON of a list of `Step`s, and print one record a line.
"""

import dataclasses
import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from prednet_jax import process
from prednet_jax.config import SIZES, convolutions
from prednet_jax.runs import leash

ROOT = Path(__file__).resolve().parent.parent

#: What a device can do by its vendor's figures, or as measured where a page says so:
#: operations a second by precision, bytes a second (docs/gpu.md).
LIMITS = {
    "H200": {"float32": 67e12, "tf32": 495e12, "bfloat16": 790e12, "bytes": 4.3e12},
    "H100": {"float32": 67e12, "tf32": 495e12, "bfloat16": 790e12, "bytes": 3.0e12},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One training step that is timed.

    Attributes:
        size: one of `config.SIZES`.
        batch: sequences trained together.
        precision: as in `process.PRECISIONS`.
        convolution: as in `PredNetConfig`, or `torch`, the peer in PyTorch.
        noise: a noise spec.
        window: frames of a window.
    """

    size: str = "64x48"
    batch: int = 1
    precision: str = "float32"
    convolution: str = "auto"
    noise: str = "none"
    window: int = 10


def operations(size: str) -> int:
    """Returns the operations of a training step for one frame of one sequence.

    A product and an addition each count; forward pass, input gradient and filter
    gradient take as many each, by direct convolution.
    """
    return sum(
        2 * 3 * s.filter_size**2 * s.in_channels * s.out_channels * s.height * s.width
        for s in convolutions(SIZES[size]).values()
    )


def least_bytes(size: str, width: int) -> int:
    """Returns a lower bound of the bytes that a step moves per frame of a sequence.

    Every convolution reads its input and writes its output once in each of the three
    passes; numbers of maps have `width` bytes.
    """
    pixels = (
        s.height * s.width * (s.in_channels / (4 if s.upsampled else 1))
        + s.height * s.width * s.out_channels
        for s in convolutions(SIZES[size]).values()
    )
    return int(3 * width * sum(pixels))


def limit_seconds(step: Step, device: str) -> float | None:
    """Returns the least seconds of a window on a device, or None if it is unknown."""
    card = next((LIMITS[name] for name in LIMITS if name in device), None)
    if card is None or step.precision not in card:
        return None
    width = 2 if step.precision == "bfloat16" else 4
    frames = step.window * step.batch
    arithmetic = operations(step.size) / card[step.precision]
    return frames * max(arithmetic, least_bytes(step.size, width) / card["bytes"])


def run(
    steps: Sequence[Step],
    *,
    cache: Path,
    workers: int,
    seconds: float,
    alone: AbstractContextManager | None = None,
) -> Iterator[dict[str, Any]]:
    """Compiles steps, many at once, and then times one after the other.

    Args:
        steps: steps to time, the most valuable first.
        cache: folder of compiled programs, which a second call uses again.
        workers: processes that compile at once; together they may take three fifths of
            the GPU's memory.
        seconds: time for all; two fifths of it are kept for the timing.
        alone: context that is entered while steps are timed. Defaults to none.

    Yields:
        One record a step: its settings and `seconds_per_window`, or `error`.
    """
    end, left = time.monotonic() + seconds, list(steps)
    cache.mkdir(parents=True, exist_ok=True)
    children: list[subprocess.Popen] = []
    worked = functools.partial(_worked, cache=cache, children=children)

    def compiled(step: Step) -> list[dict[str, Any]]:
        return list(worked("compile", [step], 0.6 / workers, end - 0.4 * seconds))

    pool = ThreadPoolExecutor(workers)
    try:
        waiting = [step for step in steps if step.convolution != "torch"]
        compiling = {pool.submit(compiled, step): step for step in waiting}
        for future in as_completed(compiling):
            for record in future.result():
                if "error" in record:
                    left.remove(compiling[future])
                    yield record
        with alone or nullcontext():
            while left:
                # One process serves all steps; after a crash another one starts.
                for record in worked("time", list(left), 0.8, end):
                    left.pop(0)
                    yield record
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in children:
            child.kill()


def start(script: str, *words: str, **options: Any) -> subprocess.Popen:
    """Starts a script of this project, which ends when this process ends.

    It has a process group of its own. `options` are those of `subprocess.Popen`, with
    `env` added to the variables of this process.
    """
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    options["env"] = os.environ | {"PYTHONPATH": path} | options.get("env", {})
    return subprocess.Popen(
        [sys.executable, leash.__file__, "", str(ROOT / script), *words],
        stdin=subprocess.PIPE,
        process_group=0,
        **options,
    )


def gpu_environment(cache: Path, memory: float) -> dict[str, str]:
    """Returns the variables of a process that may use a share of the GPU's memory."""
    return {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{memory:.3f}",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def _worked(
    action: str,
    steps: Sequence[Step],
    memory: float,
    end: float,
    *,
    cache: Path,
    children: list[subprocess.Popen],
) -> Iterator[dict[str, Any]]:
    """Yields the records of a process, and an error for the step at which it ends."""
    done, log = 0, cache / f"{uuid.uuid4().hex}.log"
    if time.monotonic() < end:
        settings = json.dumps([dataclasses.asdict(step) for step in steps])
        with (
            log.open("w") as errors,
            start(
                *("benchmarks/gpu_steps.py", action, settings),
                env=gpu_environment(cache, memory),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as child,
        ):
            children.append(child)
            stop = threading.Timer(end - time.monotonic(), child.kill)
            stop.start()
            for text in child.stdout:
                if text.startswith("{"):
                    done += 1
                    yield json.loads(text)
        stop.cancel()
    if done < len(steps):
        told = f"not done in the time given ({action})"
        if time.monotonic() < end:
            lines = log.read_text().strip().splitlines() or ["ended"]
            told = next((x for x in lines[::-1] if "rror" in x), lines[-1])[-300:]
        yield dataclasses.asdict(steps[done]) | {"error": told}


def settings(*, torch: bool) -> list[Step]:
    """Returns the steps to time, in the order of value.

    Algorithms, sizes with batches, and precisions are crossed. `torch` adds PyTorch. At
    the end are the steps of `auto` in bfloat16 with an order of sums by tile.
    """
    sizes = [
        *(("64x48", 8), ("160x120", 8), ("64x48", 32), ("160x120", 32)),
        *(("64x48", 1), ("24x32", 1), ("160x120", 1), ("24x32", 8)),
    ]
    tile = "reduction_order:granularity=tile"
    return [
        Step(size=size, batch=batch, precision=precision, convolution=convolution)
        for convolution, (size, batch), precision in itertools.product(
            ("auto", "xla", *(("torch",) if torch else ())),
            sizes,
            ("float32", "tf32", "bfloat16"),
        )
    ] + [
        Step(size=size, batch=batch, precision="bfloat16", noise=tile)
        for size, batch in sizes
    ]


def due(steps: Sequence[Step], done: Sequence[Step], seconds: float) -> list[Step]:
    """Returns the next steps that `seconds` have time for, at least two."""
    return [step for step in steps if step not in done][: max(2, int(seconds / 5))]


def line(record: Mapping[str, Any]) -> str:
    """Returns a record in one line of text."""
    step = f"{record['size']} batch {record['batch']} {record['precision']} "
    step += record["convolution"]
    if record["noise"] != "none":
        step += f" {record['noise']}"
    if "error" in record:
        return f"{step}: {record['error']}"
    text = f"{step}: {1e3 * record['seconds_per_window']:.2f} ms a window"
    if record.get("fraction_of_limit"):
        text += f", {record['fraction_of_limit']:.0%} of the card's limit"
    return text


def work(action: str, step: Step, repeats: int = 10) -> dict[str, Any]:
    """Compiles a step, and if asked to times and profiles it; returns the record."""
    size, record = SIZES[step.size], dataclasses.asdict(step)
    if step.convolution == "torch":
        from benchmarks import torch_prednet

        sizes = size.height, size.width, step.window, step.batch, *size.channels
        seconds = torch_prednet.as_graphs(step.precision, *sizes)(repeats)
        return record | {"seconds_per_window": seconds}
    from benchmarks import speed

    process.prepare()
    config = dataclasses.replace(size, convolution=step.convolution)
    sizes = step.window, step.batch
    prepared = speed.prepare_step(config, *sizes, step.noise, step.precision)
    if action == "compile":
        return record
    seconds, _ = prepared.seconds(repeats)
    limit = limit_seconds(step, prepared.facts["device"]["kind"])
    return {
        **record,
        "seconds_per_window": seconds,
        **prepared.facts,
        **profile(prepared.advance),
        "fraction_of_limit": limit and limit / seconds,
    }


def profile(call: Callable[[], Any]) -> dict[str, Any]:
    """Returns the kernels that one call launches, and the seconds they take in all.

    `most` names the five kernels that take the longest together, with their seconds.
    The result is empty on a CPU, and if JAX's profiler reports nothing.
    """
    import jax

    if jax.default_backend() == "cpu":
        return {}
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(call())
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        if not files:
            return {}
        spent: Counter = Counter()
        events = [
            event
            for plane in jax.profiler.ProfileData.from_file(str(files[-1])).planes
            if plane.name.startswith("/device:GPU")
            for line in plane.lines
            if line.name.startswith("Stream")
            for event in line.events
        ]
        for event in events:
            spent[event.name[:60]] += event.duration_ns / 1e9
    return {
        "kernels": len(events),
        "kernel_seconds": sum(spent.values()),
        "most": dict(spent.most_common(5)),
    }


if __name__ == "__main__":
    for fields in json.loads(sys.argv[2]):
        print(json.dumps(work(sys.argv[1], Step(**fields))), flush=True)
