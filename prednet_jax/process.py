"""Settings of a process: processors, precision, devices, cache, and XLA's flags.

XLA reads its flags and sizes its thread pool once, when the first array is made. So
`prepare` has to be called before that, as every script does first; nothing happens at
import. An environment variable that is already set is not changed. A comment at each
setting gives its measured gain; the commands are in study/pages/measurements.md,
section Speed.
"""

import contextlib
import ctypes
import functools
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from prednet_jax.errors import UserError, check_int, expect, one_of

# Precisions of a computation, and JAX's precision of matrix products for each.
PRECISIONS = {
    "float32": "highest",
    "float64": "highest",
    "tf32": "tensorfloat32",
    "bfloat16": "bfloat16",
}
# M_ARENA_MAX of malloc.h.
_M_ARENA_MAX = -8
_COMPILED = "/jax/core/compile/backend_compile_duration"


def prepare(*, threads: int = 0, first: int = 0, cache: bool = False) -> None:
    """Applies the settings that were measured to be best for training on a CPU.

    Args:
        threads: number of processors to use, enforced by `limit_threads`. Defaults to
            0, all.
        first: index of the first of these processors, from 0; larger indices wrap
            around.
        cache: whether to keep compiled programs on disk for later processes.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if threads:
        limit_threads(threads, first)
    set_xla_flags()
    # One heap of glibc per two processors; its default is eight per processor. Memory
    # that one heap frees cannot be used by another: 180 of 1270 MB at 160x120.
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if mallopt := getattr(library, "mallopt", None):
        mallopt(_M_ARENA_MAX, max(1, available_threads() // 2))
    release_memory_of_compiling()
    if cache:
        use_compilation_cache()


def limit_threads(count: int, first: int = 0) -> None:
    """Confines this process, and every thread it starts later, to `count` processors.

    Call it before any array is made: XLA sizes its thread pool by the affinity mask.
    Processes that run at the same time should each have a different `first`.
    """
    check_threads(count)
    allowed = sorted(os.sched_getaffinity(0))
    chosen = [allowed[(first + i) % len(allowed)] for i in range(count)]
    os.sched_setaffinity(0, chosen)
    os.environ["NPROC"] = str(count)


def check_threads(count: int) -> None:
    """Refuses a number that `limit_threads` cannot enforce here."""
    if not hasattr(os, "sched_setaffinity"):
        raise UserError(
            f"threads={count}: this system has no affinity masks; expected all (the "
            "default)"
        )
    check_int("threads", count, 1, available_threads())


def split_cpu(count: int) -> None:
    """Makes the CPU appear as `count` devices, which share its threads.

    Call it before any array is made. A number of devices in XLA_FLAGS takes precedence.
    """
    check_int("devices", count, 1)
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", count)


# Variables in which a launcher reports its number of processes and this one's index
# (docs/runs.md), after the name by which `jax.distributed` knows the launcher.
_LAUNCHERS = (
    ("slurm", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID"),
    ("ompi", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("k8s", "KUBERNETES_SERVICE_HOST", None, "JOB_COMPLETION_INDEX"),
)


class Launched(NamedTuple):
    """A launcher's name, its number of processes (or None), and this one's index."""

    launcher: str
    total: int | None
    number: int


def launched() -> Launched | None:
    """Returns the launcher that started this process, or None if it runs alone."""
    for name, mark, count, number in _LAUNCHERS:
        if mark in os.environ and number in os.environ:
            total = int(os.environ[count]) if count else None
            launch = Launched(name, total, int(os.environ[number]))
            return None if total == 1 else launch
    return None


def join_launched(launch: Launched) -> None:
    """Joins the processes that a launcher started, which `jax.distributed` detects.

    Call it before any array is made. Waits until all have joined.
    """
    _join(f"processes of {launch.launcher}", cluster_detection_method=launch.launcher)


def join_processes(coordinator: str, count: int, number: int) -> None:
    """Joins the `count` processes of one program, through `jax.distributed`.

    It works as `join_launched` does. `coordinator` is host:port of process 0, and
    `number` is the index of this process.
    """
    check_int("processes", count, 1)
    check_int("process", number, 0, count - 1)
    named = re.fullmatch(r".+:\d+", coordinator)
    expect(named, "coordinator", coordinator, "host:port such as localhost:9000")
    _join(
        f"coordinator={coordinator!r}",
        coordinator_address=coordinator,
        num_processes=count,
        process_id=number,
    )


def _join(what: str, **options: Any) -> None:
    # JAX's service would take SIGTERM from `training.interruption`, which saves the
    # run.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(**options)
    # The launcher does not report the address of process 0, or its package is missing.
    except (RuntimeError, ValueError, KeyError, ImportError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(
            f"{what}: not joined ({first}); give --coordinator=host:port of process "
            "0, or --coordinator=none to train in each process alone"
        ) from None


def all_max(*values: int) -> tuple[int, ...]:
    """Returns the largest of each value over all processes; all call it."""
    if jax.process_count() == 1:
        return values
    everywhere = multihost_utils.process_allgather(np.asarray(values, np.int32))
    return tuple(np.max(everywhere, axis=0).tolist())


def barrier(name: str) -> None:
    """Waits until all processes are here; `name` is the same in all of them."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def assert_same_on_all(name: str, value: Any) -> None:
    """Refuses values that differ between processes, perhaps because of other disks."""
    digest = zlib.crc32(repr(value).encode()) >> 1
    if all_max(digest, -digest) != (digest, -digest):
        raise UserError(
            f"{name} differs between processes: {value} in process "
            f"{jax.process_index()}; expected a --workdir on a disk that all share"
        )


# Flags of XLA's CPU compiler: the value measured to be best
# (study/pages/measurements.md), and the first version of jax without the flag. XLA ends
# the process at an unknown flag.
_XLA_FLAGS = {
    # The older emitters compile a training step in two thirds of the time and half of
    # the memory; the step is as fast.
    "--xla_cpu_use_fusion_emitters": ("false", (0, 11)),
    # No convolutions in YNNPACK: small ones do not use a second thread there.
    "--xla_cpu_experimental_ynn_fusion_type": ("", (0, 12)),
    # Order operations for least memory, not for most parallel threads: temporaries take
    # half to three quarters of the memory, at the same speed.
    "--xla_cpu_scheduler_type": ("CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED", (0, 12)),
}


# With a GPU: products of matrices by cuBLAS alone. Tuning XLA's own kernels for them
# makes most of a training step's compile time, and most steps were faster without
# (docs/gpu.md).
_GPU_FLAGS = {"--xla_gpu_enable_triton_gemm": ("false", (0, 12))}


def set_xla_flags() -> None:
    """Adds the flags measured to be best for a training step to XLA_FLAGS.

    Flags that the variable has already are not changed. If it names a file of flags,
    nothing is added.
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if flags and not flags.startswith("-"):
        return
    defaults = _XLA_FLAGS | (_GPU_FLAGS if gpu_found() else {})
    for name, (value, without) in defaults.items():
        if name not in flags and jax.__version_info__ < without:
            flags = f"{flags} {name}={value}".strip()
    os.environ["XLA_FLAGS"] = flags


@functools.cache
def release_memory_of_compiling() -> None:
    """Returns freed memory to the system after each compilation of more than a second.

    LLVM frees tens of megabytes in small pieces, which the C library keeps.
    """
    library = ctypes.CDLL(None) if os.name == "posix" else None
    trim = getattr(library, "malloc_trim", None)
    if trim is None:
        return

    def compiled(event: str, duration_secs: float, **_: object) -> None:
        if event == _COMPILED and duration_secs > 1:
            trim(0)

    jax.monitoring.register_event_duration_secs_listener(compiled)


def use_compilation_cache() -> None:
    """Keeps compiled programs on disk for later processes.

    There is one folder per number of threads. XLA partitions loops by that number when
    it compiles, but its cache key does not contain it. A program compiled for another
    number would silently add in another order.
    """
    root = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if root is None:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        root = os.path.join(home, "prednet_jax")
    folder = os.path.join(root, f"threads_{available_threads()}")
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def set_precision(precision: str) -> jnp.dtype:
    """Sets up the precision of a computation and returns the type of its parameters.

    Args:
        precision: `float32` and `float64` compute in that type on every device. `tf32`
            lets a device that has TF32 round the operands of float32 products to it.
            `bfloat16` rounds them to bfloat16 on every device. The last two keep
            parameters, states, sums and the optimiser in float32.

    Raises:
        UserError: the precision is not one of these.
    """
    one_of("precision", precision, tuple(PRECISIONS))
    jax.config.update("jax_enable_x64", precision == "float64")
    jax.config.update("jax_default_matmul_precision", PRECISIONS[precision])
    return jnp.dtype("float64" if precision == "float64" else "float32")


def has_tf32() -> bool:
    """Returns whether the device rounds products to TF32; starts the backend."""
    device = jax.local_devices()[0]
    # CUDA's number of an A100, the first card with TF32, is 8.0.
    generation = float(getattr(device, "compute_capability", 8))
    return device.platform == "gpu" and generation >= 8


def available_threads() -> int:
    """Returns the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int | None:
    """Returns the bytes that a training can use on one device, if known."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if jax.default_backend() != "cpu":
        return stats.get("bytes_limit")
    limits = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            limits.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return min(limits, default=None)


@functools.cache
def gpu_found() -> str | None:
    """Returns the first NVIDIA GPU by its driver, or None, without starting JAX."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.strip().splitlines()
    return None if done.returncode or not lines else lines[0]


def description() -> dict[str, object]:
    """Returns devices, processor model and usable threads; starts the backend."""
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
