"""Virtual environments beside .venv, for libraries that cannot live in it.

Chainer needs an older Python and NumPy than JAX does, and PyTorch is wanted for one
experiment only. Each environment is a directory `.venv-NAME`, built once; a stamp in it
holds what it was built from. Interpreters are looked for on PATH (`python3.8`), then in
pyenv's folder.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from prednet_jax.errors import RunError, UserError

HERE = Path(__file__).parent
ROOT = HERE.parent


class UnavailableError(UserError):
    """An environment cannot be made; the message says why and what helps."""


class Environment(NamedTuple):
    """What an environment is built from.

    Attributes:
        name: its directory is `.venv-NAME` in the project's root.
        pythons: versions of Python that serve, the best first.
        requirements: file of pinned packages, below this folder.
        package: installed last, without its dependencies.
    """

    name: str
    pythons: tuple[str, ...]
    requirements: str
    package: str | None = None

    @property
    def directory(self) -> Path:
        """Where it lies."""
        return ROOT / f".venv-{self.name}"


# The published scripts ask for Chainer 7.8.
CHAINER = Environment(
    "chainer",
    ("3.11", "3.10", "3.9", "3.8"),
    "in_chainer/requirements.txt",
    "chainer==7.8.1",
)
# With Intel's iDeep, which Chainer can use on a CPU.
IDEEP = Environment(
    "chainer-ideep",
    ("3.7", "3.6"),
    "in_chainer/requirements-ideep.txt",
    "chainer==7.8.1",
)
# Releases before and after the change, all with one Python and one NumPy.
RELEASES = {
    release: Environment(
        f"chainer-{release}",
        ("3.8",),
        "in_chainer/requirements-releases.txt",
        f"chainer=={release}",
    )
    for release in ("2.1.0", "3.0.0b1", "3.0.0rc1", "5.0.0", "7.8.1")
}
TORCH = Environment("torch", ("3.11", "3.12", "3.13"), "in_torch/requirements.txt")


def ensure(environment: Environment) -> Path:
    """Builds the environment unless it is there; returns its interpreter.

    Raises:
        UnavailableError: no interpreter of the versions that it needs, or an
            installation failed.
    """
    requirements = HERE / environment.requirements
    text = requirements.read_text() + str(environment.package)
    wanted = hashlib.sha256(text.encode()).hexdigest()
    stamp = environment.directory / ".installed"
    python = environment.directory / "bin" / "python"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    base = find_python(environment.pythons)
    print(f"building {environment.directory.name} with {base}", file=sys.stderr)
    shutil.rmtree(environment.directory, ignore_errors=True)
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    pip.append("--disable-pip-version-check")
    steps = [
        [str(base), "-m", "venv", str(environment.directory)],
        [*pip, "--requirement", str(requirements)],
    ]
    if environment.package is not None:
        alone = ["--no-deps", "--no-build-isolation", environment.package]
        steps.append([*pip, *alone])
    for step in steps:
        if subprocess.run(step, check=False).returncode:
            name, command = environment.directory.name, " ".join(step)
            raise UnavailableError(f"{name}: failed: {command}")
    stamp.write_text(wanted)
    return python


def find_python(versions: Sequence[str]) -> Path:
    """The first interpreter of one of these versions that can make environments.

    Args:
        versions: such as `("3.11", "3.10")`, the best first.

    Raises:
        UnavailableError: there is none.
    """
    # A shim of pyenv may be on PATH for a version that is not there.
    check = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    for version in versions:
        name = f"python{version}"
        pythons = [os.path.join(sys.base_prefix, "bin", name), shutil.which(name)]
        pythons += sorted(pyenv.glob(f"{version}.*/bin/{name}"), reverse=True)
        for python in filter(None, pythons):
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                said = subprocess.check_output(
                    [python, "-c", check], stderr=subprocess.DEVNULL, timeout=60
                )
                if said.decode().strip() == version:
                    return Path(python)
    raise UnavailableError(
        f"no Python {' or '.join(versions)} found on PATH or under pyenv; install one "
        f"(for example: pyenv install {versions[0]})"
    )


def call(python: Path, script: Path, *flags: str, threads: int = 1) -> str:
    """Runs a script with another interpreter; what it printed.

    Args:
        python: the interpreter.
        script: the script.
        flags: its flags.
        threads: number of threads of the BLAS.

    Raises:
        RunError: the script failed; its output is printed.
    """
    # PYTHONPATH of this process is not for another interpreter.
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        variables[name] = str(threads)
    done = subprocess.run(
        [python, script, *flags],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
        raise RunError(f"{script.name} {' '.join(flags)}: status {done.returncode}")
    return done.stdout
