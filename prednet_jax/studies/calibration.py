"""How much each reduction varies from run to run on the device at hand.

The variation of a reduction at given shapes is measured at three distances:

    call          one compiled program, executed again: atomics, scheduling
    compilation   compiled again in the same process
    process       compiled in another process: autotuning may choose another kernel

and set beside what `ReductionOrder` emulates for it: the same measures between keys.
Each measure compares every output with the first one (see `variability`).

On a CPU, XLA repeats bitwise for a fixed number of threads, so that all three distances
must be zero there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax.errors import UserError, one_of
from prednet_jax.noise import ReductionOrder, coverage, inject, variability

SHAPES = ("tiny", "prednet")


class Reduction(NamedTuple):
    """One reduction to be repeated.

    Attributes:
        name: of the primitive, with its part in a network where it has several.
        function: of the operands.
        operands: float32 arrays, the same in every process.
    """

    name: str
    function: Callable[..., Array]
    operands: tuple[Array, ...]


class Spread(NamedTuple):
    """Variation among outputs, each compared with the first.

    Attributes:
        outputs: number of outputs compared with the first.
        v_c: mean fraction of elements that differ.
        v_ermv: mean relative difference.
        ulps: histogram of distances in ulps, pooled (`variability.ulp_histogram`).
    """

    outputs: int
    v_c: float
    v_ermv: float
    ulps: dict[str, int]

    @property
    def varies(self) -> bool:
        """Whether any element of any output differs."""
        return self.v_c > 0


def reductions(shapes: str) -> tuple[Reduction, ...]:
    """The reductions of a training step of PredNet.

    Args:
        shapes: `"prednet"`: the ConvLSTM of layer 1 at 120 x 160 pixels and channels
            3, 48, 96, 192 (60 x 80 pixels, 240 channels in, 192 out), and the pooling
            and loss of the layers around it. `"tiny"`: the same at a size for tests.

    Raises:
        UserError: for any other name.
    """
    one_of("shapes", shapes, SHAPES)
    small = shapes == "tiny"
    height, width, inputs, outputs = (12, 16, 24, 16) if small else (60, 80, 240, 192)
    rows, depth = height * width, 9 * inputs

    def draw(i: int, *shape: int) -> Array:
        # NumPy's generator: the same in every process, and nothing to compile.
        return jnp.asarray(np.random.default_rng(i).standard_normal(shape, np.float32))

    image, kernel = draw(0, 1, height, width, inputs), draw(1, 3, 3, inputs, outputs)
    cotangent = draw(2, 1, height, width, outputs)
    pooled = draw(3, 1, 2 * height, 2 * width, outputs)

    def convolve(x: Array, k: Array) -> Array:
        return lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def pool(x: Array) -> Array:
        """Overlapping windows: those that cuDNN does not repeat."""
        return lax.reduce_window(
            x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"
        )

    def scatter(x: Array, index: Array) -> Array:
        return jnp.zeros((64, outputs), x.dtype).at[index].add(x)

    index = jnp.asarray(np.random.default_rng(9).integers(0, 64, rows, np.int32))
    matrix = draw(4, rows, outputs)
    return (
        Reduction(
            "dot_general", jnp.matmul, (draw(5, rows, depth), draw(6, depth, outputs))
        ),
        Reduction("conv forward", convolve, (image, kernel)),
        Reduction(
            "conv input gradient",
            lambda y, k: jax.linear_transpose(lambda x: convolve(x, k), image)(y)[0],
            (cotangent, kernel),
        ),
        Reduction(
            "conv filter gradient",
            lambda y, x: jax.linear_transpose(lambda k: convolve(x, k), kernel)(y)[0],
            (cotangent, image),
        ),
        Reduction("reduce_sum", lambda x: jnp.sum(x, axis=0), (matrix,)),
        Reduction("reduce_sum to one", jnp.sum, (pooled,)),
        Reduction("cumsum", lambda x: lax.cumsum(x, axis=0), (matrix,)),
        Reduction(
            "reduce_window_sum",
            lambda x: lax.reduce_window(
                x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"
            ),
            (pooled,),
        ),
        Reduction("scatter-add", scatter, (matrix, index)),
        Reduction(
            "select_and_scatter_add",
            lambda y, x: jax.vjp(pool, x)[1](y)[0],
            (draw(7, 1, height, width, outputs), pooled),
        ),
    )


def spread(outputs: Sequence[Any]) -> Spread:
    """Variation of every output with respect to the first of them."""
    first, *others = outputs
    if not others:
        raise UserError(f"{len(outputs)} outputs: expected two or more")
    distances = [variability.ulp_distance(first, other) for other in others]
    return Spread(
        len(others),
        float(np.mean([variability.v_c(first, other) for other in others])),
        float(np.mean([variability.v_ermv(first, other) for other in others])),
        variability.ulp_histogram(np.concatenate(distances)),
    )


def repeated_calls(reduction: Reduction, repeats: int) -> list[np.ndarray]:
    """Outputs of one compiled program."""
    compiled = jax.jit(reduction.function).lower(*reduction.operands).compile()
    return [np.asarray(compiled(*reduction.operands)) for _ in range(repeats)]


def repeated_compilations(reduction: Reduction, repeats: int) -> list[np.ndarray]:
    """First outputs of programs compiled one after another, caches cleared."""
    outputs = []
    for _ in range(repeats):
        jax.clear_caches()
        outputs += repeated_calls(reduction, 1)
    return outputs


def perturbed_paths(reduction: Reduction, spec: ReductionOrder) -> tuple[str, ...]:
    """The equations of a reduction that a reduction order perturbs."""
    report = coverage(reduction.function, spec)(*reduction.operands)
    return tuple(entry.path for entry in report.perturbed)


def emulated(
    reduction: Reduction, spec: ReductionOrder, repeats: int
) -> list[np.ndarray]:
    """Outputs under a reduction order, one for each of `repeats` keys."""
    noisy = inject(reduction.function, spec)
    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), repeats)
    return [np.asarray(noisy(key, *reduction.operands)) for key in keys]
