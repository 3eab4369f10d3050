"""The suite `conv`: each algorithm on each convolution, and the choice of `auto`."""

import dataclasses
from typing import Any

import jax

from benchmarks import harness
from prednet_jax.config import PredNetConfig
from prednet_jax.errors import UserError
from prednet_jax.models import convolution, shapes


def conv(config: PredNetConfig, repeats: int) -> dict[str, Any]:
    """Effective GFLOP/s of each algorithm, compared with the machine's GEMM rate.

    The output, input gradient and filter gradient of `conv2d` are timed together, for
    batch 1. "Effective" means that the operations of a direct convolution are counted
    for every algorithm. The algorithms of one convolution take turns.
    """
    a = jax.random.normal(jax.random.key(0), (1024, 1024))
    product = jax.jit(lambda a: a @ a)
    seconds = harness.medians({"": (lambda _: product(a), None)}, repeats)[""]
    gemm = 2 * 1024**3 / seconds / 1e9
    print(f"  GEMM 1024^3: {gemm:.0f} GFLOP/s", flush=True)
    rows = []
    for name, shape in shapes.convolutions(config).items():
        work = 6 * shape.height * shape.width * shape.filter_size**2
        work *= shape.in_channels * shape.out_channels
        chosen = convolution.resolve(dataclasses.replace(shape, algorithm="auto"))
        for algorithm, seconds in harness.medians(programs(shape), repeats).items():
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


def programs(shape: shapes.Convolution) -> dict[str, harness.Program]:
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
    found: dict[str, harness.Program] = {}
    for algorithm in convolution.ALGORITHMS:
        try:
            convolution.resolve(dataclasses.replace(shape, algorithm=algorithm))
        except UserError:
            continue  # It does not fit this filter size or input.

        @jax.jit
        def both(x: jax.Array, kernel: jax.Array, algorithm=algorithm) -> tuple:
            def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
                return convolution.conv2d(x, kernel, algorithm, shape.upsampled)

            y, back = jax.vjp(convolve, x, kernel)
            return back(y)

        found[algorithm] = (lambda _, both=both: both(x, kernel)), None
    return found
