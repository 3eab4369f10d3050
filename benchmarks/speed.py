"""Suites `step`, `cases`, `backends`, `replicas`, `pytorch`: the speed of PredNet."""

import functools
import os
import resource
import shutil
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness
from prednet_jax import device, predict, process, records
from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.models import prednet
from prednet_jax.objectives import Method
from prednet_jax.report import beside
from prednet_jax.training import replicas as training_replicas
from prednet_jax.training import truncated
from prednet_jax.training.trainer import Trainer

THREADS = (1, 2, 4, 6)


def step(
    config: PredNetConfig,
    window: int,
    batch: int,
    repeats: int,
    noise: str,
    precision: str,
) -> dict[str, Any]:
    """Median seconds of one training window, after two others; frames on the device."""
    dtype = process.set_precision(precision)
    subject = harness.training(config, dtype, noise=noise, batch=batch)
    frames = jax.device_put(harness.random_frames(config, window + 1, batch))
    program, state = _training(subject)
    compiled, (compiling, _) = harness.timed(
        lambda: program.lower(state, frames).compile()
    )
    programs = {"": ((lambda now: compiled(now[0], frames)), (state, None))}
    seconds = harness.medians(programs, repeats, warm_up=2)[""]
    return {
        "suite": "step",
        "seconds_per_window": seconds,
        "frames_per_second": window * batch / seconds,
        "compile_seconds": float(compiling),
        "parameters": sum(x.size for x in jax.tree.leaves(subject.state.params)),
        # ru_maxrss is in KiB on Linux.
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "shape": [config.height, config.width, *config.channels],
        "window": window,
        "batch": batch,
        "noise": noise,
        "convolutions": prednet.algorithms(config, dtype),
        "device": device.description(),
    }


def cases(
    config: PredNetConfig,
    batches: tuple[int, ...],
    window: int,
    repeats: int,
    precision: str,
) -> dict[str, Any]:
    """Training and inference by batch size, with frames on the device or fed to it.

    A call of inference sees one frame per sequence and carries the state, so that its
    seconds are the latency of one frame; there are `window` times as many. A call of
    training is one update.
    """
    dtype = process.set_precision(precision)
    rows = []
    for work, frames_in, scored, calls in (
        ("inference", 1, 1, repeats * window),
        ("training", window + 1, window, repeats),
    ):
        for batch in batches:
            frames = harness.random_frames(config, frames_in, batch)
            subject = harness.training(config, dtype, batch=batch)
            if work == "training":
                program, state = _training(subject)
            else:
                program, state = _inference(subject, batch, dtype)
            resident, now = jax.device_put(frames), (state, None)
            for feed in ("device", "host"):

                def advance(now: Any, feed=feed, x=resident, y=frames, f=program):
                    return f(now[0], x if feed == "device" else jax.device_put(y))

                programs = {feed: (advance, now)}
                seconds = harness.medians(programs, calls, warm_up=2)[feed]
                now = programs[feed][1]
                rows.append(
                    {
                        "work": work,
                        "batch": batch,
                        "feed": feed,
                        "seconds": seconds,
                        "frames_per_second": batch * scored / seconds,
                    }
                )
    return {"suite": "cases", "rows": rows, "device": device.description()}


def _training(subject: harness.Training) -> tuple[Any, Any]:
    """`program(state, frames) -> state, metrics`, one update; and its first state."""
    update = subject.update()

    def body(state: truncated.TrainState, frames: jax.Array) -> tuple:
        return update(state, frames, jnp.asarray(False), subject.key)

    return truncated.jit_update(body), subject.state


def _inference(subject: harness.Training, batch: int, dtype: Any) -> tuple[Any, Any]:
    """`program(carry, frames) -> carry, predictions`; and the first carry."""
    params = subject.state.params

    @jax.jit
    def body(params: dict, carry: Any, frames: jax.Array) -> tuple:
        pixels = truncated.to_pixels(frames, dtype)
        return predict(params, subject.config, pixels, carry)[::-1]

    carry = prednet.initial_state(subject.config, batch, dtype)
    return functools.partial(body, params), carry


def backends(
    config: PredNetConfig,
    command: Callable[..., list[str]],
    workdir: Path,
    provenance: Mapping[str, Any],
    window: int,
    precision: str,
) -> dict[str, Any]:
    """`cases` by number of threads, and `replicas`; writes backends.json.

    XLA fixes its number of threads per process, so each number has a process: of what
    `command(suite, threads)` gives. The other arguments are for the record.
    """

    def child(suite: str, threads: int) -> dict[str, Any]:
        print(f"  {suite}, {threads} thread(s) ...", file=sys.stderr, flush=True)
        return harness.in_a_process(command(suite, threads))

    available = device.available_threads()
    rows: list[dict] = []
    for threads in sorted({n for n in THREADS if n < available} | {available}):
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


def replicas(
    config: PredNetConfig,
    replica_counts: tuple[int, ...],
    window: int,
    repeats: int,
    noise: str,
    precision: str,
) -> dict[str, Any]:
    """Seconds per seed and update, with replicas in sequence (map) or at once (vmap).

    All programs take turns in one process. Ratios are to a run without replicas, the
    program of `train.py` without --replicas.
    """
    dtype = process.set_precision(precision)
    base = (1, 1, "single")
    subject = harness.training(config, dtype, noise=noise)
    programs: dict[Any, harness.Program] = {base: _single(subject, window)}
    for count in replica_counts:
        most = training_replicas.most_devices(count, 1, len(jax.devices()))
        for devices in sorted({1, most}):
            for mode in ("map", "vmap") if count > 1 else ("map",):
                name = (count, devices, mode)
                programs[name] = _several(subject, window, *name)
    medians = harness.medians(programs, repeats)
    rows = [
        {
            "replicas": count,
            "devices": devices,
            "mode": mode,
            "seconds_per_seed_update": seconds / count,
            "ratio_to_single": seconds / count / medians[base],
        }
        for (count, devices, mode), seconds in medians.items()
    ]
    print("\n".join(beside.replica_lines({"replicas": rows})), flush=True)
    return {
        "suite": "replicas",
        "rows": rows,
        "noise": noise,
        "precision": precision,
        "device": device.description(),
    }


def _single(subject: harness.Training, window: int) -> harness.Program:
    """A run without replicas, after its first update."""
    trainer = Trainer(subject.config, subject.optimizer, noise=subject.noise)
    frames = jax.device_put(harness.random_frames(subject.config, window + 1, 1))
    state = jax.tree.map(lambda x: jnp.array(x, copy=True), subject.state)

    def advance(state: Any) -> Any:
        return trainer.step(state, frames, False, subject.key)[0]

    return advance, jax.block_until_ready(advance(state))


def _several(
    subject: harness.Training, window: int, count: int, devices: int, mode: str
) -> harness.Program:
    """`count` replicas, after their first update."""
    place = training_replicas.layout(count, 1, jax.devices()[:devices])
    config = training_replicas.resolve_network(subject.config, mode).config
    update = training_replicas.compile_update(
        config, subject.optimizer, Method(), subject.noise, place, mode
    )

    states = place.place_states([subject.state] * count)
    shown = harness.random_frames(config, window + 1, 1)
    frames = place.place([shown] * count, training_replicas.BY_WINDOW)
    first = place.place([np.bool_(False)] * count, training_replicas.BY_REPLICA)
    noise = jax.random.key_data(subject.key)
    key_data = place.place([noise] * count, training_replicas.BY_REPLICA)

    def advance(states: Any) -> Any:
        return update(states, frames, first, key_data)[0]

    return advance, jax.block_until_ready(advance(states))


def pytorch(
    config: PredNetConfig,
    command: Callable[..., list[str]],
    torch_python: str | None,
    window: int,
    repeats: int,
    rounds: int,
) -> dict[str, Any]:
    """Our training window against `torch_prednet`, in turns, on two processors.

    Each runs in a process of its own, `rounds` times, of which the medians are
    compared. `throughput_ratio` is ours over PyTorch's (above 1 is faster), and so is
    `peak_memory_ratio` (below 1 needs less).
    """
    if torch_python is None or shutil.which(torch_python) is None:
        raise UserError(
            f"--torch_python={torch_python or ''}: expected a Python that has PyTorch"
        )
    # Children inherit the mask, and both libraries size their thread pools by it.
    cpus = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cpus)
    sizes = (config.height, config.width, window, repeats, *config.channels)
    peer = Path(__file__).with_name("torch_prednet.py")
    commands = {
        "torch": [torch_python, str(peer), *map(str, sizes)],
        "jax": command("step", 0),
    }
    results: dict[str, list[dict]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, words in commands.items():
            results[name].append(harness.in_a_process(words))
            seconds = results[name][-1]["seconds_per_window"]
            print(f"{name}: {seconds:.3f} s per window", flush=True)
    parameters = {r["parameters"] for found in results.values() for r in found}
    if len(parameters) != 1:
        raise RuntimeError(f"parameters {sorted(parameters)}: not the same network")

    def median(name: str, field: str) -> float:
        return statistics.median(row[field] for row in results[name])

    seconds, memory = (
        {name: median(name, field) for name in results}
        for field in ("seconds_per_window", "peak_rss_mb")
    )
    return {
        "suite": "pytorch",
        "throughput_ratio": seconds["torch"] / seconds["jax"],
        "peak_memory_ratio": memory["jax"] / memory["torch"],
        "compile_seconds": median("jax", "compile_seconds"),
        "seconds_per_window": seconds,
        "peak_rss_mb": memory,
        "cpus": cpus,
    }
