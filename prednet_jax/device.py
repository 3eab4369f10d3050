"""What this process computes on: processors, devices, a GPU."""

import functools
import os
import shutil
import subprocess
import time

import jax
import jax.numpy as jnp


def available_threads() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpu_found() -> str | None:
    """Name of the first NVIDIA GPU, or None; asked of the driver, not of JAX.

    JAX would start a backend, and a started backend can no longer be chosen.
    """
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
def measured_parallelism(seconds: float = 0.3, size: int = 512) -> float:
    """Processor seconds a second of wall time, while multiplying matrices.

    Args:
        seconds: how long to measure.
        size: rows and columns of the float32 matrices.

    Returns:
        About the number of threads at work; at most 1 (and a little) when confined.
    """
    a = jnp.ones((size, size), jnp.float32)
    multiply = jax.jit(lambda x: x @ x / size)
    multiply(a).block_until_ready()
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        a = multiply(a).block_until_ready()
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def description() -> dict[str, object]:
    """Platform, kind and number of the devices, and the threads this process may use.

    Starts the backend.
    """
    devices = jax.devices()
    return {
        "platform": devices[0].platform,
        "kind": devices[0].device_kind,
        "count": len(devices),
        "threads": available_threads(),
        "processor": _processor(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return "unknown"
