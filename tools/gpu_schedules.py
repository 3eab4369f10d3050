"""Write `prednet_jax/noise/gpu/schedules.npz`: orders that come with the package.

    python tools/gpu_schedules.py

trains both networks for one update as `compare_backends.py` does, under `gpu_order`,
with nothing kept beforehand, and packs the orders that this reads, with that of the
sum in docs/noise/gpu_order.md. Needs the compiler (extra `gpu-audit`).
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from prednet_jax.noise.gpu import orders

ROOT = Path(__file__).parents[1]
GPU = "gtx1080"
TRAININGS = (
    "--model=prednet --channels=3,6,12 --height=24 --width=32 --window=10 --data=walk",
    "--model=autoencoder --data=digits",
)
DOCUMENTED = orders.Sum(GPU, (64, 1000), "float32", (1,))


def main() -> None:
    """Read the orders and write the file."""
    file = orders.COMMITTED
    with tempfile.TemporaryDirectory() as name:
        os.environ |= {"XDG_CACHE_HOME": name, orders.IGNORED: "1"}
        for i, training in enumerate(TRAININGS):
            command = [
                sys.executable,
                str(ROOT / "experiments" / "train.py"),
                *training.split(),
                "--updates=2",
                f"--noise=gpu_order:gpu={GPU}",
                f"--workdir={name}/run{i}",
            ]
            subprocess.run(command, check=True)
        orders.order_of(DOCUMENTED)
        found = {}
        for path in sorted(Path(name, "prednet_jax", "gpu_order").glob("*.npz")):
            with np.load(path) as arrays:
                found |= {key: arrays[key] for key in arrays.files}
    small = {key: np.asarray(found[key], np.int16) for key in sorted(found)}
    assert all(np.array_equal(small[key], found[key]) for key in small)
    np.savez_compressed(file, **small)
    print(f"{file}: {len(orders.unpack(small))} sums, {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
