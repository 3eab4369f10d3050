"""The trainings in Chainer: their list, their execution, and the predictions.

study/pages/chainer.md has the explanation under test. By it an intervention changes the
weights only if it protects the target or makes overwriting it harmless, and all such
interventions lead to the same bits.

The record of a training is `FOLDER/NAME.json`. A training with a record is not
repeated.

Chainer needs an older Python and NumPy than JAX does, so each training is a process of
the environment .venv-chainer. It is built once; a stamp in it records the sources of
the build. Interpreters are looked for on PATH (`python3.11`), then in pyenv's folder.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prednet_jax.data import open_source
from prednet_jax.errors import RunError, UserError
from prednet_jax.runs.arms import Arm

Row = dict[str, Any]
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDER = ROOT / ".venv-chainer"
#: Versions of Python that serve, best first. The published scripts want Chainer 7.8.
PYTHONS = ("3.11", "3.10", "3.9", "3.8")
PACKAGE = "chainer==7.8.1"


@dataclass(frozen=True, kw_only=True)
class Intervention(Arm):
    """A change of the published loop, by flags of in_chainer/run.py."""

    flags: tuple[str, ...] = ()


PUBLISHED, COPIED = "published", "target copied"
_COPY = "--target=copied"
_INTERVENTIONS = {
    PUBLISHED: ((), "one buffer for the input, one for the target"),
    "input copied": (("--input=copied",), "a new array for every input"),
    "remade": (
        ("--remake",),
        "new arrays for parameters and state after every update, as a transfer makes",
    ),
    COPIED: ((_COPY,), "a new array for every target, as a transfer to a GPU makes"),
    "both copied": (("--input=copied", _COPY), "new arrays for input and target"),
    "difference kept": (
        ("--loss=difference_kept",),
        "the loss keeps x0 - x1, as Chainer did before 3.0.0rc1",
    ),
    "remade, target copied": (
        ("--remake", _COPY),
        "both together: all that a GPU run copies",
    ),
    "static": (("--static",), "published, every frame the same"),
    "static, target copied": (("--static", _COPY), "the same, target copied"),
    "window 1": (("--window=1",), "published, an update after every frame"),
    "window 1, target copied": (("--window=1", _COPY), "the same, target copied"),
}
ARMS = {
    name: Intervention(name=name, flags=flags, meaning=meaning)
    for name, (flags, meaning) in _INTERVENTIONS.items()
}
# (one arm, another, whether their final weights are predicted to be equal).
PREDICTIONS = (
    ("input copied", PUBLISHED, True),
    ("remade", PUBLISHED, True),
    (COPIED, PUBLISHED, False),
    ("both copied", COPIED, True),
    ("difference kept", COPIED, True),
    ("remade, target copied", COPIED, True),
    ("static", "static, target copied", True),
    ("window 1", "window 1, target copied", True),
)


class Size(NamedTuple):
    """Network and window of a training."""

    channels: tuple[int, ...]
    height: int
    width: int
    window: int


QUICK = Size((3, 6, 12), 24, 32, 10)
FULL = Size((3, 12, 24, 48), 48, 64, 20)


class Training(NamedTuple):
    """One training of one of `ARMS`, with the name of its record.

    `frames` frames of the npz file `data` are predicted; `data` defaults to the
    embedded walk. `flags` are further flags of in_chainer/run.py.
    """

    name: str
    arm: str
    size: Size
    frames: int
    seed: int = 0
    flags: tuple[str, ...] = ()
    data: Path | None = None


def _plan(
    name: str, size: Size, frames: int, seeds: int, arms: Iterable[str] = ARMS
) -> list[Training]:
    return [
        Training(
            f"{name}-{seed}-{arm.replace(', ', '-').replace(' ', '_')}",
            *(arm, size, frames, seed, ARMS[arm].flags),
        )
        for seed in range(seeds)
        for arm in arms
    ]


#: Every arm, at 24x32 and with five seeds at 64x48; there two arms over 1000 frames.
PLANS = {
    "quick": _plan("quick", QUICK, 200, 1),
    "full": _plan("full", FULL, 200, 5),
    "long": _plan("long", FULL, 1000, 5, (PUBLISHED, COPIED)),
}


def frames_file(folder: Path, size: Size, length: int) -> Path:
    """Returns an npz file of the walk's first frames, which another Python can read."""
    path = folder / f"walk_{size.width}x{size.height}_{length}.npz"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        source = open_source("walk", height=size.height, width=size.width)
        temporary = path.with_suffix(".tmp.npz")
        np.savez(temporary, frames=source.read(0, length))
        temporary.replace(path)
    return path


def run_all(plan: Iterable[Training], folder: Path, frames: Path) -> list[Row]:
    """Makes the trainings without a record in a folder; returns all rows in order."""
    python, plan = ensure(), list(plan)
    folder.mkdir(parents=True, exist_ok=True)
    data = [t.data or frames_file(frames, t.size, t.frames + 1) for t in plan]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, plan, data, repeat(python), repeat(folder)))


def run(training: Training, data: Path, python: Path, folder: Path) -> Row:
    """Makes a training unless the folder has its record; returns its row."""
    path = folder / f"{training.name}.json"
    if not path.is_file():
        start(
            *(python, HERE / "in_chainer" / "run.py"),
            *(f"--frames={data}", f"--output={path}", f"--seed={training.seed}"),
            f"--length={training.frames + 1}",
            f"--channels={','.join(map(str, training.size.channels))}",
            *(f"--window={training.size.window}", *training.flags),
        )
    try:
        row = row_of(training, json.loads(path.read_text()))
    except (ValueError, KeyError) as error:
        raise UserError(
            f"{path}: no record ({error!r}); remove it and repeat"
        ) from None
    print(f"{training.name}: {row['final_sha256'][:12]}", flush=True)
    return row


def row_of(training: Training, record: Row) -> Row:
    """Returns the record of a training, with additional fields for the tables."""
    losses, window = record["losses"], record["window"]
    count = len(losses)
    return record | {
        "arm": training.arm,
        "threads": 1,
        "frames": count,
        "updates": count if window == 1 else (count + 1) // window,
        # The last quarter of the frames.
        "mean_loss": f"{np.mean(losses[-(count // 4) :]):.9g}",
    }


def ensure() -> Path:
    """Builds the environment unless it exists; returns its interpreter."""
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
    """Finds an interpreter of one of these versions that can make environments."""
    # A shim of pyenv may be on PATH for a version that is not there.
    check = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    for version in versions:
        name = f"python{version}"
        pythons: list[Any] = [
            os.path.join(sys.base_prefix, "bin", name),
            shutil.which(name),
        ]
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


def start(python: Path, script: Path, *flags: str) -> None:
    """Runs a script with another interpreter, its BLAS on one thread.

    If the script fails, its output is printed and a RunError is raised.
    """
    # PYTHONPATH of this process is not for another interpreter.
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    variables["OPENBLAS_NUM_THREADS"] = variables["OMP_NUM_THREADS"] = "1"
    command: list[Any] = [python, script, *flags]
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
        raise RunError(f"{script.name} {' '.join(flags)}: status {done.returncode}")


def ends(rows: Iterable[Mapping[str, Any]], by: str, arm: str = "arm") -> dict:
    """Returns the SHA-256 of the final weights, by one column and then by arm."""
    finals: dict[Any, dict[str, str]] = {}
    for row in rows:
        finals.setdefault(row[by], {})[row[arm]] = row["final_sha256"]
    return finals


def check(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """Returns each of `PREDICTIONS` for each seed, and whether it came true."""
    words = {True: "the same weights as", False: "other weights than"}
    return [
        (f"seed {seed}: {arm}: {words[same]} {other}", (end[arm] == end[other]) == same)
        for seed, end in sorted(ends(rows, "seed").items())
        for arm, other, same in PREDICTIONS
    ]
