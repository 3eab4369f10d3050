"""Write `prednet_jax/noise/gpu/schedules.npz`: orders that come with the package.

    python tools/gpu_schedules.py

traces the training of both networks under `gpu_order`, with nothing known beforehand,
and packs the orders that this reads, with that of the sum in docs/noise/gpu_order.md.
Needs the compiler (extra `gpu-audit`).
"""

import sys
from pathlib import Path

import jax
import numpy as np

from prednet_jax.noise.gpu import orders

sys.path.append(str(Path(__file__).parents[1] / "experiments"))
import gpu

CARD = "gtx1080"
# Each with the frames of one update.
TRAININGS = {"prednet": 11, "autoencoder": 1}
DOCUMENTED = orders.Sum(CARD, (64, 1000), "float32", (1,))


def main() -> None:
    """Read the orders and write the file."""
    orders.committed = dict
    for model, count in TRAININGS.items():
        case = gpu.BASE | {"model": model, "noise": f"gpu_order:gpu={CARD}"}
        function, (state, frames, *rest) = gpu.built(case)
        frames = jax.ShapeDtypeStruct((count, *frames.shape[1:]), frames.dtype)
        jax.eval_shape(function, state, frames, *rest)
    orders.order_of(DOCUMENTED)
    tables = {
        f"{name}#{i}": np.asarray(table, np.int16)
        for name, schedule in sorted(orders.known.items())
        for i, table in enumerate(schedule.rounds)
    }
    np.savez_compressed(orders.COMMITTED, **tables)
    print(f"{orders.COMMITTED}: {len(orders.known)} sums")


if __name__ == "__main__":
    main()
