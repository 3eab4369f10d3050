"""The suite `noise`: noisy training steps against the clean one."""

import time
from typing import Any

import jax
import numpy as np

from benchmarks import workload
from prednet_jax.config import PredNetConfig

SPECS = (
    "reduction_order:granularity=shared",
    "reduction_order:granularity=tile",
    "reduction_order:granularity=element",
    "ulp",
    "stochastic_rounding",
)
# Published slowdowns of other tools, measured on other machines and programs.
PUBLISHED = {
    "Fuzzy PyTorch (PRISM), rounding": "3.6 to 64",
    "Verrou, rounding": "200 to 420",
}


def run(config: PredNetConfig, *, window: int, repeats: int) -> dict[str, Any]:
    """Time and compile-time ratios of noisy steps to the clean step.

    All programs take turns in one process. Each noisy program is compiled directly
    after a clean one and compared with it, since the load of a machine changes within
    minutes.

    Args:
        config: the PredNet.
        window: frames per window, batch 1.
        repeats: rounds, each of which times every program once. Medians are compared.

    Returns:
        One row per spec with `time_ratio` and `compile_ratio` against the clean step.
    """
    clean = workload.training(config)
    frames = jax.device_put(workload.random_frames(config, window + 1, 1))
    arguments = clean.state, frames, jax.numpy.asarray(False), clean.key

    def compiled(name: str) -> tuple[workload.Program, float]:
        """A newly compiled program, and the seconds to trace and compile it."""
        update = clean._replace(noise=workload.parse(name)).update()
        start = time.perf_counter()
        program = jax.jit(update).lower(*arguments).compile()
        seconds = time.perf_counter() - start
        return ((lambda _: program(*arguments)), None), seconds

    compiled("none")  # The first compilation has extra costs.
    programs, compile_seconds, clean_seconds = {}, {}, {}
    for name in SPECS:
        programs["none"], clean_seconds[name] = compiled("none")
        programs[name], compile_seconds[name] = compiled(name)
        print(
            f"  compiled {name} in {compile_seconds[name]:.1f} s, the clean step in "
            f"{clean_seconds[name]:.1f}",
            flush=True,
        )
    compile_seconds["none"] = float(np.median(list(clean_seconds.values())))
    clean_seconds["none"] = compile_seconds["none"]
    medians = workload.medians(programs, repeats)
    rows = [
        {
            "noise": name,
            "seconds_per_window": medians[name],
            "time_ratio": medians[name] / medians["none"],
            "compile_seconds": compile_seconds[name],
            "compile_ratio": compile_seconds[name] / clean_seconds[name],
        }
        for name in programs
    ]
    for row in rows:
        print(
            f"  {row['noise']:40s} {row['time_ratio']:6.2f} x the clean step, "
            f"{row['compile_ratio']:5.2f} x its compile time"
        )
    for tool, slowdown in PUBLISHED.items():
        print(f"  {tool}: {slowdown} x (published, measured elsewhere)")
    return {"suite": "noise", "rows": rows, "published_elsewhere": PUBLISHED}
