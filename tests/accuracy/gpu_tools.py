"""What the tools of `noise` say of this device's results, program by program.

    python -m tests.accuracy.gpu_tools FILE SECONDS

adds one JSON line a program of `noise_programs` to FILE, and leaves out those that it
has. Asked on the CPU: the cause that `explain` names for the device's result at the
highest precision and by default, and whether `tolerance` holds. Asked on the device:
the digits that `digits` prints next to those that are right, and how many different
results twenty calls give.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from prednet_jax import noise
from tests.accuracy import noise_programs
from tests.accuracy.accuracy import in_float64

CALLS = 20


def programs() -> dict[str, Callable[[], tuple]]:
    """Returns the programs of the benchmarks of `noise`, by name."""
    return noise_programs.SEEN | noise_programs.HELD_OUT | noise_programs.LATER


def asked(make: Callable[[], tuple]) -> dict[str, Any]:
    """Returns what the tools say of one program's results on this device."""
    fn, args = make()
    key = jax.random.key(0)
    record: dict[str, Any] = {}
    results = {}
    for precision in ("highest", "default"):
        with jax.default_matmul_precision(precision):
            call = jax.jit(lambda *args: fn(*args))
            calls = [jax.device_get(call(*args)) for _ in range(CALLS)]
        results[precision] = calls[0]
        record[f"different_{precision}"] = _different(calls)
    digits = noise.digits(fn, None)(key, *args)
    right = _digits(results["default"], in_float64(fn, args))
    record["digits"] = float(np.mean([np.mean(x) for x in jax.tree.leaves(digits)]))
    record["digits_right"] = right
    with jax.default_device(jax.devices("cpu")[0]):
        args = jax.device_put(args, jax.devices("cpu")[0])
        here = jax.device_get(jax.jit(fn)(*args))
        for precision, there in results.items():
            report = noise.explain(fn, there, here)(key, *args)
            record[f"cause_{precision}"] = sorted(set(jax.tree.leaves(report.rung)))
        bounds = noise.tolerance(fn, None)(key, *args)
        record["tolerance_holds"] = all(
            np.allclose(there, ours, bound.rtol, bound.atol)
            for there, ours, bound in zip(
                jax.tree.leaves(results["highest"]),
                jax.tree.leaves(here),
                jax.tree.leaves(bounds, is_leaf=lambda x: hasattr(x, "rtol")),
                strict=True,
            )
        )
    return record


def _different(results: Sequence[Any]) -> int:
    """Returns how many results differ in some bit from every one before them."""
    return len(
        {tuple(np.asarray(x).tobytes() for x in jax.tree.leaves(r)) for r in results}
    )


def _digits(result: Any, truth: Any) -> float:
    """Returns the mean decimal digits of a result that agree with the truth."""
    shares = []
    for one, other in zip(jax.tree.leaves(result), jax.tree.leaves(truth), strict=True):
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        error = np.linalg.norm(one - other) / max(np.linalg.norm(other), 1e-300)
        shares.append(min(-np.log10(max(error, 1e-300)), 7.2247))
    return float(np.mean(shares))


def main(path: str, seconds: float) -> None:
    """Asks of each program that the file does not have, until the time is used up."""
    end = time.monotonic() + seconds
    file = Path(path)
    lines = file.read_text().splitlines() if file.exists() else []
    known = {json.loads(line)["program"] for line in lines}
    for name, make in programs().items():
        if name in known or time.monotonic() > end:
            continue
        record: dict[str, Any] = {
            "program": name,
            "device": jax.devices()[0].device_kind,
        }
        try:
            record |= asked(make)
        except Exception as error:  # One program must not cost the others.
            record["error"] = f"{type(error).__name__}: {str(error)[:200]}"
        with file.open("a") as out:
            print(json.dumps(record), file=out, flush=True)
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
