"""Virtual environments beside .venv, for libraries that cannot live in it.

Chainer needs an older Python and NumPy than JAX does, and PyTorch is wanted for one
experiment only. Each environment is a directory `.venv-NAME`, built once; a stamp in it
holds what it was built from. Interpreters are looked for on PATH (`python3.8`), then in
pyenv's folder.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
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

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.directory / "bin" / "python"


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
    if stamp.is_file() and stamp.read_text() == wanted:
        return environment.python
    base = find_python(environment.pythons)
    print(f"building {environment.directory.name} with {base}", file=sys.stderr)
    shutil.rmtree(environment.directory, ignore_errors=True)
    install = [environment.python, "-m", "pip", "install", "--quiet"]
    install.append("--disable-pip-version-check")
    steps = [
        [base, "-m", "venv", environment.directory],
        [*install, "--requirement", requirements],
    ]
    if environment.package is not None:
        alone = ["--no-deps", "--no-build-isolation", environment.package]
        steps.append([*install, *alone])
    for step in steps:
        if subprocess.run(step, check=False).returncode:
            command = " ".join(map(str, step))
            raise UnavailableError(f"{environment.directory.name}: failed: {command}")
    stamp.write_text(wanted)
    return environment.python


def find_python(versions: Sequence[str]) -> Path:
    """The first interpreter of one of these versions that can make environments.

    Args:
        versions: such as `("3.11", "3.10")`, the best first.

    Raises:
        UnavailableError: there is none.
    """
    for version in versions:
        for candidate in _candidates(version):
            if _usable(candidate, version):
                return candidate
    raise UnavailableError(
        f"no Python {' or '.join(versions)} found on PATH or under pyenv; install one "
        f"(for example: pyenv install {versions[0]})"
    )


def _candidates(version: str) -> Iterator[Path]:
    """Interpreters that may be of a version, whether they are there or not."""
    name = f"python{version}"
    yield Path(sys.base_prefix) / "bin" / name
    if on_path := shutil.which(name):
        yield Path(on_path)
    for root in (os.environ.get("PYENV_ROOT"), Path.home() / ".pyenv"):
        if root:
            folders = sorted(Path(root, "versions").glob(f"{version}.*"), reverse=True)
            yield from (folder / "bin" / name for folder in folders)


def _usable(python: Path, version: str) -> bool:
    """Whether it runs, is of the version, and can make environments."""
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run(
            [python, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == version


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
