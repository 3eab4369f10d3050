"""Installs the wheel and the source distribution under each Python, and tests there.

    make test-versions                               (3.11, 3.12 and 3.13, where found)
    python tools/versions.py --pythons=3.13 --tests  (the numerical tests too)

For each Python an environment of its own, .venv-3.11 and so on: the wheel without
extras, a training and a prediction; then each extra and what it is for; then the source
distribution. With --tests the pinned versions go into .venv-3.13-tests and the tests of
models, training and noise run there. Ends with status 1 where something fails, and with
a line for each Python that was not found.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
TESTS = ("tests/models", "tests/training", "tests/noise")

CORE = """
import jax, prednet_jax, prednet_jax.noise
config = prednet_jax.PredNetConfig(channels=(3, 4), height=8, width=8)
trainer = prednet_jax.Trainer(config)
state = trainer.init(jax.random.key(0))
video = jax.random.uniform(jax.random.key(1), (12, 8, 8, 3))
for frames, first in prednet_jax.windows(video, 4):
    state, metrics = trainer.step(state, frames, first)
assert trainer.evaluate(state.params, video).loss > 0
spec = prednet_jax.noise.parse("reduction_order")
noisy = prednet_jax.noise.inject(lambda x: (x @ x.T).sum(), spec)
noisy(jax.random.key(0), video[0, 0])
print("jax", jax.__version__)
"""
# What each extra is for, tried in its rooms.
EXTRAS = {
    "data": """
from prednet_jax import data, weights
import av, h5py, safetensors
assert data.open_source("walk", height=8, width=8).read(0, 2).any()
assert data.open_source("digits").read(0, 2).any()
import tensorflow_datasets
""",
    "study": """
import jax, jax.numpy as jnp, numpy as np
from prednet_jax import curvature, saddles, statistics
statistics.paired(np.arange(6.0), np.arange(6.0)[::-1], margin=1.0)
values, *_ = curvature.extreme_eigenpairs(
    lambda p: (p["x"] ** 2).sum(), {"x": jnp.ones(4)}, key=jax.random.key(0), steps=2
)
assert saddles.octopus(2)(jnp.ones(2)).shape == ()
""",
    "report": """
import numpy as np
from prednet_jax.report import page, strips
assert strips.strip({"true": np.zeros((3, 8, 8, 3))}, None)
""",
    "sweep": """
import ray, pyarrow
from prednet_jax.runs import sweeps
""",
}


def main() -> int:
    """Builds once, tries each Python, returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pythons", default=",".join(PYTHONS))
    parser.add_argument(
        "--tests", action="store_true", help="run the numerical tests on the newest"
    )
    asked = parser.parse_args()
    wheel, sdist = build()
    newest = None
    for version in asked.pythons.split(","):
        python = interpreter(version)
        if python is None:
            print(f"Python {version}: not found", flush=True)
        else:
            newest = version, python
            try_install(version, python, wheel, sdist)
    return run_tests(*newest) if asked.tests and newest else 0


def run(*command: object, **options: Any) -> None:
    """Runs a command that has to end well."""
    subprocess.run(list(map(str, command)), check=True, **options)


def build() -> tuple[Path, Path]:
    """The wheel and the source distribution, in dist/."""
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for made in ("sdist", "wheel"):
        code = f"from setuptools import build_meta; build_meta.build_{made}('dist')"
        run(sys.executable, "-c", code, cwd=ROOT, stdout=subprocess.DEVNULL)
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def interpreter(version: str) -> str | None:
    """A Python of a version: on the path, or of pyenv."""
    root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    installed = sorted(Path(root, "versions").glob(f"{version}.*/bin/python"))
    return next(map(str, installed), None) or shutil.which(f"python{version}")


def environment(name: str, python: str) -> str:
    """A fresh environment; its Python."""
    folder = ROOT / name
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "venv", folder)
    return str(folder / "bin" / "python")


def try_install(version: str, python: str, wheel: Path, sdist: Path) -> None:
    """The wheel without extras and with each, then the source distribution."""
    here = environment(f".venv-{version}", python)
    pip = (here, "-m", "pip", "install", "-q")
    tried = [((wheel,), CORE, "wheel without extras")]
    for extra, code in EXTRAS.items():
        tried.append(((f"{wheel}[{extra}]",), code, f"wheel with [{extra}]"))
    # What builds it is fetched into an environment of its own by pip.
    again = ("--no-deps", "--force-reinstall", sdist)
    tried.append((again, CORE, "source distribution"))
    for what, code, name in tried:
        run(*pip, *what)
        # Away from the source, so that what is installed is imported.
        run(here, "-c", code, cwd=ROOT / "dist")
        print(f"Python {version}: {name} works", flush=True)


def run_tests(version: str, python: str) -> int:
    """The numerical tests with the pinned versions, not the slow ones."""
    here = environment(f".venv-{version}-tests", python)
    pip = (here, "-m", "pip", "install", "-q", "--no-deps")
    run(*pip, "--require-hashes", "--requirement", ROOT / "requirements.lock")
    run(*pip, "--no-build-isolation", "--editable", ROOT)
    command = [here, "-m", "pytest", "-q", "-m", "not slow", *TESTS]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
