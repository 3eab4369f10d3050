"""The suite `conv` of benchmark.py: each algorithm on each convolution."""

import dataclasses
import time

import numpy as np


def run(config, *, repeats: int) -> dict:
    """Effective GFLOP/s of direct convolution, beside the machine's GEMM rate.

    Forward, input gradient and filter gradient together, as `conv2d` computes them;
    "effective" counts the operations of a direct convolution whatever the algorithm.

    Args:
        config: the PredNet whose convolutions are measured, batch 1.
        repeats: timed calls; the median counts.
    """
    import jax

    from prednet_jax.models import convolution, prednet, unroll

    a = jax.random.normal(jax.random.key(0), (1024, 1024))
    gemm = 2 * 1024**3 / _seconds(jax.jit(lambda a: a @ a), (a,), repeats) / 1e9
    print(f"  GEMM 1024^3: {gemm:.0f} GFLOP/s", flush=True)
    rows = []
    for name, plan in prednet.convolutions(config).items():
        scale = 2 if plan.upsampled else 1
        x = jax.random.normal(
            jax.random.key(1),
            (1, plan.height // scale, plan.width // scale, plan.in_channels),
        )
        k = jax.random.normal(
            jax.random.key(2),
            (plan.filter_size,) * 2 + (plan.in_channels, plan.out_channels),
        )
        work = 6 * plan.height * plan.width * plan.filter_size**2
        work *= plan.in_channels * plan.out_channels
        chosen = unroll.algorithm(dataclasses.replace(plan, algorithm="auto"))
        for algorithm in convolution.ALGORITHMS:
            try:
                convolution.check(algorithm, plan.filter_size, plan.upsampled)
            except ValueError:
                continue  # not for this filter size or input

            def both(x, k, algorithm=algorithm, upsampled=plan.upsampled):
                y, back = jax.vjp(
                    lambda x, k: convolution.conv2d(x, k, algorithm, upsampled), x, k
                )
                return back(y)

            rate = work / _seconds(jax.jit(both), (x, k), repeats) / 1e9
            rows.append(
                {
                    "convolution": name,
                    "algorithm": algorithm,
                    "gflops": rate,
                    "of_gemm": rate / gemm,
                    "chosen": algorithm == chosen,
                }
            )
            mark = "  <- auto" if algorithm == chosen else ""
            print(f"  {name:14s} {algorithm:10s} {rate:7.1f} GFLOP/s{mark}", flush=True)
    return {"suite": "conv", "gemm_gflops": gemm, "rows": rows}


def _seconds(function, arguments: tuple, repeats: int) -> float:
    import jax

    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return float(np.median(times))
