"""Errors that a script reports in one line, and lines on stderr.

A script prints a `UserError` as one line and ends with status 2, a `RunError` with
status 1; every other exception is a fault of the program and keeps its traceback.
"""

import contextlib
import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import Collection, Iterator

from prednet_jax.noise.errors import UserError as UserError
from prednet_jax.noise.errors import check_int as check_int
from prednet_jax.noise.errors import decay as decay
from prednet_jax.noise.errors import expect as expect
from prednet_jax.noise.errors import no_backend as no_backend
from prednet_jax.noise.errors import not_negative as not_negative
from prednet_jax.noise.errors import one_of as one_of
from prednet_jax.noise.errors import open_streams as open_streams
from prednet_jax.noise.errors import open_unit as open_unit
from prednet_jax.noise.errors import positive as positive
from prednet_jax.noise.errors import shown as shown


class RunError(RuntimeError):
    """A run that cannot continue although its command was valid."""


@contextlib.contextmanager
def named(name: object, kind: type[UserError] = UserError) -> Iterator[None]:
    """Puts the name of a flag or file in front of a UserError; it becomes a `kind`."""
    try:
        yield
    except UserError as error:
        raise kind(f"{name}: {error}") from None


def each_once(name: str, values: Collection[object]) -> None:
    """Refuses an empty list, and a list in which a value stands twice."""
    if not 0 < len(values) == len(set(values)):
        listed = ",".join(map(str, values))
        raise UserError(f"{name}={listed}: expected at least one, each once")


# The extra of setup.cfg that brings a module, by the name under which it is imported.
_BRINGS = {
    "data": "PIL av h5py importlib_resources safetensors skimage sklearn "
    "tensorflow_datasets",
    "report": "jinja2 pandas vl_convert",
    "study": "matfree scipy",
    "sweep": "pyarrow ray",
}
EXTRAS = {name: extra for extra, modules in _BRINGS.items() for name in modules.split()}


def missing_extra(error: ImportError) -> str | None:
    """Returns the command to install a missing module of an extra, or None.

    It installs from the path of a checkout, since no package index has this project.
    """
    name = (error.name or "").split(".")[0]
    if name not in EXTRAS:
        return None
    return f"{name} is not installed; pip install '.[{EXTRAS[name]}]'"


def log_line(text: str) -> None:
    """Writes one line on stderr, above a progress bar and not into it.

    A stderr that is full or closed loses the line and ends nothing.
    """
    bars = sys.modules.get("tqdm")  # None: nothing has drawn one.
    with contextlib.suppress(OSError):
        (bars.tqdm.write if bars else print)(text, file=sys.stderr)
        sys.stderr.flush()


@functools.cache
def log_once(text: str) -> None:
    """Writes one line on stderr, once however often it is reported."""
    log_line(text)


def repeat_lost_interrupts() -> None:
    """Repeats a Ctrl-C that came in a callback, whose exceptions Python drops.

    JAX has such a callback of the garbage collector, in which one of ten arrives while
    a script starts. The traceback that Python would print is left out.
    """
    others = sys.unraisablehook

    def repeat(dropped: "sys.UnraisableHookArgs") -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            others(dropped)
            return
        # A while later, when the callback has returned.
        again = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        # Another one may come while this waits for the thread: one is repeated.
        with contextlib.suppress(KeyboardInterrupt):
            again.start()

    sys.unraisablehook = repeat


# Files that an NVIDIA driver shows, on Linux and in Windows' Linux.
_DRIVERS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")


def quieten_cuda_plugin() -> None:
    """Drops JAX's traceback about a CUDA plugin that has no device to run on.

    The extra `gpu-audit` installs JAX's CUDA plugin too, for its compiler. Without a
    driver JAX then continues on the CPU, as before, but logs this in twenty lines.
    """

    def says_more(record: logging.LogRecord) -> bool:
        about = "jax_plugins.xla_cuda" in str(record.args)
        return not (about and not any(map(os.path.exists, _DRIVERS)))

    logging.getLogger("jax._src.xla_bridge").addFilter(says_more)
