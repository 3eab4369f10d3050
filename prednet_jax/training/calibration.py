"""Measures how much the result of each reduction varies from run to run on a device.

The variation of a reduction is measured between calls of one compiled program (atomics,
scheduling), compilations in one process, and processes (autotuning may choose another
kernel), and compared with the variation that `ReductionOrder` emulates between its
keys.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax import process
from prednet_jax.models.convolution.algorithm import convolve
from prednet_jax.noise import ReductionOrder, coverage, inject, variability

#: A function and its float32 operands. These are NumPy's, since making them must not
#: start a backend, and they are the same in every process.
Reduction = tuple[Callable[..., Array], tuple[np.ndarray, ...]]
DISTANCES = ("call", "compilation", "process")
PROFILES = ("uniform_worst_case", "xla_gpu", "chainer_cudnn")


def reductions(*, small: bool) -> dict[str, Reduction]:
    """Returns the reductions of a training step of PredNet, by primitive and use.

    They come from the ConvLSTM of layer 1 at the article's size (60 x 80 pixels, 240
    channels in, 192 out) and from the layers around it. With `small` the sizes are
    reduced so that all of them run in seconds.
    """
    height, width, inputs, outputs = (12, 16, 24, 16) if small else (60, 80, 240, 192)
    rows, depth = height * width, 9 * inputs
    maps = (1, height, width, outputs)
    shapes = (
        *((1, height, width, inputs), (3, 3, inputs, outputs), maps),
        *((1, 2 * height, 2 * width, outputs), (rows, outputs), (rows, depth)),
        *((depth, outputs), maps),
    )
    image, kernel, cotangent, pooled, matrix, first, second, gradient = (
        np.random.default_rng(seed).standard_normal(shape, np.float32)
        for seed, shape in enumerate(shapes)
    )
    index = np.random.default_rng(9).integers(0, 64, rows, np.int32)

    def windows(x: Array, initial: float, combine: Callable) -> Array:
        """Reduces 3x3 windows that overlap; cuDNN does not repeat these bitwise."""
        size, stride = (1, 3, 3, 1), (1, 2, 2, 1)
        return lax.reduce_window(x, initial, combine, size, stride, "SAME")

    def input_gradient(y: Array, k: Array) -> Array:
        return jax.linear_transpose(lambda x: convolve(x, k), image)(y)[0]

    def filter_gradient(y: Array, x: Array) -> Array:
        return jax.linear_transpose(lambda k: convolve(x, k), kernel)(y)[0]

    def pool_gradient(y: Array, x: Array) -> Array:
        return jax.vjp(lambda x: windows(x, -jnp.inf, lax.max), x)[1](y)[0]

    def scatter(x: Array, index: Array) -> Array:
        return jnp.zeros((64, outputs), x.dtype).at[index].add(x)

    return {
        "dot_general": (jnp.matmul, (first, second)),
        "conv forward": (convolve, (image, kernel)),
        "conv input gradient": (input_gradient, (cotangent, kernel)),
        "conv filter gradient": (filter_gradient, (cotangent, image)),
        "reduce_sum": (lambda x: jnp.sum(x, axis=0), (matrix,)),
        "reduce_sum to one": (jnp.sum, (pooled,)),
        "cumsum": (lambda x: lax.cumsum(x, axis=0), (matrix,)),
        "reduce_window_sum": (lambda x: windows(x, 0.0, lax.add), (pooled,)),
        "scatter-add": (scatter, (matrix, index)),
        "select_and_scatter_add": (pool_gradient, (gradient, pooled)),
    }


def measure(
    reduction: Reduction, others: Sequence[np.ndarray], *, repeats: int
) -> dict[str, Any]:
    """Returns the `variation` of one reduction, measured and emulated, by `DISTANCES`.

    `others` are its outputs in other processes; without them the variation between
    processes is left out. `repeats`, at least 2, is the number of calls of one program,
    and of keys of the noise. `emulated` is by profile, and None where a profile does
    not perturb the reduction.
    """
    function, operands = reduction
    calls = outputs(reduction, repeats)
    compiled = [calls[0]]
    for _ in range(2):
        jax.clear_caches()
        compiled += outputs(reduction, 1)
    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), repeats)
    emulated: dict[str, Any] = dict.fromkeys(PROFILES)
    for profile in PROFILES:
        spec = ReductionOrder(profile=profile)
        if coverage(function, spec)(*operands).perturbed:
            noisy = inject(function, spec)
            noised = [np.asarray(noisy(key, *operands)) for key in keys]
            emulated[profile] = variation(noised)
    return {
        "call": variation(calls),
        "compilation": variation(compiled),
        "process": variation([calls[0], *others]) if others else None,
        "emulated": emulated,
    }


def variation(arrays: Sequence[Any]) -> dict[str, Any]:
    """Returns how much outputs differ from the first, by `noise.variability`."""
    first, *others = arrays
    return {
        "outputs": len(others),
        "v_c": float(np.mean([variability.v_c(first, x) for x in others])),
        "v_ermv": float(np.mean([variability.v_ermv(first, x) for x in others])),
    }


def outputs(reduction: Reduction, repeats: int) -> list[np.ndarray]:
    """Returns the outputs of one compiled program, called `repeats` times."""
    function, operands = reduction
    compiled = jax.jit(function).lower(*operands).compile()
    return [np.asarray(compiled(*operands)) for _ in range(repeats)]


def in_other_processes(count: int, small: bool) -> list[list[np.ndarray]]:
    """Returns the outputs of all reductions in `count` processes, one after another.

    Call it before this process starts its backend, which may use the whole device.
    """
    spawn = multiprocessing.get_context("spawn")
    earlier = set(multiprocessing.active_children())
    with ProcessPoolExecutor(
        1, spawn, initializer=end_with_the_parent, max_tasks_per_child=1
    ) as pool:
        try:
            return list(pool.map(_all_outputs, [small] * count))
        except BaseException:
            # An interrupt would wait here until the process has compiled everything.
            for child in set(multiprocessing.active_children()) - earlier:
                child.kill()
            raise


def end_with_the_parent() -> None:
    """Lets this process end as soon as the one that started it has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    # Ctrl-C of a terminal reaches both; the parent ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()


def _all_outputs(small: bool) -> list[np.ndarray]:
    process.prepare()
    jax.config.update("jax_enable_compilation_cache", False)
    return [outputs(reduction, 1)[0] for reduction in reductions(small=small).values()]
