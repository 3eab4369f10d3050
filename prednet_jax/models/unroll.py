"""A scan over time that computes the kernels' gradients once, after the scan.

Ordinary back-propagation through a scan adds a term of the kernel's size at each frame.
Here the kernels are prepared once, outside the scan, and are constants within it. Every
convolution stacks its input over time, and returns the cotangent dz of its output as
the gradient of an unused argument (`tap`). With t over time and batch and p over space,

    dK[i, j] = sum_{t, p} x[t, p + (i, j)]^T dz[t, p]

is then one contraction per kernel, as in cuDNN's recurrent networks. It also puts the
sums over time and space into one operation, whose order the noise transform can draw. A
map that several convolutions read is stacked once.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from prednet_jax.config import Convolution
from prednet_jax.models import convolution
from prednet_jax.models.step import Maps

Kernels = dict[str, jax.Array]


@jax.tree_util.register_static
@dataclass(frozen=True)
class Reads:
    """The names that each call of `conv` adds up, and their maps in the stack."""

    table: tuple[tuple[tuple[str, ...], tuple[tuple[int, ...], ...]], ...]


def unroll(
    body: Callable,
    kernels: Mapping[str, jax.Array],
    others: Any,
    carry: Any,
    xs: Any,
    *,
    convolutions: Mapping[str, Convolution],
    batch: int = 1,
    rematerialize: bool = False,
) -> tuple[Any, Any]:
    """Scans `body(conv, others, carry, x) -> (carry, y)` over xs's leading axis, time.

    The body's `conv({name: x, ...})` convolves each x, a map or a tuple of maps to be
    concatenated along their channels, with the kernel `[k, k, in, out]` of that name
    and adds the results, which share one cotangent. A step has to use each name exactly
    once, or there is a ValueError. `auto` chooses algorithms for maps of a `batch`.
    With `rematerialize` the reverse mode keeps the carries of every few steps and
    computes everything else again (`segment_length`), in less memory and more time.

    Returns the last carry and the stacked ys. Reverse mode works for all but whole
    numbers, and so does forward over reverse (Hessian products); forward mode alone
    does not.
    """
    static = tuple(
        (name, shape.filter_size, convolution.find(shape, kernels[name].dtype, batch))
        for name, shape in sorted(convolutions.items(), key=lambda item: item[0])
    )
    together = convolution.frames_per_iteration(convolutions.values(), batch)
    run: Callable[..., Any] = partial(_unroll, body, (static, together))
    kernels = dict(kernels)
    if not rematerialize:
        return run(kernels, others, carry, xs)
    run = jax.checkpoint(run, prevent_cse=False)
    steps = jax.tree.leaves(xs)[0].shape[0]
    length = segment_length(steps)
    segments = jax.tree.map(lambda x: x.reshape(-1, length, *x.shape[1:]), xs)
    carry, ys = jax.lax.scan(partial(run, kernels, others), carry, segments)
    return carry, jax.tree.map(lambda y: y.reshape(steps, *y.shape[2:]), ys)


def segment_length(steps: int) -> int:
    """Returns the steps that the reverse mode of `rematerialize` computes together.

    A step keeps about six times the memory of its carry. So s steps together and one
    carry for each s of `steps` take the least memory at s^2 = steps / 6. The result
    divides `steps`.
    """
    most = max(1, round(math.sqrt(steps / 6)))
    return next(s for s in range(most, 0, -1) if steps % s == 0)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _unroll(body, settings, kernels, others, carry, xs):
    static, together = settings
    prepared = _prepare(static, kernels)

    def conv(inputs: Mapping[str, Maps]) -> jax.Array:
        kernels = [prepared[name] for name in inputs]
        maps = [convolution.side_by_side(x) for x in inputs.values()]
        return convolution.apply_sum(maps, kernels)

    step = lambda c, x: body(conv, others, c, x)  # noqa: E731
    return jax.lax.scan(step, carry, xs, unroll=together)


def _unroll_fwd(body, settings, kernels, others, carry, xs):
    static, together = settings
    prepared = _prepare(static, kernels)

    def step(taps, others, carry, x):
        stacked: list[jax.Array] = []
        table: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = {}

        def position(x: jax.Array) -> int:
            for i, array in enumerate(stacked):
                if array is x:
                    return i
            stacked.append(x)
            return len(stacked) - 1

        def conv(summed: Mapping[str, Maps]) -> jax.Array:
            names = tuple(summed)
            for name in names:
                if any(name in used for used in table):
                    raise ValueError(f"conv({name!r}) twice: expected one call a step")
            parts = [x if isinstance(x, tuple) else (x,) for x in summed.values()]
            table[names] = tuple(tuple(map(position, p)) for p in parts)
            maps = tuple(convolution.side_by_side(p) for p in parts)
            kernels = tuple(prepared[name] for name in names)
            if taps is None:
                return convolution.apply_sum(maps, kernels)
            return convolution.apply_tapped(maps, kernels, taps[names])

        carry, y = body(conv, others, carry, x)
        inputs = tuple(convolution.operand(x) for x in stacked)
        return carry, y, (inputs, Reads(tuple(table.items())))

    def run(taps, others, carry, xs):
        def scanned(carry, x_taps):
            x, taps = x_taps
            carry, y, inputs = step(taps, others, carry, x)
            return carry, (y, inputs)

        carry, (ys, inputs) = jax.lax.scan(scanned, carry, (xs, taps), unroll=together)
        return (carry, ys), inputs

    taps = _taps(static, kernels, step, others, carry, xs)
    out, backward, inputs = jax.vjp(run, taps, others, carry, xs, has_aux=True)
    return out, (backward, inputs)


def _unroll_bwd(body, settings, residuals, cotangents):
    backward, (stacked, reads) = residuals
    dz, d_others, d_carry, d_xs = backward(cotangents)
    d_kernels = {}
    filters = {name: size_and_algorithm for name, *size_and_algorithm in settings[0]}

    def images(stack: jax.Array) -> jax.Array:
        """Returns time and batch as one axis, over which gradients are summed."""
        return stack.reshape(-1, *stack.shape[2:])

    for names, positions in reads.table:
        for name, parts in zip(names, positions, strict=True):
            maps = tuple(images(stacked[i]) for i in parts)
            d_kernels[name] = convolution.filter_gradient(
                maps, images(dz[names]), *filters[name]
            )
    return d_kernels, d_others, d_carry, d_xs


_unroll.defvjp(_unroll_fwd, _unroll_bwd)


def _prepare(static, kernels: Kernels) -> dict[str, convolution.Prepared]:
    return {
        name: convolution.prepare(kernels[name], algorithm)
        for name, _, algorithm in static
    }


def _taps(static, kernels, step, others, carry, xs) -> dict[tuple, jax.Array]:
    """Makes zeros in the shape of each `conv` call's stacked outputs; never read."""
    first = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), xs
    )
    *_, (stacked, reads) = jax.eval_shape(partial(step, None), others, carry, first)
    called = {name for names, _ in reads.table for name in names}
    if missing := sorted(set(kernels) - called):
        raise ValueError(f"conv never called with {missing}: expected once per step")
    length = jax.tree.leaves(xs)[0].shape[0]
    scale = {name: 2 if algorithm.enlarges else 1 for name, _, algorithm in static}
    taps = {}
    for names, ((first_map, *_), *_) in reads.table:
        x, by = stacked[first_map], scale[names[0]]
        batch, height, width, _ = x.shape
        outputs = kernels[names[0]].shape[-1]
        shape = length, batch, height * by, width * by, outputs
        taps[names] = jnp.zeros(shape, x.dtype)
    return taps
