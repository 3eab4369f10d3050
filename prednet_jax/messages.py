"""Lines on stderr: above a progress bar, and one of JAX's that says nothing new."""

import logging
import os
import sys


def say(text: str) -> None:
    """Writes one line on stderr, above a progress bar and not into it."""
    bars = sys.modules.get("tqdm")  # None: nothing has drawn one.
    (bars.tqdm.write if bars else print)(text, file=sys.stderr)
    sys.stderr.flush()


# What an NVIDIA driver shows, and that of Windows' Linux.
_DRIVERS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")


def quieten_cuda_plugin() -> None:
    """Drops JAX's traceback about a CUDA plugin that has no device to run on.

    Beside JAX the extra `gpu-audit` installs its CUDA plugin, for its compiler. Without
    a driver JAX then goes on with the CPU, as before, but says so in twenty lines.
    """

    def says_more(record: logging.LogRecord) -> bool:
        about = "jax_plugins.xla_cuda" in str(record.args)
        return not (about and not any(map(os.path.exists, _DRIVERS)))

    logging.getLogger("jax._src.xla_bridge").addFilter(says_more)
