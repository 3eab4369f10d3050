"""What determines a run's numbers beside its flags: commit, versions, environment."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "chex", "prednet-jax")
# Variables that change what XLA or the process computes.
ENVIRONMENT = (
    *("XLA_FLAGS", "GLIBC_TUNABLES", "JAX_PLATFORMS", "JAX_ENABLE_X64"),
    *("JAX_DEFAULT_MATMUL_PRECISION", "JAX_COMPILATION_CACHE_DIR", "NPROC"),
    *("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TF_CUDNN_DETERMINISTIC"),
    "NVIDIA_TF32_OVERRIDE",
)
# Those that say where things are, not what is computed.
_PLACES = ("JAX_COMPILATION_CACHE_DIR", "CUDA_VISIBLE_DEVICES", "GLIBC_TUNABLES")


def git_commit(directory: str | os.PathLike) -> str | None:
    """Commit of a checkout, with `+changes` if tracked files differ; None: no git."""

    def git(*args: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", os.fspath(directory), *args],
                capture_output=True,
                text=True,
                check=True,
                timeout=20,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    if commit and git("status", "--porcelain", "--untracked-files=no"):
        commit += "+changes"
    return commit


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that determine the numbers."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def environment() -> dict[str, str]:
    """Those variables of `ENVIRONMENT` that are set, with their values."""
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}


def of_numbers(variables: Mapping[str, str]) -> dict[str, str]:
    """Those variables that may change numbers, in alphabetical order."""
    return {k: v for k, v in sorted(variables.items()) if k not in _PLACES}
