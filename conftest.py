"""Test session settings: CPU, strict dtype promotion, two threads at most.

XLA's flags are those of the scripts. With PREDNET_DEFAULT_XLA_FLAGS=1 they are XLA's
defaults, as in a program that does not call `process.prepare` (`make
test-default-flags`).
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

from prednet_jax import process

pytest_plugins = ["tests.processes"]

# No test can see a power failure, and waiting for the disk takes long.
os.fsync = lambda _: None

if not os.environ.get("PREDNET_DEFAULT_XLA_FLAGS"):
    process.prepare()
jax.config.update("jax_numpy_dtype_promotion", "strict")
