"""The suite `conv`: each algorithm on each convolution, and the choice of `auto`."""

import dataclasses
from typing import Any

import jax

from benchmarks import workload
from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.models import convolution, shapes


def run(config: PredNetConfig, *, repeats: int) -> dict[str, Any]:
    """Effective GFLOP/s of each algorithm, compared with the machine's GEMM rate.

    The output, input gradient and filter gradient of `conv2d` are timed together.
    "Effective" means that the operations of a direct convolution are counted for every
    algorithm. The algorithms of one convolution take turns.

    Args:
        config: the PredNet whose convolutions are measured, batch 1.
        repeats: timed calls, of which the median is taken.
    """
    a = jax.random.normal(jax.random.key(0), (1024, 1024))
    product = jax.jit(lambda a: a @ a)
    seconds = workload.medians({"gemm": (lambda _: product(a), None)}, repeats)["gemm"]
    gemm = 2 * 1024**3 / seconds / 1e9
    print(f"  GEMM 1024^3: {gemm:.0f} GFLOP/s", flush=True)
    rows = []
    for name, shape in shapes.convolutions(config).items():
        work = 6 * shape.height * shape.width * shape.filter_size**2
        work *= shape.in_channels * shape.out_channels
        chosen = convolution.resolve(dataclasses.replace(shape, algorithm="auto"))
        found = workload.medians(_programs(shape), repeats)
        for algorithm, seconds in found.items():
            rate = work / seconds / 1e9
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


def _programs(shape: shapes.Convolution) -> dict[str, workload.Program]:
    """Output and both gradients, by each algorithm that fits the convolution."""
    scale = 2 if shape.upsampled else 1
    size = shape.filter_size
    x = jax.random.normal(
        jax.random.key(1),
        (1, shape.height // scale, shape.width // scale, shape.in_channels),
    )
    kernel = jax.random.normal(
        jax.random.key(2), (size, size, shape.in_channels, shape.out_channels)
    )

    def gradients(algorithm: str) -> workload.Program:
        def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
            return convolution.conv2d(x, kernel, algorithm, shape.upsampled)

        def both(x: jax.Array, kernel: jax.Array) -> tuple:
            y, back = jax.vjp(convolve, x, kernel)
            return back(y)

        program = jax.jit(both)
        return (lambda _: program(x, kernel)), None

    programs = {}
    for algorithm in convolution.ALGORITHMS:
        try:
            convolution.resolve(dataclasses.replace(shape, algorithm=algorithm))
        except UserError:
            continue  # It does not fit this filter size or input.
        programs[algorithm] = gradients(algorithm)
    return programs
