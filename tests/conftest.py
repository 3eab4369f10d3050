"""Test session settings: CPU, strict dtype promotion, two threads at most.

Environment variables are set before JAX is imported: the backend reads them once.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Without it every script that a test starts would start twice.
os.environ.setdefault(
    "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"
)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax

from prednet_jax import backends

# As the scripts do. XLA_FLAGS=--xla_cpu_use_fusion_emitters=true tests the other way.
backends.set_xla_flags()
jax.config.update("jax_numpy_dtype_promotion", "strict")
