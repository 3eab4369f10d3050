"""Tells what the tools of `noise` say of a device's results, program by program.

    python -m tests.accuracy.accuracy h200               # results recorded on an H200
    python -m tests.accuracy.gpu_tools FILE SECONDS      # results of this device

The tools are asked on the CPU: the causes that `explain` names for the device's result
at the highest precision and by default, the furthest element in units of its
`tolerance`, and the first value that `first_difference` names. On the device itself
they are asked for the digits, next to those that are right, and twenty calls are
compared. The second command adds one JSON line a program to FILE, and leaves out the
programs that FILE has.
"""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from prednet_jax import noise
from prednet_jax.noise.questions.explain import classify
from prednet_jax.noise.questions.recording import Recording
from prednet_jax.noise.questions.reference import NoiseReference
from prednet_jax.noise.questions.sampling import BoundCall
from prednet_jax.noise.rules.primitives import MATRIX_PRODUCTS
from tests.accuracy.noise_programs import (
    HELD_OUT,
    LATER,
    SEEN,
    in_float64,
    right_digits,
)

CALLS = 20
PRECISIONS = ("highest", "default")
PROGRAMS = SEEN | HELD_OUT | LATER
H200 = Path(__file__).parents[1] / "golden" / "h200"
#: A product of float32 that differs by more was rounded to a narrower format.
ROUNDED = 1e-5


def on_h200(names: Iterable[str] = ()) -> Iterator[dict[str, Any]]:
    """Yields what the tools say here about results of an H200, a row a program."""
    outputs = np.load(H200 / "outputs.npz")
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(H200 / "recordings.tar.xz", folder, filter="data")
        for name in names or sorted(PROGRAMS):
            fn, args = PROGRAMS[name]()
            tree = jax.tree.structure(jax.eval_shape(fn, *args))
            results, recordings = {}, {}
            for precision in PRECISIONS:
                keys = (f"{name}/{precision}/{i}" for i in range(tree.num_leaves))
                results[precision] = tree.unflatten(outputs[key] for key in keys)
                file = Path(folder) / f"{name}_{precision}.npz"
                recordings[precision] = noise.load_recording(file)
            yield {"program": name} | judged(fn, args, results, recordings)


def judged(
    fn: Callable,
    args: Sequence[Any],
    results: Mapping[str, Any],
    recordings: Mapping[str, Recording],
) -> dict[str, Any]:
    """Returns what the tools say here about a device's results of one program.

    `results` and `recordings` have the two `PRECISIONS`. Of each the row has the causes
    and the path of the first value beyond noise, or "". `rounded` is the path of the
    first product that the device rounded by default, by its own recordings.
    """
    here, key = jax.device_get(jax.jit(fn)(*args)), jax.random.key(4)
    reference = NoiseReference(BoundCall(fn, args, {}), key, draws=8)
    row: dict[str, Any] = {}
    for precision in PRECISIONS:
        leaves = classify(reference, results[precision], here).leaves
        row[precision] = sorted({leaf.rung for leaf in leaves})
        found = noise.first_difference(fn, recordings[precision])(key, *args)
        row[f"first_{precision}"] = found[0].path if found else ""
    row["rounded"] = _first_rounded(*(recordings[p] for p in PRECISIONS))
    row["tolerance"] = _furthest(fn, args, results["highest"], here)
    return row


def _first_rounded(highest: Recording, default: Recording) -> str:
    """Returns the path of the first product that two recordings have apart, or ""."""
    for full, own in zip(highest.equations, default.equations, strict=True):
        far = np.linalg.norm(full.values - own.values)
        product = full.primitive in MATRIX_PRODUCTS
        if product and far > ROUNDED * np.linalg.norm(full.values):
            return own.path
    return ""


def _furthest(fn: Callable, args: Sequence[Any], there: Any, here: Any) -> float:
    """Returns the largest difference of an element in units of its tolerance."""
    tolerances = noise.tolerance(fn)(jax.random.key(5), *args)
    ratios = [0.0]
    for x, y, one in zip(*map(jax.tree.leaves, (there, here, tolerances)), strict=True):
        allowed = one.atol + one.rtol * np.abs(np.asarray(y, np.float64))
        far = np.abs(np.asarray(x, np.float64) - y)
        ratios.append(float(np.max(far / np.where(allowed > 0, allowed, 1))))
    return max(ratios)


def asked(fn: Callable, args: Sequence[Any]) -> dict[str, Any]:
    """Returns what the tools say of one program's results on this device."""
    row: dict[str, Any] = {}
    results, recordings = {}, {}
    for precision in PRECISIONS:
        with jax.default_matmul_precision(precision):
            # A function of its own, since JAX keeps what it traced.
            call = jax.jit(lambda *args: fn(*args))
            calls = [jax.device_get(call(*args)) for _ in range(CALLS)]
            recordings[precision] = noise.record(lambda *args: fn(*args))(*args)
        results[precision] = calls[0]
        bits = {tuple(x.tobytes() for x in jax.tree.leaves(one)) for one in calls}
        row[f"different_{precision}"] = len(bits)
    digits = noise.digits(fn)(jax.random.key(0), *args)
    row["digits"] = float(np.mean([np.mean(x) for x in jax.tree.leaves(digits)]))
    right = right_digits(results["default"], in_float64(fn, args))
    row["digits_right"] = float(np.mean([np.mean(x) for x in right]))
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        return row | judged(fn, jax.device_put(args, cpu), results, recordings)


def main(path: str, seconds: float) -> None:
    """Asks of each program that the file does not have, until the time is used up."""
    end = time.monotonic() + seconds
    file = Path(path)
    lines = file.read_text().splitlines() if file.exists() else []
    known = {json.loads(line)["program"] for line in lines}
    for name, make in PROGRAMS.items():
        if name in known or time.monotonic() > end:
            continue
        row = {"program": name, "device": jax.devices()[0].device_kind}
        try:
            row |= asked(*make())
        except Exception as error:  # One program must not cost the others.
            row["error"] = f"{type(error).__name__}: {str(error)[:200]}"
        with file.open("a") as out:
            print(json.dumps(row), file=out, flush=True)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
