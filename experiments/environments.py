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
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
IN_CHAINER = ROOT / "experiments" / "in_chainer"
# The release in which the mean squared error began to read its inputs again is
# 3.0.0rc1; the published scripts ask for 7.8.
CHAINER = "7.8.1"
RELEASES = ("2.1.0", "3.0.0b1", "3.0.0rc1", "5.0.0", "7.8.1")


class EnvironmentsError(Exception):
    """An environment cannot be made; the message says why and what helps."""


class MissingPythonError(EnvironmentsError):
    """No interpreter of the versions that an environment needs."""


class Environment(NamedTuple):
    """What an environment is built from."""

    name: str
    pythons: tuple[str, ...]  # Versions that serve, the best first.
    requirements: Path
    source: str | None = None  # Installed last, without its dependencies.

    @property
    def directory(self) -> Path:
        """Where it lies."""
        return ROOT / f".venv-{self.name}"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.directory / "bin" / "python"


def chainer() -> Environment:
    """Chainer 7.8.1 on the newest Python that it runs on."""
    return Environment(
        "chainer",
        ("3.11", "3.10", "3.9", "3.8"),
        IN_CHAINER / "requirements.txt",
        f"chainer=={CHAINER}",
    )


def chainer_release(release: str) -> Environment:
    """One release of Chainer for the bisection, all on one Python and one NumPy."""
    return Environment(
        f"chainer-{release}",
        ("3.8",),
        IN_CHAINER / "requirements-releases.txt",
        f"chainer=={release}",
    )


def chainer_ideep() -> Environment:
    """Chainer 7.8.1 with Intel's iDeep, which Chainer can use on a CPU."""
    return Environment(
        "chainer-ideep",
        ("3.7", "3.6"),
        IN_CHAINER / "requirements-ideep.txt",
        f"chainer=={CHAINER}",
    )


def torch() -> Environment:
    """PyTorch, for the transplant."""
    return Environment(
        "torch",
        ("3.11", "3.12", "3.13"),
        ROOT / "experiments" / "in_torch" / "requirements.txt",
    )


def find_python(versions: Sequence[str]) -> Path:
    """The first interpreter of one of these versions that can make environments.

    Args:
        versions: such as `("3.11", "3.10")`, the best first.

    Raises:
        MissingPythonError: there is none.
    """
    for version in versions:
        for candidate in _candidates(version):
            if _usable(candidate, version):
                return candidate
    raise MissingPythonError(
        f"no Python {' or '.join(versions)} found on PATH or under pyenv; install one "
        "(for example: pyenv install " + versions[0] + ")"
    )


def ensure(environment: Environment) -> Path:
    """Builds the environment unless it is there; returns its interpreter.

    Raises:
        MissingPythonError: no interpreter of the versions that it needs.
        EnvironmentsError: an installation failed.
    """
    text = environment.requirements.read_text() + str(environment.source)
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
        [*install, "--requirement", environment.requirements],
    ]
    if environment.source is not None:
        alone = ["--no-deps", "--no-build-isolation", environment.source]
        steps.append([*install, *alone])
    for step in steps:
        if subprocess.run(step, check=False).returncode:
            command = " ".join(map(str, step))
            raise EnvironmentsError(f"{environment.directory.name}: failed: {command}")
    stamp.write_text(wanted)
    return environment.python


def _candidates(version: str) -> list[Path]:
    """Interpreters that may be of a version, whether they are there or not."""
    found = []
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        found.append(Path(sys.base_prefix) / "bin" / f"python{version}")
    on_path = shutil.which(f"python{version}")
    if on_path:
        found.append(Path(on_path))
    for root in _pyenv_roots():
        installed = sorted((root / "versions").glob(f"{version}.*"), reverse=True)
        found += [folder / "bin" / f"python{version}" for folder in installed]
    return found


def _pyenv_roots() -> list[Path]:
    roots = []
    if shutil.which("pyenv"):
        done = subprocess.run(
            ["pyenv", "root"], capture_output=True, text=True, check=False
        )
        if done.returncode == 0 and done.stdout.strip():
            roots.append(Path(done.stdout.strip()))
    if os.environ.get("PYENV_ROOT"):
        roots.append(Path(os.environ["PYENV_ROOT"]))
    return [*roots, Path.home() / ".pyenv"]


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
