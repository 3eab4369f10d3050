"""The virtual environment .venv-chainer, and trainings in it, each in its own process.

Chainer needs an older Python and NumPy than JAX does. The environment is built once; a
stamp in it holds what it was built from. Interpreters are looked for on PATH
(`python3.11`), then in pyenv's folder.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from prednet_jax.errors import RunError, UserError

HERE = Path(__file__).parent
ROOT = HERE.parent
FOLDER = ROOT / ".venv-chainer"
#: Versions of Python that serve, the best first. The published scripts ask for Chainer
#: 7.8.
PYTHONS = ("3.11", "3.10", "3.9", "3.8")
PACKAGE = "chainer==7.8.1"


def ensure() -> Path:
    """Builds the environment unless it is there; returns its interpreter."""
    requirements = HERE / "in_chainer" / "requirements.txt"
    wanted = hashlib.sha256((requirements.read_text() + PACKAGE).encode()).hexdigest()
    stamp, python = FOLDER / ".installed", FOLDER / "bin" / "python"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    base = find_python(PYTHONS)
    print(f"building {FOLDER.name} with {base}", file=sys.stderr)
    shutil.rmtree(FOLDER, ignore_errors=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for step in (
        [base, "-m", "venv", FOLDER],
        [*pip, "--requirement", requirements],
        [*pip, "--no-deps", "--no-build-isolation", PACKAGE],
    ):
        command = [str(word) for word in step]
        if subprocess.run(command, check=False).returncode:
            raise UserError(f"{FOLDER.name}: failed: {' '.join(command)}")
    stamp.write_text(wanted)
    return python


def find_python(versions: Sequence[str]) -> Path:
    """The first interpreter of one of these versions that can make environments."""
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
    raise UserError(
        f"no Python {' or '.join(versions)} found on PATH or under pyenv; install one "
        f"(for example: pyenv install {versions[0]})"
    )


def run(python: Path, script: Path, *flags: str) -> None:
    """Runs a script with another interpreter, its BLAS on one thread.

    A RunError: the script failed; its output is printed.
    """
    # PYTHONPATH of this process is not for another interpreter.
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    variables["OPENBLAS_NUM_THREADS"] = variables["OMP_NUM_THREADS"] = "1"
    command = [python, script, *flags]
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
        raise RunError(f"{script.name} {' '.join(flags)}: status {done.returncode}")
