"""Devices, threads and flags of a process, and the arms of an experiment.

An arm is what a process of its own is started with: an environment, flags of
`experiments/train.py`, a number of threads. Threads and XLA's flags are read once when
a backend starts, so two arms can never share a process.
"""

import ctypes
import functools
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from prednet_jax import noise
from prednet_jax.config import CONVOLUTIONS

PRECISIONS = ("float32", "float64")
ARM_NAMES = (
    "float32",
    "float64",
    "threads_<n>",
    "reduction_order",
    "reduction_order_<shared|tile|element>",
    "ulp",
    "stochastic_rounding",
    "gaussian_<scale>",
    f"convolution_<{'|'.join(CONVOLUTIONS)}>",
    "stale_targets",
    "gpu",
    "gpu_deterministic",
)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One treatment: a process of its own.

    Attributes:
        name: name in tables and directories.
        meaning: one phrase for the report.
        flags: flags of `experiments/train.py` beyond the common ones.
        environment: variables set for the process.
        threads: processors that it is confined to; None: all.
        gpu: whether it needs a GPU.
    """

    name: str
    meaning: str
    flags: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    threads: int | None = None
    gpu: bool = False


def arm(name: str) -> Arm:
    """The arm of that name.

    Raises:
        ValueError: the name is none of `ARM_NAMES`, or its noise is out of range.
    """
    cpu = (("JAX_PLATFORMS", "cpu"),)

    def on_cpu(meaning: str, *flags: str) -> Arm:
        return Arm(name=name, meaning=meaning, flags=flags, environment=cpu)

    fixed = {
        "float32": on_cpu("float32, deterministic order (the control)"),
        "float64": on_cpu("float64, deterministic order", "--precision=float64"),
        "stale_targets": on_cpu(
            "Chainer's CPU bug: targets of the window's last frame", "--targets=stale"
        ),
        "reduction_order": on_cpu(
            "fresh random order of every reduction", "--noise=reduction_order"
        ),
        "ulp": on_cpu("up to one ulp on every result", "--noise=ulp"),
        "stochastic_rounding": on_cpu(
            "stochastic rounding of every result", "--noise=stochastic_rounding"
        ),
        "gpu": Arm(
            name=name,
            meaning="GPU, default algorithms",
            environment=(
                ("JAX_PLATFORMS", "cuda"),
                ("JAX_DEFAULT_MATMUL_PRECISION", "highest"),
            ),
            gpu=True,
        ),
        "gpu_deterministic": Arm(
            name=name,
            meaning="GPU, deterministic algorithms",
            environment=(
                ("JAX_PLATFORMS", "cuda"),
                ("JAX_DEFAULT_MATMUL_PRECISION", "highest"),
                ("XLA_FLAGS", "--xla_gpu_deterministic_ops=true"),
            ),
            gpu=True,
        ),
    }
    if name in fixed:
        return fixed[name]
    if match := re.fullmatch(r"threads_([1-9]\d*)", name):
        confined = on_cpu(f"float32, {match[1]} thread(s)", f"--threads={match[1]}")
        return replace(confined, threads=int(match[1]))
    if match := re.fullmatch(r"reduction_order_(shared|tile|element)", name):
        return on_cpu(
            f"fresh random order, one for each {match[1]}",
            f"--noise=reduction_order:granularity={match[1]}",
        )
    if match := re.fullmatch(r"gaussian_(\d+(\.\d+)?(e-?\d+)?)", name):
        spec = f"gradient_gaussian:scale={match[1]}"
        try:
            noise.parse(spec)
        except ValueError as error:
            raise ValueError(f"arm={name!r}: {error}") from None
        return on_cpu(
            f"Gaussian noise of {match[1]} times the gradient's norm", f"--noise={spec}"
        )
    if match := re.fullmatch(f"convolution_({'|'.join(CONVOLUTIONS)})", name):
        return on_cpu(
            f"{match[1]} convolutions, a fixed other order", f"--convolution={match[1]}"
        )
    raise ValueError(f"arm={name!r}: expected one of {', '.join(ARM_NAMES)}")


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


def available_threads() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def limit_threads(count: int) -> None:
    """Confines this process, and every thread it starts later, to `count` processors.

    XLA sizes its CPU thread pool by the processors the process may use, when the
    backend starts: call this before any array is made. The affinity mask enforces the
    number whatever a library believes; `measured_parallelism` shows it.

    Raises:
        ValueError: count is below 1 or above what there is, or the system offers no
            affinity masks.
    """
    check_threads(count)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    os.environ["NPROC"] = str(count)


def check_threads(count: int) -> None:
    """Refuses a number that `limit_threads` cannot enforce here.

    Raises:
        ValueError: as `limit_threads`.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise ValueError(
            f"threads={count}: this system has no affinity masks; expected all (the "
            "default)"
        )
    available = available_threads()
    if not 1 <= count <= available:
        raise ValueError(f"threads={count}: expected 1 to {available} (all there are)")


def split_cpu(count: int) -> None:
    """Makes the CPU appear as `count` devices, which share its threads.

    Call it before any array is made. Where XLA_FLAGS already says a number, that one
    stays.

    Raises:
        ValueError: count is below 1.
    """
    if count < 1:
        raise ValueError(f"devices={count}: expected at least 1")
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", count)


def join_processes(coordinator: str, count: int, number: int) -> None:
    """Joins the processes of one program, through `jax.distributed`.

    Call it before any array is made. Waits until all have joined.

    Args:
        coordinator: host:port, the same for all, served by process 0.
        count: processes altogether.
        number: of this process, from 0.

    Raises:
        ValueError: a value is outside what is accepted, or nothing answers there.
    """
    if count < 1:
        raise ValueError(f"processes={count}: expected at least 1")
    if not 0 <= number < count:
        raise ValueError(f"process={number}: expected 0 to {count - 1}")
    if not re.fullmatch(r".+:\d+", coordinator):
        raise ValueError(
            f"coordinator={coordinator!r}: expected host:port such as localhost:9000"
        )
    try:
        jax.distributed.initialize(coordinator, count, number)
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"coordinator={coordinator!r}: not joined ({first})") from None


# How XLA compiles for the CPU, measured (BUILD_NOTES.md, Speed), and the first version
# of jax without the flag. An unknown flag ends the process.
_XLA_FLAGS = {
    # The older emitters: two thirds of the time and half of the memory to compile a
    # training step, which then is as fast.
    "--xla_cpu_use_fusion_emitters": ("false", (0, 11)),
    # No convolutions in YNNPACK: its small ones gain nothing by a second thread.
    "--xla_cpu_experimental_ynn_fusion_type": ("", (0, 12)),
    # The order of operations that needs least memory, not the one that could keep most
    # threads busy: half to three quarters of the temporaries, and no slower.
    "--xla_cpu_scheduler_type": ("CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED", (0, 12)),
}


def set_xla_flags() -> None:
    """Has XLA compile for the CPU as measured to be best for a training step.

    A choice in XLA_FLAGS stays, and so does the name of a file in it. To be called
    before JAX computes anything.
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if flags and not flags.startswith("-"):
        return
    for name, (value, without) in _XLA_FLAGS.items():
        if name not in flags and jax.__version_info__ < without:
            flags = f"{flags} {name}={value}".strip()
    os.environ["XLA_FLAGS"] = flags


@functools.cache
def release_memory_of_compiling() -> None:
    """Has what a long compilation freed given back to the system.

    LLVM frees tens of megabytes in small pieces. The C library keeps them for requests
    as small, while a training step asks for a few large blocks. Does nothing where the
    C library has no `malloc_trim`.
    """
    # Without a name it is the process's own library, on POSIX systems alone.
    library = ctypes.CDLL(None) if os.name == "posix" else None
    trim = getattr(library, "malloc_trim", None)
    if trim is None:
        return

    def compiled(event: str, duration_secs: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration" and duration_secs > 1:
            trim(0)

    jax.monitoring.register_event_duration_secs_listener(compiled)


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


def set_precision(precision: str) -> jnp.dtype:
    """Sets JAX up for float32 or float64 and returns the dtype.

    Raises:
        ValueError: the precision is neither.
    """
    if precision not in PRECISIONS:
        raise ValueError(
            f"precision={precision!r}: expected one of {', '.join(PRECISIONS)}"
        )
    jax.config.update("jax_enable_x64", precision == "float64")
    # TF32 would change rounding, not order: off, in every arm alike.
    jax.config.update("jax_default_matmul_precision", "highest")
    return jnp.dtype(precision)


def device_description() -> dict[str, object]:
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
