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
    """What an environment, the directory `.venv-NAME`, is built from.

    Attributes:
        name: see above.
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


def _chainer(name: str, pythons: Sequence[str], release: str, pins: str) -> Environment:
    file = f"in_chainer/requirements{pins}.txt"
    return Environment(name, tuple(pythons), file, f"chainer=={release}")


# The published scripts ask for Chainer 7.8.
CHAINER = _chainer("chainer", ("3.11", "3.10", "3.9", "3.8"), "7.8.1", "")
# With Intel's iDeep, which Chainer can use on a CPU.
IDEEP = _chainer("chainer-ideep", ("3.7", "3.6"), "7.8.1", "-ideep")
# Releases before and after the change, all with one Python and one NumPy.
RELEASES = {
    release: _chainer(f"chainer-{release}", ["3.8"], release, "-releases")
    for release in ("2.1.0", "3.0.0b1", "3.0.0rc1", "5.0.0", "7.8.1")
}
TORCH = Environment("torch", ("3.11", "3.12", "3.13"), "in_torch/requirements.txt")


def ensure(environment: Environment) -> Path:
    """Builds the environment unless it is there; returns its interpreter.

    Raises:
        UnavailableError: no interpreter of the versions that it needs, or an
            installation failed.
    """
    requirements, folder = HERE / environment.requirements, environment.directory
    text = requirements.read_text() + str(environment.package)
    wanted = hashlib.sha256(text.encode()).hexdigest()
    stamp, python = folder / ".installed", folder / "bin" / "python"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    base = find_python(environment.pythons)
    print(f"building {folder.name} with {base}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    steps = [[base, "-m", "venv", folder], [*pip, "--requirement", requirements]]
    if environment.package is not None:
        alone = ["--no-deps", "--no-build-isolation", environment.package]
        steps.append([*pip, *alone])
    for step in steps:
        command = [str(word) for word in step]
        if subprocess.run(command, check=False).returncode:
            raise UnavailableError(f"{folder.name}: failed: {' '.join(command)}")
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
    variables["OPENBLAS_NUM_THREADS"] = variables["OMP_NUM_THREADS"] = str(threads)
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
