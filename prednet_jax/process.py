"""What must be set before a backend starts: threads, XLA's flags, memory, devices.

XLA reads its flags and sizes its pool of threads once, when the first array is made; so
a process is set up first and computes afterwards. Nothing here happens at import. A
script calls `prepare` in the first line of its main, and a user of the library may too:

    from prednet_jax import process
    process.prepare()

An environment variable that is set already stays as it is. What each setting gains
stands beside it; docs/measurements.md, Speed, has the commands.
"""

import ctypes
import functools
import os
import re
import sys
import threading

import jax
import jax.numpy as jnp

from prednet_jax import messages
from prednet_jax.device import available_threads
from prednet_jax.errors import UserError, one_of, whole

PRECISIONS = ("float32", "float64")
# Reading a program from the cache takes less.
LONG_COMPILE_SECONDS = 3.0
# In malloc.h.
_M_ARENA_MAX = -8


def prepare(*, threads: int = 0, cache: bool = False) -> None:
    """Sets the process up as measured to be best for a training step on a CPU.

    Args:
        threads: processors to use, enforced; 0: all (see `limit_threads`).
        cache: whether compiled programs are kept between processes.

    Raises:
        UserError: there are not so many processors, or they cannot be limited here.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if threads:
        limit_threads(threads)
    set_xla_flags()
    share_heap()
    release_memory_of_compiling()
    if cache:
        use_compilation_cache()


def limit_threads(count: int) -> None:
    """Confines this process, and every thread it starts later, to `count` processors.

    XLA sizes its CPU thread pool by the processors the process may use, when the
    backend starts: call this before any array is made. The affinity mask enforces the
    number whatever a library believes; `device.measured_parallelism` shows it.

    Raises:
        UserError: count is below 1 or above what there is, or the system offers no
            affinity masks.
    """
    check_threads(count)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    os.environ["NPROC"] = str(count)


def check_threads(count: int) -> None:
    """Refuses a number that `limit_threads` cannot enforce here.

    Raises:
        UserError: as `limit_threads`.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise UserError(
            f"threads={count}: this system has no affinity masks; expected all (the "
            "default)"
        )
    available = available_threads()
    whole("threads", count, 1, available)


def split_cpu(count: int) -> None:
    """Makes the CPU appear as `count` devices, which share its threads.

    Call it before any array is made. Where XLA_FLAGS already says a number, that one
    stays.

    Raises:
        UserError: count is below 1.
    """
    whole("devices", count, 1)
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
        UserError: a value is outside what is accepted, or nothing answers there.
    """
    whole("processes", count, 1)
    whole("process", number, 0, count - 1)
    if not re.fullmatch(r".+:\d+", coordinator):
        raise UserError(
            f"coordinator={coordinator!r}: expected host:port such as localhost:9000"
        )
    try:
        jax.distributed.initialize(coordinator, count, number)
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(f"coordinator={coordinator!r}: not joined ({first})") from None


# How XLA compiles for the CPU, measured (docs/measurements.md), and the first version
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


def share_heap() -> None:
    """Has the C library keep one heap for two processors, not eight for each.

    Every thread that compiles takes a heap, and what it frees is lost to the others:
    15 of 400 MB at 64x48 on two processors, 180 of 1270 MB at 160x120. Does nothing
    where the C library is not glibc.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    mallopt = getattr(library, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, max(1, available_threads() // 2))


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


def use_compilation_cache() -> None:
    """Keeps compiled programs between processes.

    In JAX_COMPILATION_CACHE_DIR, or else in the user's cache folder. A folder for each
    number of threads: XLA partitions loops by it when it compiles, so a program from
    another count would silently be another arm.
    """
    root = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if root is None:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        root = os.path.join(home, "prednet_jax")
    folder = os.path.join(root, f"threads_{available_threads()}")
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    _announce_long_compile(folder)


def _announce_long_compile(folder: str) -> None:
    """One line on stderr, once, while a program has been compiling for a while.

    A program from the cache is there sooner, and nothing is said.
    """
    waiting: list[threading.Timer] = []
    said = threading.Event()

    def announce() -> None:
        if not said.is_set():
            said.set()
            messages.say(
                f"compiling: seconds to minutes the first time, then kept in {folder}"
            )

    def begin(event: str, **_: object) -> None:
        if event == "/jax/compilation_cache/compile_requests_use_cache":
            timer = threading.Timer(LONG_COMPILE_SECONDS, announce)
            timer.daemon = True
            waiting.append(timer)
            timer.start()

    def end(event: str, duration_secs: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            while waiting:
                waiting.pop().cancel()

    jax.monitoring.register_event_listener(begin)
    jax.monitoring.register_event_duration_secs_listener(end)


def set_precision(precision: str) -> jnp.dtype:
    """Sets JAX up for float32 or float64 and returns the dtype.

    Raises:
        UserError: the precision is neither.
    """
    one_of("precision", precision, PRECISIONS)
    jax.config.update("jax_enable_x64", precision == "float64")
    # TF32 would change rounding, not order: off, in every arm alike.
    jax.config.update("jax_default_matmul_precision", "highest")
    return jnp.dtype(precision)
