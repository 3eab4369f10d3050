"""Finds hints in the numbers of two arrays to the cause of their difference.

`array_hint` tries what would turn one array into the other: its content in another
order, a factor, an offset; `fitted_hint` one for each element of an axis.
`program_hint` evaluates the lines of a layer again with one equation changed: another
epsilon, another GELU, a transposed square matrix. A hint is given only where nothing
but noise is left. `widened` is the program without its narrow formats.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from prednet_jax.noise import compat
from prednet_jax.noise.questions.segments import Node, Program

NAMES = ("", "fp16", "bf16", "fp8")
# Formats narrower than float32, by the name of their rung.
NARROW = {
    np.dtype(np.float16): "fp16",
    np.dtype(jnp.bfloat16): "bf16",
    **{np.dtype(getattr(jnp, n)): "fp8" for n in ("float8_e4m3fn", "float8_e5m2")},
}
EPSILONS = (0.0, 1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
# Blocks of an axis, such as gates, whose orders are tried; longest axis split in two.
BLOCKS, LONGEST = (2, 3, 4), 4096
# Per factor or offset fitted to an axis, this many elements at least.
FITTED = 4


def array_hint(ours: np.ndarray, theirs: np.ndarray, explains: Callable) -> str:
    """Returns the first change that makes `ours` the reference, in words, or "".

    `explains(changed, part)` returns whether only noise is left, within a part.
    """
    broken = ~np.isfinite(ours), ~np.isfinite(theirs)
    for here, there, where in ((*broken, "here"), (*broken[::-1], "in the reference")):
        count = int(np.sum(here & ~there))
        if count:
            return f"NaN or infinite {where} alone, in {count} of {here.size} elements"
    whole = (slice(None),)
    for text, changed in _reordered(ours):
        if explains(changed, whole):
            return f"the same numbers in another order: {text}"
    for axis, step in itertools.product(range(ours.ndim), (1, -1)):
        inner = (*[slice(None)] * axis, slice(1, None) if step > 0 else slice(-1))
        if ours.shape[axis] > 3 and explains(np.roll(ours, step, axis), inner):
            return f"shifted by one along axis {axis}"
    return fitted_hint(ours, theirs, explains, (None,))


def fitted_hint(
    ours: np.ndarray,
    theirs: np.ndarray,
    explains: Callable,
    axes: Iterable[int | None],
) -> str:
    """Returns the factor or offset, of all or of an axis, that gives the reference."""
    with np.errstate(all="ignore"):
        for axis in axes:
            for text, changed in _fitted(
                ours.astype(float), theirs.astype(float), axis
            ):
                if explains(changed, (slice(None),)):
                    return text
    return ""


def _reordered(x: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yields arrays with the same content in another order, described."""
    for axis, size in enumerate(x.shape):
        if size < 2:
            continue
        yield f"reversed along axis {axis}", np.flip(x, axis)
        for count in (n for n in BLOCKS if size % n == 0):
            parts = np.split(x, count, axis)
            for order in itertools.permutations(range(count)):
                if list(order) != sorted(order):
                    what = "halves" if count == 2 else f"{count} blocks (gates)"
                    text = f"{what} of axis {axis} swapped: {order}"
                    yield text, np.concatenate([parts[i] for i in order], axis)
        for count in range(2, size // 2 + 1 if size <= LONGEST else 0):
            if size % count == 0:
                shape = (*x.shape[:axis], count, size // count, *x.shape[axis + 1 :])
                moved = x.reshape(shape).swapaxes(axis, axis + 1).reshape(x.shape)
                text = f"axis {axis} interleaved, {size // count} by {count}"
                yield text, moved
    for i, j in itertools.combinations(range(x.ndim), 2):
        if x.shape[i] == x.shape[j]:
            yield f"axes {i} and {j} transposed", x.swapaxes(i, j)


def _fitted(
    x: np.ndarray, r: np.ndarray, axis: int | None
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the array with a factor or an offset that is fitted to the reference."""
    size = np.abs(r)
    usual = size <= 1e4 * np.median(size)
    x0, r0 = np.where(usual, x, 0), np.where(usual, r, 0)
    others = tuple(i for i in range(x.ndim) if i != axis)
    count = np.sum(usual, others, keepdims=True)
    if axis is not None and (x.shape[axis] < 2 or count.min() < FITTED):
        return
    factor = np.sum(x0 * r0, others, keepdims=True)
    factor = factor / np.sum(x0 * x0, others, keepdims=True)
    offset = np.sum(r0 - x0, others, keepdims=True) / count
    one, each = axis is None, f"for each element of axis {axis}"
    text = f"a constant factor of {factor.flat[0]:.6g}" if one else f"a factor {each}"
    yield text, np.where(usual, x * factor, x)
    text = f"an offset of {offset.flat[0]:.6g}" if one else f"an offset {each}"
    yield text + " (a bias?)" * (not one), np.where(usual, x + offset, x)


def program_hint(
    program: Program,
    nodes: list[Node],
    evaluate: Callable[[dict[int, Callable]], np.ndarray],
    explains: Callable,
) -> str:
    """Returns the change of one equation that gives the reference, in words, or "".

    `evaluate({id(node): apply})` is the layer with other functions for some nodes.
    """
    whole = (slice(None),)
    for node in nodes:
        for text, apply in _changes(program, node):
            changed = evaluate({id(node): apply})
            if explains(changed, whole):
                return f"{text}, at {node.sources[0]}" if node.sources else text
    return ""


def widened(nodes: Iterable[Node]) -> tuple[str, dict[int, Callable]]:
    """Returns the narrowest format of nodes, and functions that compute in float32.

    The format is "" where all is as wide as float32.
    """
    changed: dict[int, Callable] = {}
    formats = set()
    for node in nodes:
        narrow = {var.aval.dtype for var in node.step.equation.outvars} & NARROW.keys()
        if narrow:
            formats |= narrow
            changed[id(node)] = functools.partial(_wide, node.step.equation)
    name = max((NARROW[x] for x in formats), default="", key=NAMES.index)
    return name, changed


def _wide(equation: Any, *operands: Any) -> list[Any]:
    """Returns the results of an equation in float32."""
    wide = [
        x.astype(np.float32) if getattr(x, "dtype", None) in NARROW else x
        for x in operands
    ]
    params = {
        name: np.dtype(np.float32) if _is_narrow(value) else value
        for name, value in equation.params.items()
    }
    return compat.bind(equation.replace(params=params), *wide)


def _is_narrow(value: Any) -> bool:
    return isinstance(value, np.dtype) and value in NARROW


def _changes(program: Program, node: Node) -> Iterator[tuple[str, Callable]]:
    """Yields other functions for a node, described."""
    name, apply = node.step.name, node.apply
    if name == "add":
        for i, number in enumerate(node.operands):
            value = program.constants.get(number)
            if value is not None and np.ndim(value) == 0 and 0 < abs(value) <= 0.1:
                for there in np.asarray(EPSILONS, value.dtype):
                    text = f"another epsilon: {value:.2g} here, {there:.2g} there"
                    yield text, lambda *x, i=i, e=there: apply(*_with(x, i, e))
    elif name == "dot_general":
        for i, number in enumerate(node.operands):
            shape = program.types[number].shape
            if len(shape) == 2 and shape[0] == shape[1]:
                text = "a transposed square matrix"
                yield text, lambda *x, i=i: apply(*_with(x, i, x[i].T))
    elif name in ("erf", "erfc"):

        def by_tanh(x: jax.Array) -> list[jax.Array]:
            u = np.sqrt(2) * x
            y = jnp.tanh(_TANH * (u + 0.044715 * u**3))
            return [(y if name == "erf" else 1 - y).astype(x.dtype)]

        yield "another GELU: exact here, by tanh there", by_tanh
    elif name == "tanh":

        def exact(x: jax.Array) -> list[jax.Array]:
            t, u = np.asarray(x, float) / _TANH, np.asarray(x, float) / _TANH
            for _ in range(60):
                u = u - (u + 0.044715 * u**3 - t) / (1 + 3 * 0.044715 * u**2)
            return [jax.lax.erf(jnp.asarray(u / math.sqrt(2), x.dtype))]

        yield "another GELU: by tanh here, exact there", exact


_TANH = math.sqrt(2 / math.pi)


def _with(operands: tuple, i: int, value: object) -> list:
    """Returns operands with another one at a place."""
    return [value if k == i else x for k, x in enumerate(operands)]
