"""Installs the wheel and the source distribution under each Python, and tests there.

    make test-versions ARGS=--pythons=3.13      (3.11, 3.12 and 3.13 unless given)

For each Python that is found an environment of its own: the wheel without extras, then
with each, then the source distribution; on the newest also the numerical tests, with
the pinned versions. Ends with status 1 where something fails.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CORE = """
import jax, prednet_jax, prednet_jax.noise
config = prednet_jax.PredNetConfig(channels=(3, 4), height=8, width=8)
trainer = prednet_jax.Trainer(config)
state = trainer.init(jax.random.key(0))
video = jax.random.uniform(jax.random.key(1), (12, 8, 8, 3))
for frames, first in prednet_jax.windows(video, 4):
    state, metrics = trainer.step(state, frames, first)
assert trainer.evaluate(state.params, video).loss > 0
noisy = prednet_jax.noise.inject(
    lambda x: (x @ x.T).sum(), prednet_jax.noise.parse("reduction_order")
)
noisy(jax.random.key(0), video[0, 0])
print("jax", jax.__version__)
"""
# What each extra is for.
EXTRAS = {
    "data": """
import av, h5py, safetensors
from prednet_jax import data, weights
import tensorflow_datasets
assert data.open_source("digits").read(0, 2).any()
""",
    "study": """
import jax, jax.numpy as jnp, numpy as np
from prednet_jax import curvature, saddles, statistics
statistics.paired(np.arange(6.0), np.arange(6.0)[::-1], margin=1.0)
curvature.extreme_eigenpairs(
    lambda p: (p["x"] ** 2).sum(), {"x": jnp.ones(4)}, key=jax.random.key(0), steps=2
)
assert saddles.octopus(2)(jnp.ones(2)).shape == ()
""",
    "report": "from prednet_jax.report import page, strips",
    "sweep": "import ray, pyarrow; from prednet_jax.runs import sweeps",
}


def main() -> int:
    """Builds once, tries each Python, returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pythons", default="3.11,3.12,3.13")
    root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    found = {}
    for version in parser.parse_args().pythons.split(","):
        own = sorted(Path(root, "versions").glob(f"{version}.*/bin/python"))
        found[version] = shutil.which(f"python{version}") if not own else str(own[0])
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for made in ("sdist", "wheel"):
        code = f"from setuptools import build_meta; build_meta.build_{made}('dist')"
        run(sys.executable, "-c", code, cwd=ROOT, stdout=subprocess.DEVNULL)
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    for version, python in found.items():
        if python is None:
            print(f"Python {version}: not found", flush=True)
            continue
        here = environment(f".venv-{version}", python)
        for what, code in (
            ((wheel,), CORE),
            *(((f"{wheel}[{extra}]",), code) for extra, code in EXTRAS.items()),
            (("--no-deps", "--force-reinstall", sdist), CORE),
        ):
            run(here, "-m", "pip", "install", "-q", *what)
            # Away from the source, so that what is installed is imported.
            run(here, "-c", code, cwd=dist)
            print(f"Python {version}: {what[-1]} works", flush=True)
    newest = max((v for v in found if found[v]), key=lambda v: int(v.split(".")[1]))
    here = environment(f".venv-{newest}-tests", found[newest])
    pip = (here, "-m", "pip", "install", "-q", "--no-deps")
    run(*pip, "--require-hashes", "--requirement", ROOT / "requirements.lock")
    run(*pip, "--no-build-isolation", "--editable", ROOT)
    tests = ("tests/models", "tests/training", "tests/noise")
    command = [here, "-m", "pytest", "-q", "-m", "not slow", *tests]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def run(*command: object, **options: Any) -> None:
    """Runs a command that has to end well."""
    subprocess.run(list(map(str, command)), check=True, **options)


def environment(name: str, python: object) -> str:
    """A fresh environment; its Python."""
    folder = ROOT / name
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "venv", folder)
    return str(folder / "bin" / "python")


if __name__ == "__main__":
    sys.exit(main())
