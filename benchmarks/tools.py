"""The suite `tools` of benchmark.py: what the tools of `noise` cost.

They are applied to the training steps of the suite `foreign`: a small transformer, a
residual CNN and an MLP.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks import foreign, workload
from prednet_jax import noise
from prednet_jax.errors import one_of

SPEC = "reduction_order+stochastic_rounding"
SEARCHED = "reduction_order"


def run(
    config: object, *, networks: list[str], repeats: int, searches: bool
) -> dict[str, Any]:
    """Times the tools against the plain training step of each network.

    Args:
        config: a PredNet, as all suites get it; not used.
        networks: some of `foreign.NAMES`.
        repeats: runs of the compiled plain step, of which the median counts.
        searches: measure those that switch single equations on and off (localize,
            effects, decisions), under `SEARCHED`, instead of digits,
            tolerance and explain under `SPEC`.

    Returns:
        `rows`, one per network and tool. `first` is the wall time of a tool's first
        call over that of tracing, compiling and running the plain step once; `again`
        that of a second call over one run of the compiled step (None for those
        that compile at every call). `first_processor` and
        `again_processor` compare processor time, which a busy machine disturbs less.

    Raises:
        UserError: a network is unknown.
    """
    del config
    for name in networks:
        one_of("networks", name, foreign.NAMES)
    jax.config.update("jax_enable_compilation_cache", False)
    rows = [row for name in networks for row in _network(name, repeats, searches)]
    return {
        "suite": "tools",
        "noise": SEARCHED if searches else SPEC,
        "xla_flags": os.environ.get("XLA_FLAGS"),
        "load": os.getloadavg()[0] / (os.cpu_count() or 1),
        "rows": rows,
    }


def _network(name: str, repeats: int, searches: bool) -> list[dict[str, Any]]:
    """The rows of one network."""
    step, (key, *arguments) = foreign.training_step(name)
    # The first compilation has extra costs.
    jax.block_until_ready(jax.jit(lambda *a: step(*a))(*arguments))
    plain = jax.jit(lambda *a: step(*a))
    result, compiling = workload.timed(lambda: plain(*arguments))
    run = (lambda _: plain(*arguments)), None
    running = np.median(workload.turns({"": run}, repeats, warm_up=0)[""], axis=0)
    rows = []
    for tool, measure in (_searches if searches else _measures)(step, result).items():
        call = functools.partial(measure, key, *arguments)
        first = workload.timed(call)[1] / compiling
        again = None
        if tool not in COMPILE_AGAIN:
            again = workload.timed(call)[1] / running
        row = {
            "network": name,
            "tool": tool,
            "plain_compile_seconds": float(compiling[0]),
            "plain_run_seconds": float(running[0]),
            "first": float(first[0]),
            "first_processor": float(first[1]),
            "again": None if again is None else float(again[0]),
            "again_processor": None if again is None else float(again[1]),
        }
        print(
            f"  {name:12s} {tool:10s} first {first[0]:6.1f} x compiling and one run",
            flush=True,
        )
        rows.append(row)
    return rows


COMPILE_AGAIN = ("explain", "localize", "effects", "decisions")


def _measures(step: Callable, result: Any) -> dict[str, Callable]:
    """The tools that ask how large noise is."""
    spec = noise.parse(SPEC)
    return {
        "digits": noise.digits(step, spec),
        "tolerance": noise.tolerance(step, spec),
        "explain": noise.explain(step, result, result),
    }


def _searches(step: Callable, result: Any) -> dict[str, Callable]:
    """The tools that ask where it comes from, and what it decides."""
    del result
    spec = noise.parse(SEARCHED)

    def loss(*arguments: Any) -> jax.Array:
        return step(*arguments)[2]

    return {
        "localize": noise.localize(step, spec),
        "effects": noise.effects(step, spec, [""]),
        "decisions": noise.decisions(step, spec),
    }
