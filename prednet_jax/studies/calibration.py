"""How much the result of each reduction varies from run to run on this device.

The variation of a reduction is measured between

    call          repeated calls of one compiled program (atomics, scheduling)
    compilation   repeated compilations in one process
    process       compilations in several processes (autotuning may choose another
                  kernel)

and compared with what `ReductionOrder` emulates: the variation between its keys. Every
output is compared with the first one, by the measures of `noise.variability`.

On a CPU with a fixed number of threads XLA repeats bitwise, so all three variations
have to be zero there.
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
        name: name of the primitive, with its use in a network if it has several.
        function: the reduction, a function of the operands.
        operands: float32 arrays, the same in every process.
    """

    name: str
    function: Callable[..., Array]
    operands: tuple[Array, ...]


class Variation(NamedTuple):
    """Variation among outputs, each compared with the first.

    Attributes:
        outputs: number of outputs compared with the first.
        v_c: mean fraction of elements that differ.
        v_ermv: mean relative difference.
        ulps: histogram of all distances in ulps (`variability.ulp_histogram`).
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
        UserError: the name of the shapes is unknown.
    """
    one_of("shapes", shapes, SHAPES)
    small = shapes == "tiny"
    height, width, inputs, outputs = (12, 16, 24, 16) if small else (60, 80, 240, 192)
    rows, depth = height * width, 9 * inputs
    image = _draw(0, 1, height, width, inputs)
    kernel = _draw(1, 3, 3, inputs, outputs)
    cotangent = _draw(2, 1, height, width, outputs)
    pooled = _draw(3, 1, 2 * height, 2 * width, outputs)
    matrix = _draw(4, rows, outputs)
    index = jnp.asarray(np.random.default_rng(9).integers(0, 64, rows, np.int32))

    def input_gradient(y: Array, k: Array) -> Array:
        return jax.linear_transpose(lambda x: _convolve(x, k), image)(y)[0]

    def filter_gradient(y: Array, x: Array) -> Array:
        return jax.linear_transpose(lambda k: _convolve(x, k), kernel)(y)[0]

    def pool_gradient(y: Array, x: Array) -> Array:
        return jax.vjp(lambda x: _windows(x, -jnp.inf, lax.max), x)[1](y)[0]

    def scatter(x: Array, index: Array) -> Array:
        return jnp.zeros((64, outputs), x.dtype).at[index].add(x)

    found: dict[str, tuple[Callable[..., Array], tuple[Array, ...]]] = {
        "dot_general": (
            jnp.matmul,
            (_draw(5, rows, depth), _draw(6, depth, outputs)),
        ),
        "conv forward": (_convolve, (image, kernel)),
        "conv input gradient": (input_gradient, (cotangent, kernel)),
        "conv filter gradient": (filter_gradient, (cotangent, image)),
        "reduce_sum": (lambda x: jnp.sum(x, axis=0), (matrix,)),
        "reduce_sum to one": (jnp.sum, (pooled,)),
        "cumsum": (lambda x: lax.cumsum(x, axis=0), (matrix,)),
        "reduce_window_sum": (lambda x: _windows(x, 0.0, lax.add), (pooled,)),
        "scatter-add": (scatter, (matrix, index)),
        "select_and_scatter_add": (
            pool_gradient,
            (_draw(7, 1, height, width, outputs), pooled),
        ),
    }
    return tuple(Reduction(name, *entry) for name, entry in found.items())


def _draw(seed: int, *shape: int) -> Array:
    # NumPy's generator gives the same numbers in every process and compiles nothing.
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


def _convolve(x: Array, kernel: Array) -> Array:
    return lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _windows(x: Array, initial: float, combine: Callable) -> Array:
    """Reduces 3x3 windows that overlap; cuDNN does not repeat these bitwise."""
    return lax.reduce_window(x, initial, combine, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def variation(outputs: Sequence[Any]) -> Variation:
    """The variation of the outputs, each compared with the first.

    Raises:
        UserError: there are fewer than two outputs.
    """
    first, *others = outputs
    if not others:
        raise UserError(f"{len(outputs)} outputs: expected two or more")
    distances = [variability.ulp_distance(first, other) for other in others]
    return Variation(
        len(others),
        float(np.mean([variability.v_c(first, other) for other in others])),
        float(np.mean([variability.v_ermv(first, other) for other in others])),
        variability.ulp_histogram(np.concatenate(distances)),
    )


def repeated_calls(reduction: Reduction, repeats: int) -> list[np.ndarray]:
    """Outputs of one compiled program, called `repeats` times."""
    compiled = jax.jit(reduction.function).lower(*reduction.operands).compile()
    return [np.asarray(compiled(*reduction.operands)) for _ in range(repeats)]


def repeated_compilations(reduction: Reduction, repeats: int) -> list[np.ndarray]:
    """First outputs of `repeats` programs; caches are cleared before each compiles."""
    outputs = []
    for _ in range(repeats):
        jax.clear_caches()
        outputs += repeated_calls(reduction, 1)
    return outputs


def perturbed_paths(reduction: Reduction, spec: ReductionOrder) -> tuple[str, ...]:
    """Paths of the equations of a reduction that a reduction order perturbs."""
    report = coverage(reduction.function, spec)(*reduction.operands)
    return tuple(entry.path for entry in report.perturbed)


def emulated(
    reduction: Reduction, spec: ReductionOrder, repeats: int
) -> list[np.ndarray]:
    """Outputs under a reduction order, one per key; there are `repeats` keys."""
    noisy = inject(reduction.function, spec)
    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), repeats)
    return [np.asarray(noisy(key, *reduction.operands)) for key in keys]
