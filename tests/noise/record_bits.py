"""SHA-256 of the results of many programs under each kind of noise.

    python -m tests.noise.record_bits            # writes tests/golden/noise_bits.json
    python -m tests.noise.record_bits --digests dot conv     # prints, writes nothing

A key gives the same bits for ever: a change of the noise code that moves any of them
changes published results. `tests/noise/test_noise_bits.py` compares.

XLA's flags decide bits as well, so the process sets fixed ones: XLA's
defaults, but for one thread for each program, no instructions beyond AVX2 and four host
devices. What a processor's library routines do remains: the record holds the digest of
each program without noise too, and a program is comparable where that agrees.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests" / "golden" / "noise_bits.json"

# What the digests depend on besides the code: set before JAX starts.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "NPROC": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false --xla_cpu_max_isa=AVX2 "
    "--xla_force_host_platform_device_count=4",
}
SPECS = {
    "order_tile": "reduction_order",
    "order_element": "reduction_order:granularity=element",
    "order_shared_run": "reduction_order:partials=4,granularity=shared,schedule=run",
    "ulp": "ulp:max_ulps=2",
    "stochastic_rounding": "stochastic_rounding",
    "gaussian": "gaussian:scale=1e-5",
    "reduced_precision": "bf16",
    "composition": "reduction_order:partials=5,shortest=1+tf32+mca:mode=mca",
}
CLEAN = "clean"


def processor() -> dict[str, Any]:
    """What tells processors apart whose library routines may give other bits."""
    features: list[str] = []
    path = Path("/proc/cpuinfo")
    if path.exists():
        lines = path.read_text().splitlines()
        flags = next((x for x in lines if x.startswith(("flags", "Features"))), ":")
        # Those of vector arithmetic, on which routines choose their kernels.
        features = [
            f
            for f in flags.split(":")[1].split()
            if f.startswith(("avx", "amx", "fma", "sse4", "asimd", "sve"))
        ]
    return {"machine": platform.machine(), "features": sorted(features)}


def digest(tree: Any) -> str:
    """SHA-256 over types, shapes and bytes of all leaves."""
    import jax
    import numpy as np

    found = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        x = np.asarray(leaf)
        found.update(f"{x.dtype} {x.shape};".encode() + x.tobytes())
    return found.hexdigest()


def digests(name: str) -> dict[str, str]:
    """One digest for each spec, and that of the program without noise."""
    import jax

    from prednet_jax import noise
    from tests.noise.bit_programs import PROGRAMS

    program = PROGRAMS[name]
    found = {}
    with jax.enable_x64(program.double):
        key = jax.random.key(20, impl="threefry2x32")
        plain = program.around(program.function, noise.Identity())
        found[CLEAN] = digest(jax.jit(plain)(key, *program.arguments))
        for label, text in SPECS.items():
            noisy = program.around(program.function, noise.parse(text))
            found[label] = digest(noisy(key, *program.arguments))
    print(name, file=sys.stderr, flush=True)
    jax.clear_caches()
    return found


def main(arguments: list[str]) -> None:
    """Print digests as JSON, or write the whole record."""
    # Before JAX is imported: threads and flags are read once.
    os.environ.update(ENVIRONMENT)
    os.environ.pop("JAX_DISABLE_MOST_OPTIMIZATIONS", None)
    import jax

    from tests.noise.bit_programs import PROGRAMS

    asked = arguments[1:] if arguments[:1] == ["--digests"] else []
    record = {
        "command": "python -m tests.noise.record_bits",
        "jax": jax.__version__,
        "environment": ENVIRONMENT,
        "processor": processor(),
        "specs": SPECS,
        "programs": {name: digests(name) for name in asked or PROGRAMS},
    }
    text = json.dumps(record, indent=1) + "\n"
    if arguments:
        print(text)
    else:
        RECORD.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
