"""Test session settings: CPU, strict dtype promotion, two threads, short compilations.

XLA's flags are those of the scripts. With PREDNET_DEFAULT_XLA_FLAGS=1 they are XLA's
defaults, as in a program that does not call `process.prepare` (`make
test-default-flags`).
"""

import gc
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# LLVM's optimisations are most of the time that tests take, and change no behaviour.
# Scripts that tests start do without them too.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import jax
import pytest

from prednet_jax import process

pytest_plugins = ["tests.processes"]

# No test can see a power failure, and waiting for the disk takes long.
os.fsync = lambda _: None

if not os.environ.get("PREDNET_DEFAULT_XLA_FLAGS"):
    # Many tests compile equal programs, each in a function of its own.
    process.prepare(cache=True)
jax.config.update("jax_numpy_dtype_promotion", "strict")


QUICK = "jax_disable_most_optimizations"
UNOPTIMIZED = jax.config.values[QUICK]


def pytest_collection_finish():
    """Leaves what was imported out of garbage collections, and makes these rarer."""
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Compiles tests that are marked `optimized` as a user's process does."""
    wanted = UNOPTIMIZED and item.get_closest_marker("optimized") is None
    if wanted != jax.config.values[QUICK]:
        # Otherwise programs that were compiled before would be taken.
        jax.clear_caches()
        jax.config.update(QUICK, wanted)
