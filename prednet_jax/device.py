"""What this process computes on: processors, memory, devices, a GPU."""

import contextlib
import functools
import os
import shutil
import subprocess
import time
from pathlib import Path

import jax
import jax.numpy as jnp


def available_threads() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int | None:
    """Bytes that a training can use on one device; None: unknown.

    For a CPU this is the memory of the machine, or the limit of its control group where
    that is lower. Starts the backend.
    """
    stats = jax.local_devices()[0].memory_stats() or {}
    if jax.default_backend() != "cpu":
        return stats.get("bytes_limit")
    found = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            found.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return min(found, default=None)


@functools.cache
def gpu_found() -> str | None:
    """The first NVIDIA GPU, by its driver, or None; JAX would start a backend."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        done = subprocess.run(
            [tool, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0] if lines else None


@functools.cache
def measured_parallelism() -> float:
    """Processor seconds per second of wall time, of 0.3 s of matrix products."""
    size = 512
    a = jnp.ones((size, size), jnp.float32)
    multiply = jax.jit(lambda x: x @ x / size)
    multiply(a).block_until_ready()
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < 0.3:
        a = multiply(a).block_until_ready()
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def description() -> dict[str, object]:
    """Devices, processor model, and usable threads; starts the backend."""
    devices = jax.devices()
    return {
        "platform": devices[0].platform,
        "kind": devices[0].device_kind,
        "count": len(devices),
        "threads": available_threads(),
        "processor": _processor(),
    }


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return "unknown"
