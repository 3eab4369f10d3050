"""The suite `noise`: noisy training steps against the clean one, of any network."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxprs_in_params

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
# A function that is compiled, and its arguments.
Step = tuple[Callable, tuple]


def run(config: PredNetConfig, *, window: int, repeats: int) -> dict[str, Any]:
    """Compares steps of PredNet; `compare` says how.

    Args:
        config: the PredNet.
        window: frames per window, batch 1.
        repeats: number of rounds.
    """
    clean = workload.training(config)
    frames = jax.device_put(workload.random_frames(config, window + 1, 1))
    arguments = clean.state, frames, jax.numpy.asarray(False), clean.key

    def step(noise: str) -> Step:
        return clean._replace(noise=workload.parse(noise)).update(), arguments

    rows = compare("prednet", step, SPECS, repeats, compilations=1)
    for tool, slowdown in PUBLISHED.items():
        print(f"  {tool}: {slowdown} x (published, measured elsewhere)")
    return {"suite": "noise", "rows": rows, "published_elsewhere": PUBLISHED}


def compare(
    network: str,
    step: Callable[[str], Step],
    specs: Sequence[str],
    repeats: int,
    *,
    compilations: int = 2,
) -> list[dict[str, Any]]:
    """Times noisy training steps against the clean step.

    All programs run in one process and take turns. The time ratio of a noise is the
    median, over the rounds, of the noisy seconds over the clean seconds of the same
    round; the ratio of processor times is defined likewise. The compile ratio compares
    the processor time to trace and compile the two programs, one directly after the
    other, and the smallest time of each is taken.

    Args:
        network: its name.
        step: a new step under a noise, given as text; "none": the clean step.
        specs: the noises.
        repeats: number of rounds.
        compilations: how often each program is compiled.

    Returns:
        One row per noise.
    """
    _compiled(*step("none"))  # The first compilation has extra costs.
    programs: dict[str, workload.Program] = {}
    compile_ratios, equations = {}, {}
    for spec in specs:
        seconds: dict[str, list] = {"none": [], spec: []}
        for _ in range(compilations):
            for name, times in seconds.items():
                programs[name], spent, equations[name] = _compiled(*step(name))
                times.append(spent)
        compile_ratios[spec] = min(seconds[spec]) / min(seconds["none"])
    times = workload.turns(programs, repeats)
    rows = []
    for spec in specs:
        wall, processor = np.median(times[spec] / times["none"], axis=0)
        row = {
            "network": network,
            "noise": spec,
            "clean_seconds": float(np.median(times["none"][:, 0])),
            "time_ratio": float(wall),
            "processor_ratio": float(processor),
            "compile_ratio": compile_ratios[spec],
            "equations": equations[spec],
            "clean_equations": equations["none"],
        }
        print(
            f"  {network:12s} {spec:36s} {wall:6.2f} x the clean step "
            f"({processor:.2f} x its processor time), "
            f"{row['compile_ratio']:5.2f} x its trace and compile time",
            flush=True,
        )
        rows.append(row)
    return rows


def _compiled(step: Callable, arguments: tuple) -> tuple[workload.Program, float, int]:
    """Compiles a step: program, processor seconds, and number of equations."""

    def fresh(*args: Any) -> Any:  # A new function, so that JAX compiles it again.
        return step(*args)

    def compile_it() -> tuple:
        traced = jax.jit(fresh).trace(*arguments)
        return traced.lower().compile(), _equations(traced.jaxpr.jaxpr)

    (program, count), (_, processor) = workload.timed(compile_it)
    return ((lambda _: program(*arguments)), None), float(processor), count


def _equations(jaxpr: Any) -> int:
    """Number of equations of a jaxpr and of all jaxprs inside it."""
    inner = [sub for eqn in jaxpr.eqns for sub in jaxprs_in_params(eqn.params)]
    return len(jaxpr.eqns) + sum(map(_equations, inner))
